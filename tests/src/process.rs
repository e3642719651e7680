//! Runs tests of several processes: the test binary starts itself again, and the two exchange lines of text.
//!
//! The other process runs one test of the same binary (ignored otherwise, and called by its exact name).
//! It is told what to do by environment variables and by lines on its standard input, and says what
//! happened in lines that begin with `@`, since the test harness writes to standard output as well.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

/// The prefix that distinguishes our lines from those of the test harness.
const MARK: &str = "@";

/// Another process, which is killed on drop.
#[derive(Debug)]
pub struct Other {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Other {
    /// Runs the test `name` of this binary in a process of its own.
    pub fn start(name: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::unbounded_channel();
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness writes the name of a test without ending the line.
                let Some((_, said)) = line.split_once(MARK) else {
                    continue;
                };
                if sender.send(said.to_owned()).is_err() {
                    return;
                }
            }
        });
        Self { child, input, lines, reader: Some(reader) }
    }

    /// Sends a line to the process, unless it is dead.
    pub fn say(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            // It may die at any time; its silence will tell.
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Returns the next line that it says; `None` once it is dead.
    pub async fn hear(&mut self) -> Option<String> {
        let patience = Duration::from_secs(60);
        let line = tokio::time::timeout(patience, self.lines.recv()).await;
        line.expect("the other process hangs")
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits until it has ended; whether it was content.
    pub fn ended(mut self) -> bool {
        drop(self.input.take());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Sends a line to the process that started this one.
pub fn say(line: &str) {
    println!("{MARK}{line}");
}

/// Returns the lines that the process that has started this one says. They end when it wants no more, or is
/// dead.
pub fn heard() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Counts the resources of this process that a dead peer could have left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belongings {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of memory that is shared between processes.
    pub shared_maps: usize,
}

impl Belongings {
    /// Counts them.
    pub fn count() -> Self {
        let entries = |dir| std::fs::read_dir(dir).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            shared_maps: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }

    /// Waits until there is nothing more than this, for threads may be on their way out.
    pub fn wait_for(self) {
        let mut found = Self::count();
        for _ in 0..500 {
            if found.is_within(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
            found = Self::count();
        }
        panic!("{found:?} are left where there were {self:?}");
    }

    fn is_within(self, most: Self) -> bool {
        self.descriptors <= most.descriptors && self.threads <= most.threads && self.shared_maps <= most.shared_maps
    }
}

/// Returns the memory in use by this process, in KiB.
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap()
}

/// Tests that count what the process holds take turns.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A small generator of numbers that look random (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

/// Scatters the bits of a number (the finish of splitmix64).
pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

//! Runs the command in a process of its own. The process is the test binary, which runs only the test `other_process`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::PATIENCE;

const ARGUMENTS: &str = "TRANSLOAD_TEST_ARGUMENTS";

/// Returns the arguments of the command, in the process of a [`Process`]; `None` elsewhere.
pub fn arguments() -> Option<Vec<OsString>> {
    let arguments = std::env::var(ARGUMENTS).ok()?;
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("a list");
    Some(arguments.into_iter().map(Into::into).collect())
}

/// A command that runs. It is killed when this is dropped.
pub struct Process {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    /// The lines that the process has written to stderr.
    said: Vec<String>,
}

impl Process {
    pub fn start(arguments: &[impl AsRef<str>]) -> Self {
        Self::start_in(arguments, &[])
    }

    pub fn start_in(arguments: &[impl AsRef<str>], environment: &[(&str, &str)]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env(ARGUMENTS, serde_json::to_string(&arguments).expect("a list of texts"))
            .env_remove("TRANSLOAD_LOG")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = mpsc::unbounded_channel();
        // What it says has to be read, or it would wait.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("{line}");
                let _ = sender.send(line);
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Waits for a line of stderr that begins with this text, or finds it among earlier ones.
    pub async fn hear(&mut self, begin: &str) -> String {
        loop {
            if let Some(line) = self.said.iter().find(|line| line.starts_with(begin)) {
                return line.clone();
            }
            match timeout(PATIENCE, self.lines.recv()).await {
                Ok(Some(line)) => self.said.push(line),
                _ => panic!("it says no {begin:?}: {:#?}", self.said),
            }
        }
    }

    /// Returns the addresses that serve clients, and the admin address.
    pub async fn addresses(&mut self) -> (Vec<SocketAddr>, Option<SocketAddr>) {
        let line = self.hear("listening on ").await;
        // All interfaces are the loopback interface, too.
        let local = |text: &str| {
            let address: SocketAddr = text.parse().expect("an address");
            SocketAddr::from(([127, 0, 0, 1], address.port()))
        };
        let line = line.strip_prefix("listening on ").expect("it begins so");
        let (clients, admin) = line.split_once(", admin on ").unzip();
        (clients.unwrap_or(line).split(' ').map(local).collect(), admin.map(local))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }

    /// Waits for the end. Returns the exit code and the lines of stderr.
    pub async fn ended(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => break status,
                None if Instant::now() > deadline => panic!("it does not end: {:#?}", self.said),
                None => sleep(Duration::from_millis(10)).await,
            }
        };
        while let Ok(Some(line)) = timeout(PATIENCE, self.lines.recv()).await {
            self.said.push(line);
        }
        // Errors are broken into lines for reading.
        let words = self.said.iter().flat_map(|line| line.split_whitespace()).filter(|word| *word != "│");
        (status.code(), words.collect::<Vec<_>>().join(" "))
    }

    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the resident memory, in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Returns how many files it has open, sockets among them.
    pub fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        files.map_or(0, Iterator::count)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

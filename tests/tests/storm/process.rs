//! The command as a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

const ARGUMENTS: &str = "TRANSLOAD_TEST_ARGUMENTS";

/// Runs the command as this process's arguments say, if they do.
pub(crate) fn run() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let arguments = arguments.into_iter().map(Into::into);
    std::process::exit(transload::command::run(Vec::new(), arguments).into());
}

/// A command that serves. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// Where clients connect.
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Process {
    pub(crate) fn start(arguments: &[String]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env(ARGUMENTS, serde_json::to_string(arguments).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let (clients, admin) = loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("it does not serve: {said:#?}");
            };
            if let Some((clients, admin)) =
                line.strip_prefix("listening on ").and_then(|line| line.split_once(", admin on "))
            {
                break (port(clients), port(admin));
            }
            said.push(line);
        };
        // What it says later has to be read, or it would wait.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        Self { child, clients, admin }
    }

    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// How many files it has open, sockets among them.
    pub(crate) fn open_files(&self) -> usize {
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

/// All interfaces are the loopback interface, too.
fn port(address: &str) -> SocketAddr {
    let address: SocketAddr = address.parse().unwrap();
    SocketAddr::from(([127, 0, 0, 1], address.port()))
}

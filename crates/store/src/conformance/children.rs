//! Each item in a process of its own.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::border::LOADS;
use super::chosen;
use super::item::{Item, Stop};
use super::options::Options;
use super::report::{Finding, Report, Verdict};

/// Runs every item in a child process, so that a library that crashes or hangs fails that item and no other.
///
/// `command` makes the command of a child, which runs the item of that name with
/// [`run_library_item`](super::run_library_item), the same options and the same seed, and prints
/// [`Finding::to_line`] on its stdout. It inherits stderr unless the command says otherwise: a library's own
/// words are shown. A child that takes longer than `limit` is killed. `found` hears each finding at once.
pub fn check_in_children(
    options: &Options,
    limit: Duration,
    command: &dyn Fn(&'static Item) -> Command,
    found: &mut dyn FnMut(&Finding),
) -> Report {
    let mut findings: Vec<Finding> = Vec::new();
    let mut unloadable = None;
    for item in chosen(options) {
        let finding = match &unloadable {
            Some(why) => Finding::new(item, Err(Stop::Skip(String::clone(why))), options),
            None => in_child(item, command(item), limit),
        };
        if item.name == LOADS && finding.verdict != Verdict::Pass {
            unloadable = Some("the library does not load or open".to_owned());
        }
        found(&finding);
        findings.push(finding);
    }
    Report::new(options.seed, findings)
}

fn in_child(item: &'static Item, mut command: Command, limit: Duration) -> Finding {
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            return Finding::dead(item, format!("its process could not be started: {error}"));
        }
    };
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut output = Vec::new();
        if let Some(mut stdout) = stdout {
            // What came before an error may still hold the finding.
            let _ = stdout.read_to_end(&mut output);
        }
        String::from_utf8_lossy(&output).into_owned()
    });
    let status = wait(&mut child, limit);
    if status.is_none() {
        // A process that the library started may hold the pipe open, so the reader is left to itself.
        let seen = format!(
            "it did not end within {} s and was killed",
            limit.as_secs_f32()
        );
        return Finding::dead(item, seen);
    }
    let output = reader.join().unwrap_or_default();
    match (Finding::from_output(item, &output), status) {
        // A finding counts only if the process also ended well: closing may crash after all was seen.
        (Some(finding), Some(status)) if status.success() => finding,
        (Some(finding), Some(status)) if finding.verdict == Verdict::Pass => {
            Finding::dead(item, format!("afterwards its process {}", ended(status)))
        }
        (Some(finding), _) => finding,
        (None, Some(status)) => Finding::dead(item, format!("its process {}", ended(status))),
        (None, None) => Finding::dead(item, "its process is gone".into()),
    }
}

/// Waits, and kills at the end of the time: then there is no status.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => {}
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal} ({})", signal_name(signal)),
        (None, Some(code)) => format!("exited with {code} and no finding"),
        (None, None) => "ended".into(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => {
            "SIGABRT: it aborted, as after an exception or a panic that crosses into C, or a \
                          buffer that free() does not know"
        }
        libc::SIGSEGV => "SIGSEGV: it touched memory that is not there",
        libc::SIGBUS => "SIGBUS: it touched memory that is not there",
        libc::SIGILL => "SIGILL: it ran into code that is none, as traps are",
        libc::SIGFPE => "SIGFPE: it divided by zero",
        libc::SIGTRAP => "SIGTRAP: it ran into a trap",
        libc::SIGKILL => "SIGKILL: it was killed, perhaps for its memory",
        libc::SIGPIPE => "SIGPIPE: it wrote to a closed pipe",
        _ => "see signal(7)",
    }
}

//! Each item in a process of its own.

use std::io::{ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
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
/// words are shown. A child that takes longer than `limit` is killed, which is a failure of any item; one that a
/// signal ends is a failure or a note, as its item is. `found` hears each finding at once.
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
            None => in_child(item, command(item), limit, options),
        };
        if item.name == LOADS && finding.verdict != Verdict::Pass {
            unloadable = Some("the library does not load or open".to_owned());
        }
        found(&finding);
        findings.push(finding);
    }
    Report::new(options.seed, findings)
}

fn in_child(
    item: &'static Item,
    mut command: Command,
    limit: Duration,
    options: &Options,
) -> Finding {
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            return Finding::untried(item, format!("its process could not be started: {error}"));
        }
    };
    let finding = child.stdout.take().map(|stdout| listen(item, stdout));
    let Some(status) = wait(&mut child, limit) else {
        let seen = format!(
            "it did not end within {} s and was killed",
            limit.as_secs_f32()
        );
        return Finding::untried(item, seen);
    };
    let finding = finding.and_then(|finding| finding.recv_timeout(GRACE).ok());
    let died = |seen: String| match status.signal() {
        // What killed it is what the item saw, and weighs as much as the item does.
        Some(_) => Finding::new(item, Err(Stop::Broken(seen)), options),
        None => Finding::untried(item, seen),
    };
    match finding {
        // A finding counts only if the process also ended well: closing may crash after all was seen.
        Some(finding) if !status.success() && finding.verdict == Verdict::Pass => {
            died(format!("afterwards its process {}", ended(status)))
        }
        Some(finding) => finding,
        None => died(format!("its process {}", ended(status))),
    }
}

/// How long to wait for a finding after its process has ended. It is in the pipe by then, so this is for a busy
/// machine, and for a pipe that something which the library started holds open: that one may never end.
const GRACE: Duration = Duration::from_secs(5);

/// How much of an unfinished line to keep. A finding is shorter by far; what a library prints may be anything.
const LONGEST: usize = 1 << 20;

/// Reads what a process prints in a thread of its own, and sends the finding as soon as its line is there. The
/// thread reads on to the end, so that nobody who prints more waits or is killed for it; it keeps none of that.
fn listen(item: &'static Item, mut stdout: impl Read + Send + 'static) -> Receiver<Finding> {
    let (found, finding) = channel();
    thread::spawn(move || {
        let mut search = Some(Search::default());
        let mut read = vec![0; 1 << 16];
        loop {
            match stdout.read(&mut read) {
                Ok(0) => break,
                Ok(len) => {
                    let more = search.as_mut();
                    if let Some(seen) = more.and_then(|search| search.add(item, &read[..len])) {
                        search = None;
                        // Nobody listens any more if its time was over.
                        let _ = found.send(seen);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    });
    finding
}

/// The search for a finding's line in what comes piece by piece.
#[derive(Default)]
struct Search {
    /// From the last mark on, or what may be the beginning of one.
    kept: Vec<u8>,
}

impl Search {
    fn add(&mut self, item: &'static Item, more: &[u8]) -> Option<Finding> {
        self.kept.extend_from_slice(more);
        let mark = Finding::MARK.as_bytes();
        loop {
            let Some(at) = self.kept.windows(mark.len()).position(|part| part == mark) else {
                let useless = self.kept.len().saturating_sub(mark.len() - 1);
                self.kept.drain(..useless);
                return None;
            };
            self.kept.drain(..at);
            match self.kept.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    let line = String::from_utf8_lossy(&self.kept[..end]);
                    if let Some(finding) = Finding::from_output(item, &line) {
                        return Some(finding);
                    }
                }
                None if self.kept.len() <= LONGEST => return None,
                None => {}
            }
            // It was none.
            self.kept.drain(..mark.len());
        }
    }
}

/// Waits, and kills at the end of the time: then there is no status.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    // A limit beyond what a clock can show is none.
    let until = Instant::now().checked_add(limit);
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if until.is_none_or(|until| Instant::now() < until) => {}
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

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;
    use crate::conformance::{Source, items};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn of(source: Source) -> &'static Item {
        items().find(|item| item.source == source).unwrap()
    }

    fn run(item: &'static Item, script: &str) -> Finding {
        let limit = Duration::from_secs(60);
        in_child(item, shell(script), limit, &Options::quick())
    }

    /// A script that prints a finding of this item.
    fn pass(item: &'static Item) -> String {
        let finding = Finding::new(item, Ok("well".into()), &Options::quick());
        format!("printf '%s\\n' '{}'", finding.to_line().trim_end())
    }

    #[test]
    fn a_signal_weighs_as_much_as_its_item() {
        for (source, verdict) in [
            (Source::Contract, Verdict::Fail),
            (Source::Ours, Verdict::Note),
        ] {
            let item = of(source);
            for before in [String::from(":"), pass(item)] {
                let finding = run(item, &format!("{before}; kill -SEGV $$"));
                assert_eq!(finding.verdict, verdict, "{}", finding.seen);
                assert!(finding.seen.contains("SIGSEGV"), "{}", finding.seen);
            }
            let strict = Options::quick().with_strict(true);
            let limit = Duration::from_secs(60);
            let finding = in_child(item, shell("kill -ABRT $$"), limit, &strict);
            assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        }
    }

    #[test]
    fn an_item_that_was_not_tried_fails() {
        let item = of(Source::Ours);
        let options = Options::quick();
        let nothing = Command::new("/nowhere/at/all");
        let finding = in_child(item, nothing, Duration::MAX, &options);
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        let limit = Duration::from_millis(50);
        let finding = in_child(item, shell("exec sleep 60"), limit, &options);
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        assert!(finding.seen.contains("did not end"), "{}", finding.seen);
        let finding = run(item, "exit 3");
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
    }

    #[test]
    fn a_limit_of_any_length_is_one() {
        let item = of(Source::Contract);
        for limit in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            let finding = in_child(item, shell(&pass(item)), limit, &Options::quick());
            assert_eq!(finding.verdict, Verdict::Pass, "{}", finding.seen);
        }
    }

    /// Without an end of the wait, both would take the ten minutes of the process that stays behind.
    #[test]
    fn who_keeps_the_pipe_open_is_not_waited_for() {
        let item = of(Source::Contract);
        let stays = "sleep 600 & echo $! >&2";
        for (script, verdict) in [
            (format!("{stays}; {}", pass(item)), Verdict::Pass),
            (format!("{stays}; exit 0"), Verdict::Fail),
        ] {
            let mut command = shell(&script);
            let mut pid = tempfile::tempfile().unwrap();
            command.stderr(pid.try_clone().unwrap());
            let finding = in_child(item, command, Duration::MAX, &Options::quick());
            assert_eq!(finding.verdict, verdict, "{}", finding.seen);
            let mut text = String::new();
            pid.seek(SeekFrom::Start(0)).unwrap();
            pid.read_to_string(&mut text).unwrap();
            assert!(shell(&format!("kill {text}")).status().unwrap().success());
        }
    }

    #[test]
    fn a_finding_is_found_in_any_noise_and_noise_is_not_kept() {
        let item = of(Source::Contract);
        let line = Finding::new(item, Ok("well".into()), &Options::quick()).to_line();
        let noise = [b'x'; 1 << 16];
        // In pieces of any length.
        for len in [1, 7, 64, 1000] {
            let mut search = Search::default();
            let output = [&noise[..100], line.as_bytes(), b"more"].concat();
            let found = output.chunks(len).find_map(|part| search.add(item, part));
            assert_eq!(found.unwrap().seen, "well", "{len}");
        }
        let mut search = Search::default();
        for _ in 0..64 {
            assert!(search.add(item, &noise).is_none());
            assert!(search.kept.len() < 100);
        }
        // After a mark that no line follows, not for ever; and a mark in the noise hides nothing.
        assert!(search.add(item, Finding::MARK.as_bytes()).is_none());
        for _ in 0..64 {
            assert!(search.add(item, &noise).is_none());
            assert!(search.kept.len() <= LONGEST);
        }
        assert!(search.add(item, Finding::MARK.as_bytes()).is_none());
        let found = search.add(item, line.as_bytes());
        assert_eq!(found.unwrap().seen, "well");
    }
}

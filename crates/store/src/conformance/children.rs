//! The parent's side of running each item in a process of its own.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::border::LOADS;
use super::item::Item;
use super::lines::{Message, Search, Task};
use super::options::Options;
use super::outcome::Stop;
use super::outcome::Verdict;
use super::report::{Finding, Report};
use super::run::chosen;
use crate::name::ManifestName;

/// Runs every item in a child process, so that a library that crashes or hangs fails that item and no other.
///
/// `command` returns the command of a child, which calls [`run_in_child`](super::run_in_child) with the item of that
/// name, the same options and the same seed. The child inherits stderr unless the command redirects it, so that the
/// library's messages are shown. A child that takes longer than `limit` is killed, which counts as a failure. One that
/// a signal ends counts as a failure or a note, depending on the item. The processes that a child started are killed
/// with it, unless they left its process group. If a child did not remove its manifests, another child does. `found` is
/// called with each finding at once.
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
            None => in_child(item, command, limit, options),
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
    command: &dyn Fn(&'static Item) -> Command,
    limit: Duration,
    options: &Options,
) -> Finding {
    let (mut finding, mut left) = match run(item, command(item), limit, &BTreeSet::new()) {
        Ok(ended) => (ended.finding(item, limit, options), ended.left),
        Err(error) => {
            let seen = format!("its process could not be started: {error}");
            return Finding::untried(item, seen);
        }
    };
    if !left.is_empty()
        && let Ok(ended) = run(item, command(item), CLEAN_UP, &left)
    {
        left = ended.left;
    }
    finding.left = left.into_iter().collect();
    finding
}

/// The time limit for removing the manifests that an item's process left. It is independent of the item's limit: on a
/// busy machine, the next process would be slow too.
const CLEAN_UP: Duration = Duration::from_secs(30);

/// The time to wait for a finding after its process has ended. The finding is in the pipe by then, so this only covers
/// a busy machine, and a pipe that a process started by the library holds open, maybe for ever.
const GRACE: Duration = Duration::from_secs(5);

struct Ended {
    /// None if it was killed because its time was up.
    status: Option<ExitStatus>,
    finding: Option<Finding>,
    /// Manifests that it may have put and has not removed.
    left: BTreeSet<ManifestName>,
}

impl Ended {
    fn finding(&self, item: &'static Item, limit: Duration, options: &Options) -> Finding {
        let Some(status) = self.status else {
            let seen = format!("it did not end within {} s and was killed", limit.as_secs_f32());
            return Finding::untried(item, seen);
        };
        let died = |seen: String| match status.signal() {
            // The signal is what the item observed, so it counts as the item does.
            Some(_) => Finding::new(item, Err(Stop::Broken(seen)), options),
            None => Finding::untried(item, seen),
        };
        match &self.finding {
            // A finding counts only if the process also ended well: it may crash while closing the store.
            Some(finding) if !status.success() && finding.verdict == Verdict::Pass => {
                died(format!("afterwards its process {}", described(status)))
            }
            Some(finding) => finding.clone(),
            None => died(format!("its process {}", described(status))),
        }
    }
}

/// Runs a child until it ends. It gets the task to remove these manifests, or to run its item if there are none.
fn run(
    item: &'static Item,
    mut command: Command,
    limit: Duration,
    remove: &BTreeSet<ManifestName>,
) -> io::Result<Ended> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A group of its own, so that the processes that it starts can be killed with it.
        .process_group(0);
    let mut child = command.spawn()?;
    let task = Task { remove: remove.iter().map(ManifestName::to_string).collect() };
    let _held = child.stdin.take().map(|stdin| hold(stdin, task.line()));
    let messages = child.stdout.take().map(listen);
    let mut ended = Ended { status: wait(&mut child, limit), finding: None, left: remove.clone() };
    let until = Instant::now() + GRACE;
    let left = || until.saturating_duration_since(Instant::now());
    while let Some(message) = messages.as_ref().and_then(|messages| messages.recv_timeout(left()).ok()) {
        match message {
            Message::Put(name) => ended.left.extend(ManifestName::new(name)),
            Message::Gone(name) => ended.left.retain(|left| left.as_str() != name),
            // It is the last report.
            Message::Finding { item: of, verdict, seen } if of == item.name => {
                ended.finding = Some(Finding { item, verdict, seen, left: Vec::new() });
                break;
            }
            Message::Finding { .. } => {}
        }
    }
    Ok(ended)
}

/// Sends the child its task, and keeps its stdin open until the returned value is dropped. If this process ends first,
/// in whatever way, the child reads the end of stdin and ends too.
fn hold(mut stdin: ChildStdin, task: String) -> Sender<()> {
    let (held, until) = channel::<()>();
    // Use a thread, because a child that does not read would block this one.
    thread::spawn(move || {
        let _ = stdin.write_all(task.as_bytes());
        let _ = until.recv();
    });
    held
}

/// Reads a process's stdout in a separate thread, and sends each report as soon as its line is complete. The thread
/// reads to the end, so that a process which prints more does not block. It discards other output.
fn listen(mut stdout: impl Read + Send + 'static) -> Receiver<Message> {
    let (teller, messages) = channel();
    thread::spawn(move || {
        let mut search = Search::default();
        let mut read = vec![0; 1 << 16];
        loop {
            match stdout.read(&mut read) {
                Ok(0) => break,
                Ok(len) => search.add(&read[..len], &mut |line| {
                    // The receiver is gone if the time was up.
                    let _ = teller.send(line);
                }),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    });
    messages
}

/// Waits for a child, and kills it when its time is up (no status). The rest of its group is killed in any case.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    // A limit beyond the range of the clock is no limit.
    let until = Instant::now().checked_add(limit);
    let mut pause = Duration::from_millis(1);
    let in_time = loop {
        match has_ended(child) {
            Ok(true) => break true,
            Ok(false) if until.is_none_or(|until| Instant::now() < until) => {}
            Ok(false) | Err(_) => break false,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    if let Ok(group) = libc::pid_t::try_from(child.id()) {
        // SAFETY: this is a system call on numbers. The group is the child's. The child has not been waited for, so its
        // number cannot have been reused.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    let status = child.wait();
    status.ok().filter(|_| in_time)
}

fn has_ended(child: &Child) -> io::Result<bool> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writes.
    match unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), how) } {
        // SAFETY: a zeroed `siginfo_t` is valid, and so is the one that was written.
        0 => Ok(unsafe { info.assume_init() }.si_signo != 0),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

fn described(status: ExitStatus) -> String {
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

    fn run_with(item: &'static Item, script: &str, limit: Duration, options: &Options) -> Finding {
        in_child(item, &|_| shell(script), limit, options)
    }

    fn run(item: &'static Item, script: &str) -> Finding {
        run_with(item, script, Duration::from_secs(60), &Options::quick())
    }

    fn pass(item: &'static Item) -> String {
        printed(&Message::Finding { item: item.name.to_owned(), verdict: Verdict::Pass, seen: "well".to_owned() })
    }

    fn printed(message: &Message) -> String {
        format!("printf '%s\\n' '{}'", message.line().trim_end())
    }

    fn gone(name: &ManifestName) -> String {
        printed(&Message::Gone(name.to_string()))
    }

    fn put(name: &ManifestName) -> String {
        printed(&Message::Put(name.to_string()))
    }

    #[test]
    fn a_signal_weighs_as_much_as_its_item() {
        for (source, verdict) in [(Source::Contract, Verdict::Fail), (Source::Ours, Verdict::Note)] {
            let item = of(source);
            for before in [String::from(":"), pass(item)] {
                let finding = run(item, &format!("{before}; kill -SEGV $$"));
                assert_eq!(finding.verdict, verdict, "{}", finding.seen);
                assert!(finding.seen.contains("SIGSEGV"), "{}", finding.seen);
            }
            let strict = Options { strict: true, ..Options::quick() };
            let finding = run_with(item, "kill -ABRT $$", Duration::from_secs(60), &strict);
            assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        }
    }

    #[test]
    fn an_item_that_was_not_tried_fails() {
        let item = of(Source::Ours);
        let options = Options::quick();
        let nothing = |_| Command::new("/nowhere/at/all");
        let finding = in_child(item, &nothing, Duration::MAX, &options);
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        let limit = Duration::from_millis(50);
        let finding = run_with(item, "exec sleep 60", limit, &options);
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
        assert!(finding.seen.contains("did not end"), "{}", finding.seen);
        let finding = run(item, "exit 3");
        assert_eq!(finding.verdict, Verdict::Fail, "{}", finding.seen);
    }

    #[test]
    fn a_limit_of_any_length_is_one() {
        let item = of(Source::Contract);
        for limit in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            let finding = run_with(item, &pass(item), limit, &Options::quick());
            assert_eq!(finding.verdict, Verdict::Pass, "{}", finding.seen);
        }
    }

    /// The end of stderr shows that no process is left that could write to it. Otherwise reading takes ten minutes.
    #[test]
    fn what_a_child_has_started_ends_with_it() {
        let item = of(Source::Contract);
        for (script, limit, verdict) in [
            (format!("sleep 600 & {}", pass(item)), Duration::MAX, Verdict::Pass),
            ("sleep 600 & kill -SEGV $$".to_owned(), Duration::MAX, Verdict::Fail),
            ("sleep 600 & sleep 600".to_owned(), Duration::from_millis(50), Verdict::Fail),
        ] {
            let (mut reader, writer) = io::pipe().unwrap();
            let command = |_: &'static Item| {
                let mut command = shell(&script);
                command.stderr(writer.try_clone().unwrap());
                command
            };
            let finding = in_child(item, &command, limit, &Options::quick());
            assert_eq!(finding.verdict, verdict, "{}", finding.seen);
            drop(writer);
            reader.read_to_end(&mut Vec::new()).unwrap();
        }
    }

    /// Without an end of the wait, both would take the ten minutes of the process that has left the group.
    #[test]
    fn who_keeps_the_pipe_open_is_not_waited_for() {
        let item = of(Source::Contract);
        if !shell("setsid true").status().is_ok_and(|s| s.success()) {
            println!("NOT RUN: there is no setsid");
            return;
        }
        // The script continues when that process has left the group, which is killed then.
        let stays = "setsid sh -c 'echo $$ > \"$PID\"; exec sleep 600' & \
                     until [ -s \"$PID\" ]; do sleep 0.01; done";
        for (script, verdict) in
            [(format!("{stays}; {}", pass(item)), Verdict::Pass), (format!("{stays}; exit 0"), Verdict::Fail)]
        {
            let folder = tempfile::tempdir().unwrap();
            let pid = folder.path().join("pid");
            let command = |_: &'static Item| {
                let mut command = shell(&script);
                command.env("PID", &pid);
                command
            };
            let finding = in_child(item, &command, Duration::MAX, &Options::quick());
            assert_eq!(finding.verdict, verdict, "{}", finding.seen);
            let pid = std::fs::read_to_string(&pid).unwrap();
            assert!(shell(&format!("kill {pid}")).status().unwrap().success());
        }
    }

    #[test]
    fn what_is_left_is_removed_by_a_further_child_or_told() {
        let item = of(Source::Contract);
        let names = ["one", "two\n", ""].map(|name| ManifestName::new(name).unwrap());
        let [one, two, empty] = &names;
        let puts: Vec<_> = names.iter().map(put).collect();
        let script = format!(
            "read -r task; case \"$task\" in \
             *'[]'*) {}; {}; kill -SEGV $$;; \
             *) {};; esac",
            puts.join("; "),
            gone(one),
            gone(empty),
        );
        let finding = run(item, &script);
        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.seen.contains("SIGSEGV"), "{}", finding.seen);
        assert_eq!(finding.left, std::slice::from_ref(two));
    }

    #[test]
    fn what_is_left_is_removed_whatever_the_limit_of_an_item_is() {
        let item = of(Source::Contract);
        let name = ManifestName::new("one").unwrap();
        let script = format!(
            "read -r task; case \"$task\" in \
             *'[]'*) {}; exec sleep 600;; \
             *) sleep 2; {};; esac",
            put(&name),
            gone(&name),
        );
        let finding = run_with(item, &script, Duration::from_secs(1), &Options::quick());
        assert!(finding.seen.contains("did not end"), "{}", finding.seen);
        assert!(finding.left.is_empty(), "{:?}", finding.left);
    }
}

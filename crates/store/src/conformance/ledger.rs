//! The manifests that a child process may have put. They are removed even if the process dies.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::lines::{Message, Task};
use crate::name::ManifestName;

/// Set in a child process: the manifests that it may have put.
static CHILD: OnceLock<Mutex<Vec<ManifestName>>> = OnceLock::new();

/// Held for reading during every put of a manifest, and for writing once none may be put any more.
static GATE: RwLock<()> = RwLock::new(());

/// Returns a guard to hold while a manifest is put. Blocks for ever if this process is about to end.
pub(super) fn gate() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn may_put(name: &ManifestName) {
    if let Some(names) = CHILD.get() {
        names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        // An error means that the parent has ended.
        let _ = tell(&Message::Put(name.to_string()));
    }
}

pub(super) fn has_removed(name: &ManifestName) {
    if CHILD.get().is_some() {
        let _ = tell(&Message::Gone(name.to_string()));
    }
}

/// The environment variable that makes a process the writer which another process kills. Its value says what to write.
const WRITES: &str = "TRANSLOAD_CHECK_WRITES";

/// Returns what this process should write, if it is a writer.
pub(super) fn writers_task() -> Option<String> {
    std::env::var(WRITES).ok()
}

/// Starts a copy of this child process, which runs the same item with this task. Returns `None` outside of a child,
/// because only a child's command line is known to run an item.
pub(super) fn start_writer(task: &str) -> Option<io::Result<Child>> {
    CHILD.get()?;
    // Use the original command: a Python of a virtual environment finds its packages by that path, not by the link's
    // target.
    let mut started_as = std::env::args_os();
    let mut command = Command::new(started_as.next()?);
    command.args(started_as).env(WRITES, task).stdin(Stdio::piped()).stdout(Stdio::piped());
    Some(command.spawn().and_then(|mut child| {
        if let Some(stdin) = &mut child.stdin {
            let task = Task { remove: Vec::new() };
            stdin.write_all(task.line().as_bytes())?;
        }
        Ok(child)
    }))
}

pub(super) fn tell(message: &Message) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(message.line().as_bytes())?;
    stdout.flush()
}

pub(super) fn begin() {
    CHILD.get_or_init(Mutex::default);
}

/// Waits until no manifest is being put, prevents further puts, and returns those that may have been put.
pub(super) fn close() -> (RwLockWriteGuard<'static, ()>, Vec<ManifestName>) {
    let closed = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let names = CHILD.get().map(|names| {
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.clone()
    });
    (closed, names.unwrap_or_default())
}

//! What this process has put, if it is one of an item, so that somebody removes it whatever becomes of this process.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::lines::{Task, Told};
use crate::name::ManifestName;

/// In a process of an item: the manifests that it may have put.
static CHILD: OnceLock<Mutex<Vec<ManifestName>>> = OnceLock::new();

/// Held to read by whoever puts a manifest, and to write from the moment on when none may be put any more.
static GATE: RwLock<()> = RwLock::new(());

/// To be held while a manifest is put. Does not return when this process is about to end.
pub(super) fn gate() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A manifest of this name may be put.
pub(super) fn may_put(name: &ManifestName) {
    if let Some(names) = CHILD.get() {
        names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        // Whoever does not listen any more has ended.
        let _ = tell(&Told::Put(name.to_string()));
    }
}

/// It has been removed.
pub(super) fn has_removed(name: &ManifestName) {
    if CHILD.get().is_some() {
        let _ = tell(&Told::Gone(name.to_string()));
    }
}

/// Tells a process that it writes what another one reads when it was killed, and what.
const WRITES: &str = "TRANSLOAD_CHECK_WRITES";

/// What this process is to write.
pub(super) fn writers_task() -> Option<String> {
    std::env::var(WRITES).ok()
}

/// Starts the same child once more, which runs the same item with this task. `None` outside of a child: only there it is
/// known what this process was started as.
pub(super) fn start_writer(task: &str) -> Option<io::Result<Child>> {
    CHILD.get()?;
    // As it was started: a Python of a virtual environment finds its packages by that path, not by the one that it leads to.
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

pub(super) fn tell(told: &Told) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(told.line().as_bytes())?;
    stdout.flush()
}

/// Makes this process one of an item.
pub(super) fn begin() {
    CHILD.get_or_init(Mutex::default);
}

/// Waits until nobody puts a manifest, lets nobody put one any more, and returns those that may have been put.
pub(super) fn close() -> (RwLockWriteGuard<'static, ()>, Vec<ManifestName>) {
    let closed = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let names = CHILD.get().map(|names| {
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.clone()
    });
    (closed, names.unwrap_or_default())
}

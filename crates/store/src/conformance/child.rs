//! The child's side of running each item in a process of its own.

use std::fmt;
use std::io::{self, BufRead};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::item::Item;
use super::ledger::{self, tell};
use super::lines::{Message, Task};
use super::options::Options;
use super::run::{run_found_item, run_item, run_library_item};
use crate::backend::Backend;
use crate::error::StoreError;
use crate::loader::Library;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// The backend or library to check.
pub enum Subject {
    /// A backend in Rust. Items of the [C border](Item::border) are skipped.
    Backend(Box<dyn Fn() -> Result<Arc<dyn Backend>, StoreError> + Send + Sync>),
    /// The library in this file, under any name.
    File(PathBuf, StoreUri),
    /// The library of the URI's scheme, searched where the system looks.
    System(StoreUri),
}

impl Subject {
    fn open(&self) -> Result<Arc<dyn Backend>, StoreError> {
        match self {
            Self::Backend(open) => open(),
            Self::File(path, uri) => Ok(Arc::new(Library::load(path)?.open(uri)?)),
            Self::System(uri) => Ok(Arc::new(Library::find(uri.scheme())?.open(uri)?)),
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend(_) => f.write_str("Backend(..)"),
            Self::File(path, uri) => f.debug_tuple("File").field(path).field(uri).finish(),
            Self::System(uri) => f.debug_tuple("System").field(uri).finish(),
        }
    }
}

/// Runs one item in a child process that [`check_in_children`](super::check_in_children) has started for it, and
/// reports to the parent on stdout.
///
/// When the parent ends, the child removes its manifests and ends, with every process of its group.
///
/// # Errors
/// Errors of writing to stdout.
pub fn run_in_child(item: &'static Item, subject: Subject, options: &Options) -> Result<(), io::Error> {
    let subject = Arc::new(subject);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let Some(Task { remove }) = Task::read(&line) else {
        // The parent has ended. It could neither stop this process if the item hangs nor remove what it leaves.
        return Ok(());
    };
    end_with_parent(Arc::clone(&subject));
    if !remove.is_empty() {
        let names: Vec<_> = remove.into_iter().flat_map(ManifestName::new).collect();
        clean_up(&subject, &names);
        return Ok(());
    }
    ledger::begin();
    let finding = match &*subject {
        Subject::Backend(open) => run_item(item, &**open, options),
        Subject::File(path, uri) => run_library_item(item, path, uri, options),
        Subject::System(uri) => run_found_item(item, uri, options),
    };
    tell(&Message::Finding { item: finding.item.name.to_owned(), verdict: finding.verdict, seen: finding.seen })
}

fn clean_up(subject: &Subject, names: &[ManifestName]) {
    let Ok(store) = subject.open() else {
        return;
    };
    for name in names {
        if store.delete_manifest(name).is_ok() {
            let _ = tell(&Message::Gone(name.to_string()));
        }
    }
}

/// The time that this process has to remove its manifests after the parent has ended.
const CLEAN_UP_TIME: Duration = Duration::from_secs(10);

/// Starts a thread that ends this process when the parent ends, which closes stdin.
fn end_with_parent(subject: Arc<Subject>) {
    thread::spawn(move || {
        // Nothing follows the task on stdin, so this waits for its end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        thread::spawn(|| {
            thread::sleep(CLEAN_UP_TIME);
            end_group();
        });
        let (_closed, names) = ledger::close();
        let _ = catch_unwind(AssertUnwindSafe(|| clean_up(&subject, &names)));
        end_group();
    });
}

/// Ends this process, and those that it started if it leads their process group.
fn end_group() {
    // SAFETY: these are system calls on numbers. `_exit` runs no exit handlers of the library.
    unsafe {
        if libc::getpgrp() == libc::getpid() {
            libc::kill(0, libc::SIGKILL);
        }
        libc::_exit(1);
    }
}

//! Each item in a process of its own: the side of that process.

use std::fmt;
use std::io::{self, BufRead};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::item::Item;
use super::ledger::{self, tell};
use super::lines::{Task, Told};
use super::options::Options;
use super::run::{run_found_item, run_item, run_library_item};
use crate::backend::Backend;
use crate::error::StoreError;
use crate::loader::Library;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// What an item is run on.
pub enum Subject {
    /// A backend in Rust. Items of the [C border](Item::border) are skipped.
    Backend(Box<dyn Fn() -> Result<Arc<dyn Backend>, StoreError> + Send + Sync>),
    /// The library in a file, whatever its name is.
    File(PathBuf, StoreUri),
    /// The library of the URI's scheme, where the system finds it.
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

/// Runs one item in a process that [`check_in_children`](super::check_in_children) has started for it and
/// nothing else, and tells that one on stdout what it waits for.
///
/// When the other one ends, this one removes its manifests and ends, with every process of its group.
///
/// # Errors
/// Those of writing to stdout.
pub fn run_in_child(item: &'static Item, subject: Subject, options: &Options) -> Result<(), io::Error> {
    let subject = Arc::new(subject);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let Some(Task { remove }) = Task::read(&line) else {
        // Whoever started it has ended, and nobody would end this one if the item hung, nor remove what it left.
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
    tell(&Told::Finding { item: finding.item.name.to_owned(), verdict: finding.verdict, seen: finding.seen })
}

fn clean_up(subject: &Subject, names: &[ManifestName]) {
    let Ok(store) = subject.open() else {
        return;
    };
    for name in names {
        if store.delete_manifest(name).is_ok() {
            let _ = tell(&Told::Gone(name.to_string()));
        }
    }
}

/// How long this process goes on after the one that started it, to remove its manifests.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for the end of the process that started this one, which is the end of stdin.
fn end_with_parent(subject: Arc<Subject>) {
    thread::spawn(move || {
        // More than a task is not told.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        thread::spawn(|| {
            thread::sleep(PATIENCE);
            end_group();
        });
        let (_closed, names) = ledger::close();
        let _ = catch_unwind(AssertUnwindSafe(|| clean_up(&subject, &names)));
        end_group();
    });
}

/// Ends this process, and those that it started where it leads their group.
fn end_group() {
    // SAFETY: system calls on numbers. `_exit` runs nothing of what the library has registered.
    unsafe {
        if libc::getpgrp() == libc::getpid() {
            libc::kill(0, libc::SIGKILL);
        }
        libc::_exit(1);
    }
}

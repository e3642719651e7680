//! A bounded number of open pack files.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, File, How};
use super::paths::PackId;

/// The maximum number of open packs. A process has 1,024 file descriptors by default, and may have several handles.
const OPEN: usize = 64;

#[derive(Debug)]
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// The files, each with the number of the call that used it last.
    files: HashMap<PackId, (Arc<dyn File>, u64)>,
    calls: u64,
    /// The store's generation when removed files were last closed.
    stamp: Option<[u8; 16]>,
}

impl Files {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, open: Mutex::default() }
    }

    pub(super) fn get(&self, id: &PackId) -> io::Result<Arc<dyn File>> {
        {
            let mut open = self.lock();
            open.calls += 1;
            let calls = open.calls;
            if let Some((file, used)) = open.files.get_mut(id) {
                *used = calls;
                return Ok(file.clone());
            }
        }
        let path = id.path();
        let file = self.disk.open(&path, How::Read).or_else(|error| {
            let none_left = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
                .iter()
                .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
            if !none_left {
                return Err(error);
            }
            // Out of file descriptors: close all of ours and try again.
            self.keep(|_| false);
            self.disk.open(&path, How::Read)
        })?;
        let file: Arc<dyn File> = file.into();
        let mut open = self.lock();
        if open.files.len() >= OPEN
            && let Some(oldest) = open.oldest()
        {
            open.files.remove(&oldest);
        }
        let calls = open.calls;
        open.files.insert(*id, (file.clone(), calls));
        Ok(file)
    }

    /// Closes files that were removed from the store, if the generation has changed since the last call.
    pub(super) fn close_gone(&self, stamp: [u8; 16]) {
        let mut open = self.lock();
        if open.stamp.replace(stamp) != Some(stamp) {
            let linked = |file: &Arc<dyn File>| file.stat().is_ok_and(|stat| stat.linked);
            open.files.retain(|_, (file, _)| linked(file));
        }
    }

    pub(super) fn keep(&self, keep: impl Fn(&PackId) -> bool) {
        self.lock().files.retain(|id, _| keep(id));
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn oldest(&self) -> Option<PackId> {
        let files = self.files.iter();
        files.min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id)
    }
}

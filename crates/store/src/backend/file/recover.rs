//! Recovery of what other handles left unfinished, because they died or the disk failed.
//!
//! A failed flush may have lost data, and the next flush succeeds without it. So recovery never flushes a file again as
//! it is: it changes the file once more and flushes that. All of it happens while no process publishes.

use std::collections::{BTreeSet, HashSet};
use std::io;

use super::FileStore;
use super::disk::How;
use super::paths::{self, PackId};
use crate::error::StoreError;

impl FileStore {
    /// Recovers on opening, if no process publishes or collects at the moment.
    pub(super) fn tidy(&self) -> Result<(), StoreError> {
        match self.locks.try_collecting()? {
            Some(_held) => {
                if !self.index.generation_is_whole() {
                    self.index.announce()?;
                }
                self.recover(false)
            }
            None => Ok(()),
        }
    }

    /// Makes everything visible durable. Call it before a removal: what is visible may be needed after a loss of power.
    pub(super) fn recover(&self, everywhere: bool) -> Result<(), StoreError> {
        self.sweep(everywhere)?;
        self.settle_packs()
    }

    /// Removes temporary files of dead owners, and repairs the manifests that they announced to change. With
    /// `everywhere` it also searches, which takes time, for manifests that a loss of power left away from their places
    /// without an intent.
    fn sweep(&self, everywhere: bool) -> Result<(), StoreError> {
        let failed = || StoreError::io(format!("tidy up {}", paths::TEMPORARY));
        let (mut unsure, mut intents) = (BTreeSet::new(), Vec::new());
        for name in self.disk.list(paths::TEMPORARY).map_err(failed())? {
            let path = format!("{}/{name}", paths::TEMPORARY);
            if let Some(manifest) = paths::intended(&name) {
                unsure.insert(manifest);
                intents.push(path);
                continue;
            }
            // It has been removed already, or is not one of the store's files.
            let Ok(file) = self.disk.open(&path, How::Write) else {
                continue;
            };
            if file.try_lock().map_err(failed())? {
                self.space.remove(&path)?;
            }
        }
        if everywhere {
            for folder in paths::manifest_folders() {
                let names = self.disk.list(&folder);
                let names = names.map_err(StoreError::io(format!("list {folder}")))?;
                let places = names.iter().filter_map(|name| {
                    let place = paths::place_of(&folder, name)?;
                    (place != name).then(|| format!("{folder}/{place}"))
                });
                unsure.extend(places);
            }
        }
        let mut folders = BTreeSet::new();
        for manifest in &unsure {
            self.put_again(manifest)?;
            folders.insert(paths::folder_of(manifest));
        }
        for folder in folders {
            let flushed = self.disk.sync_folder(folder);
            flushed.map_err(StoreError::io(format!("flush {folder}")))?;
        }
        for path in intents {
            self.disk.unlink(&path).map_err(failed())?;
        }
        Ok(())
    }

    /// Publishes each pack that was moved but not flushed, or not marked as durable, again under another name.
    fn settle_packs(&self) -> Result<(), StoreError> {
        let failed = |path: &str| StoreError::io(format!("publish {path} once more"));
        let mut unsettled = Vec::new();
        for folder in paths::pack_folders() {
            let names = self.disk.list(&folder).map_err(failed(&folder))?;
            let packs: HashSet<PackId> = names.iter().filter_map(|name| PackId::of_file(&folder, name)).collect();
            // Leave anything but regular files for verifying to report.
            unsettled.extend(packs.iter().map(PackId::path).filter(|path| {
                let stat = self.disk.stat(path);
                stat.is_ok_and(|stat| !stat.settled && stat.regular)
            }));
            let notes = names.iter().filter_map(|name| PackId::of_note(&folder, name));
            for (id, hash) in notes.filter(|(id, _)| !packs.contains(id)) {
                let _ = self.disk.unlink(&id.note(&hash));
            }
        }
        unsettled.sort_unstable();
        let mut durable = Vec::new();
        for path in unsettled {
            let file = self.disk.open(&path, How::Read).map_err(failed(&path))?;
            let new = PackId::random().map_err(failed(&path))?;
            // Keep both names until the new one is announced: a reader that lists the folders and finds neither sees
            // that the generation has changed. Without hard links, a reader may miss the pack.
            self.disk
                .link(&path, &new.path())
                .or_else(|_| self.disk.rename(&path, &new.path()))
                .and_then(|()| self.disk.sync_folder(&new.folder()))
                .map_err(failed(&path))?;
            self.index.announce()?;
            // No space is reclaimed, since the file stays.
            self.space.shrink(|| match self.disk.unlink(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
                _ => Ok(0),
            })?;
            durable.push((path, file));
        }
        // Settle at the end: two names may belong to one file, which has one mode.
        for (path, file) in durable {
            match file.settle() {
                // The file belongs to another user. It is durable, but other handles do not rely on it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other.map_err(failed(&path))?,
            }
        }
        Ok(())
    }
}

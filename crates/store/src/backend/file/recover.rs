//! What others left unfinished, because they died or because the disk failed them.
//!
//! A flush that failed may have lost what it should have written, and the next one succeeds without it. So nothing
//! here is flushed again as it is: it is changed once more, and that is flushed. All of it happens while nobody
//! publishes.

use std::collections::{BTreeSet, HashSet};
use std::io;

use super::FileStore;
use super::disk::How;
use super::paths::{self, PackId};
use crate::error::StoreError;

impl FileStore {
    /// Finishes or removes what dead owners left, if nobody publishes or collects just now. Called on opening.
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

    /// Makes what can be seen durable. Before anything is removed that something else, which may come back after a
    /// loss of power, needs.
    pub(super) fn recover(&self, everywhere: bool) -> Result<(), StoreError> {
        self.sweep(everywhere)?;
        self.settle_packs()
    }

    /// Removes temporary files whose owners are dead, and makes sure of what they meant to change.
    /// A loss of power may have left a manifest away without an intent; looking for those `everywhere` takes its time.
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
            // Gone already, or no file of ours.
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

    /// Publishes once more, under another name, what somebody moved to its place and did not come to flush, or to
    /// say that he did.
    fn settle_packs(&self) -> Result<(), StoreError> {
        let failed = |path: &str| StoreError::io(format!("publish {path} once more"));
        let mut unsettled = Vec::new();
        for folder in paths::pack_folders() {
            let names = self.disk.list(&folder).map_err(failed(&folder))?;
            let packs: HashSet<PackId> = names.iter().filter_map(|name| PackId::of_file(&folder, name)).collect();
            // What is no file is for verifying to find.
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
            // It has both names until everybody has been told of the new one: who lists the folders meanwhile, and
            // finds neither, finds that the generation has changed. Where there are no links, he may be unlucky.
            self.disk
                .link(&path, &new.path())
                .or_else(|_| self.disk.rename(&path, &new.path()))
                .and_then(|()| self.disk.sync_folder(&new.folder()))
                .map_err(failed(&path))?;
            self.index.announce()?;
            // Nothing is given back: the file stays.
            self.space.shrink(|| match self.disk.unlink(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
                _ => Ok(0),
            })?;
            durable.push((path, file));
        }
        // At the end: two of them may be names of one file, which has one mode.
        for (path, file) in durable {
            match file.settle() {
                // Another user's file: it is durable, and stays one that nobody relies on.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other.map_err(failed(&path))?,
            }
        }
        Ok(())
    }
}

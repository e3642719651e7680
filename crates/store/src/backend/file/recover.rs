//! What others left unfinished, because they died or because the disk failed them.
//!
//! A flush that failed may have lost what it should have written, and the next one succeeds without it. So nothing
//! here is flushed again as it is: it is changed once more, and that is flushed. All of it happens while nobody
//! publishes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use super::FileStore;
use super::disk::How;
use super::paths::{self, PackId};
use super::pending::create_temporary;
use crate::error::StoreError;

impl FileStore {
    /// Finishes or removes what dead owners left, if nobody publishes or collects just now. Called on opening.
    pub(super) fn tidy(&self) -> Result<(), StoreError> {
        match self.locks.try_collecting()? {
            Some(_held) => {
                if !self.index.generation_is_whole() {
                    self.index.announce()?;
                }
                self.recover()
            }
            None => Ok(()),
        }
    }

    /// Makes what can be seen durable. Before anything is removed that something else, which may come back after a
    /// loss of power, needs.
    pub(super) fn recover(&self) -> Result<(), StoreError> {
        self.sweep()?;
        self.settle_packs()
    }

    /// Removes temporary files whose owners are dead, and makes sure of what they meant to change.
    fn sweep(&self) -> Result<(), StoreError> {
        let failed = || StoreError::io(format!("tidy up {}", paths::TEMPORARY));
        let mut intents: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.disk.list(paths::TEMPORARY).map_err(failed())? {
            let path = format!("{}/{name}", paths::TEMPORARY);
            // Those of before the system was started: what can be seen since is durable.
            if let Some(manifest) = paths::intended(&name, self.disk.boot()) {
                intents.entry(manifest).or_default().push(path);
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
        let mut folders = BTreeSet::new();
        for manifest in intents.keys() {
            self.make_sure(manifest)?;
            folders.insert(paths::folder_of(manifest));
        }
        for folder in folders {
            let flushed = self.disk.sync_folder(folder);
            flushed.map_err(StoreError::io(format!("flush {folder}")))?;
        }
        for path in intents.into_values().flatten() {
            self.disk.unlink(&path).map_err(failed())?;
        }
        Ok(())
    }

    /// Puts what is in a manifest's place there once more; the next flush of its folder makes that durable. What has
    /// no room a second time under the cap goes, as other manifests go for the cap.
    fn make_sure(&self, path: &str) -> Result<(), StoreError> {
        let failed = || StoreError::io(format!("publish {path} once more"));
        let file = match self.disk.open(path, How::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // What is no file is for verifying to find.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(()),
            other => Some(other.map_err(failed())?),
        };
        if let Some(file) = file {
            let modified = file.stat().map_err(failed())?.modified;
            let bytes = file.read_all().map_err(failed())?;
            if !bytes.is_empty() && self.put_again(path, &bytes, modified)? {
                return Ok(());
            }
        }
        self.erase(path).map(drop)
    }

    fn put_again(
        &self,
        path: &str,
        bytes: &[u8],
        modified: std::time::SystemTime,
    ) -> Result<bool, StoreError> {
        let failed = || StoreError::io(format!("publish {path} once more"));
        let (copy, file) = create_temporary(&*self.disk, "manifest")?;
        let put = (|| {
            if !self.space.grow(&*file, 0, bytes.len() as u64)? {
                return Ok(false);
            }
            file.write_all_at(bytes, 0).map_err(failed())?;
            file.sync().map_err(failed())?;
            let _ = file.touch(modified);
            self.replace(&copy, path)?;
            Ok(true)
        })();
        if !matches!(put, Ok(true)) {
            let _ = self.space.remove(&copy);
        }
        put
    }

    /// Removes a manifest's file and says how long it was. If there is none, an empty file, which is no manifest, takes
    /// its place first: whoever removed it may have failed to flush that, and only a change is flushed.
    pub(super) fn erase(&self, path: &str) -> Result<u64, StoreError> {
        let freed = self.space.remove(path)?;
        if freed == 0 {
            let (empty, _file) = create_temporary(&*self.disk, "manifest")?;
            self.replace(&empty, path)?;
            self.space.remove(path)?;
        }
        Ok(freed)
    }

    /// Moves a file to the place of a manifest.
    pub(super) fn replace(&self, from: &str, path: &str) -> Result<u64, StoreError> {
        self.space.shrink(|| {
            let before = self.disk.stat(path).map_or(0, |stat| stat.len);
            let moved = self.disk.rename(from, path);
            moved.map_err(StoreError::io(format!("move {from} to {path}")))?;
            Ok(before)
        })
    }

    /// Publishes once more, under another name, what somebody moved to its place and did not come to flush, or to
    /// say that he did.
    fn settle_packs(&self) -> Result<(), StoreError> {
        let failed = |path: &str| StoreError::io(format!("publish {path} once more"));
        let mut unsettled = Vec::new();
        for folder in paths::pack_folders() {
            let names = self.disk.list(&folder).map_err(failed(&folder))?;
            let packs: HashSet<PackId> = names
                .iter()
                .filter_map(|name| PackId::of_file(&folder, name))
                .collect();
            // What is no file is for verifying to find.
            unsettled.extend(packs.iter().map(PackId::path).filter(|path| {
                let stat = self.disk.stat(path);
                stat.is_ok_and(|stat| !stat.settled && stat.regular)
            }));
            let notes = names
                .iter()
                .filter_map(|name| PackId::of_note(&folder, name));
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

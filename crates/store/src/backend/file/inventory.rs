//! The operator's interface of a file store.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;

use super::disk::{File, is_bad_block};
use super::format::manifest::Manifest;
use super::format::pack::Entry;
use super::{FileStore, format, paths};
use crate::backend::{ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

type OpenManifest = (Box<dyn File>, Vec<u8>);

impl FileStore {
    pub(super) fn each_manifest_path(
        &self,
        progress: &mut dyn FnMut(Progress),
        visit: &mut dyn FnMut(&str) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut paths = Vec::new();
        for folder in paths::manifest_folders() {
            let names = self.disk.list(&folder);
            let names = names.map_err(StoreError::io(format!("list {folder}")))?;
            for name in &names {
                let place = paths::place_of(&folder, name);
                // A manifest may be away from its place while it is changed. Count it once.
                if let Some(place) = place
                    && (place == name || !names.iter().any(|other| other == place))
                {
                    paths.push(format!("{folder}/{place}"));
                }
            }
        }
        for (n, path) in paths.iter().enumerate() {
            progress(Progress { step: "reading manifests", done: n as u64, total: paths.len() as u64 });
            visit(path)?;
        }
        Ok(())
    }

    fn manifest_file(&self, path: &str) -> Result<Option<OpenManifest>, StoreError> {
        let read = self.open_manifest(path);
        match read.and_then(|file| Ok((file.read_all(format::manifest::LONGEST)?, file))) {
            Ok((bytes, file)) => Ok(Some((file, bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(format!("read {path}"))(error)),
        }
    }

    fn verify_chunks(
        &self,
        progress: &mut dyn FnMut(Progress),
        fault: &mut dyn FnMut(Fault),
    ) -> Result<(), StoreError> {
        let chunks = self.index.chunks();
        let places = || chunks.iter().flat_map(|(hash, all)| all.iter().map(move |p| (hash, p)));
        let mut found = false;
        let total = places().map(|(_, place)| place.len).sum();
        let mut done = 0;
        // Read in the order of the bytes on the disk, which is fastest.
        let mut places: Vec<_> = places().collect();
        places.sort_unstable_by_key(|(_, place)| (place.pack.id, place.offset));
        for (hash, place) in places {
            progress(Progress { step: "reading chunks", done, total });
            done += place.len;
            let entry = Entry { hash: *hash, offset: place.offset, len: place.len, checksum: place.checksum };
            match self.index.read_entry(&place.pack, &entry) {
                Err(StoreError::Damaged { what, how }) => {
                    found |= self.index.note_damage(&place.pack, hash);
                    fault(Fault { what, how });
                }
                // The pack was collected meanwhile. That is no fault.
                Ok(_) => {}
                Err(error) if is_unreadable(&error) => {
                    fault(Fault { what: format!("chunk {hash}"), how: error.to_string() })
                }
                Err(error) => return Err(error),
            }
        }
        if found {
            // A store that is not writable can still be verified.
            let _ = self.index.announce();
        }
        Ok(())
    }

    fn verify_manifests(
        &self,
        progress: &mut dyn FnMut(Progress),
        fault: &mut dyn FnMut(Fault),
    ) -> Result<(), StoreError> {
        let mut missing: HashMap<ChunkHash, String> = HashMap::new();
        self.each_manifest_path(progress, &mut |path| {
            let bytes = match self.manifest_file(path) {
                Ok(Some((_, bytes))) => bytes,
                Ok(None) => return Ok(()),
                Err(error) => {
                    fault(Fault { what: path.to_owned(), how: error.to_string() });
                    return Ok(());
                }
            };
            let wrong = match Manifest::decode(&bytes) {
                Err(_) if bytes.is_empty() => None,
                Err(flaw) => Some(flaw.to_string()),
                Ok(manifest) if paths::manifest(manifest.name) != path => {
                    Some(format!("it is that of {:?}", manifest.name))
                }
                Ok(manifest) => {
                    for hash in manifest.references() {
                        if self.index.places(&hash).is_empty() {
                            missing.insert(hash, manifest.name.to_owned());
                        }
                    }
                    None
                }
            };
            if let Some(how) = wrong {
                fault(Fault { what: path.to_owned(), how });
            }
            Ok(())
        })?;
        if missing.is_empty() {
            return Ok(());
        }
        // The chunks may have been published during the walk.
        self.index.refresh(true)?;
        for (hash, name) in missing {
            if self.index.places(&hash).is_empty() {
                fault(Fault {
                    what: format!("chunk {hash}"),
                    how: format!("it is not there, and manifest {name:?} was saved with it"),
                });
            }
        }
        Ok(())
    }
}

/// Tells whether an error concerns this file only: it is not a regular file, another user's, or on a bad block.
fn is_unreadable(error: &StoreError) -> bool {
    use io::ErrorKind::{InvalidData, IsADirectory, PermissionDenied, UnexpectedEof};
    let StoreError::Io { source, .. } = error else {
        return false;
    };
    let one_file = [InvalidData, IsADirectory, PermissionDenied, UnexpectedEof];
    is_bad_block(source) || one_file.contains(&source.kind())
}

impl Inventory for FileStore {
    /// A handle with a prefix visits the manifests that it can name, under the names that it uses.
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.each_manifest_path(&mut |_| (), &mut |path| {
            let (file, bytes) = match self.manifest_file(path) {
                Ok(Some(there)) => there,
                Ok(None) => return Ok(()),
                // Verifying reports it, like a manifest that cannot be decoded.
                Err(error) if is_unreadable(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Ok(manifest) = Manifest::decode(&bytes) else {
                return Ok(());
            };
            let Some(name) = manifest.name.strip_prefix(&*self.prefix) else {
                return Ok(());
            };
            let mut entry = ManifestEntry::new(ManifestName::new(name)?, manifest.data.len() as u64);
            entry.last_used = file.stat().ok().map(|stat| stat.modified);
            visit(entry)
        })
    }

    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let each = names.iter().map(|name| {
            self.look_at_manifest(&self.full_name(name)?, |_, manifest| Bytes::copy_from_slice(manifest.data))
        });
        each.collect()
    }

    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.index.refresh(true)?;
        let mut used = HashMap::new();
        for pack in self.index.packs() {
            let stat = self.disk.stat(&pack.id.path());
            used.insert(pack.id, stat.ok().map(|stat| stat.modified));
        }
        for (hash, places) in self.index.chunks() {
            if let Some(place) = places.first() {
                let mut entry = ChunkEntry::new(hash, place.len);
                entry.last_used = used.get(&place.pack.id).copied().flatten();
                visit(entry)?;
            }
        }
        Ok(())
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage { total_bytes: self.space.count()?, cap: self.space.cap(), ..Usage::default() };
        self.each_manifest_path(&mut |_| (), &mut |path| {
            let bytes = match self.manifest_file(path) {
                Ok(Some((_, bytes))) => bytes,
                Ok(None) => return Ok(()),
                // It takes space, so count it. Verifying reports it.
                Err(error) if is_unreadable(&error) => {
                    usage.manifests += 1;
                    let stat = self.disk.stat(path).ok().filter(|stat| stat.regular);
                    usage.manifest_bytes += stat.map_or(0, |stat| stat.len);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                return Ok(());
            }
            usage.manifests += 1;
            // A damaged manifest counts with the length of its file.
            let data = Manifest::decode(&bytes).map_or(bytes.len(), |manifest| manifest.data.len());
            usage.manifest_bytes += data as u64;
            Ok(())
        })?;
        self.index.refresh(true)?;
        for (_, places) in self.index.chunks() {
            usage.chunks += 1;
            usage.chunk_bytes += places.first().map_or(0, |place| place.len);
        }
        Ok(usage)
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
        let mut broken = |what: &str, how: String| {
            fault(Fault { what: what.to_owned(), how });
        };
        if let Err(error) = super::root::check_marker(&*self.disk) {
            broken(paths::MARKER, error.to_string());
        }
        let halves = "its two halves do not agree";
        if !self.index.generation_is_whole() {
            broken(paths::GENERATION, halves.to_owned());
        }
        if !self.space.is_whole()? {
            broken(paths::USAGE, halves.to_owned());
        }
        self.index.refresh(true)?;
        for (id, how) in self.index.damaged() {
            broken(&id.path(), how);
        }
        self.verify_chunks(progress, fault)?;
        self.verify_manifests(progress, fault)
    }

    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError> {
        self.collect_all(options, progress)
    }
}

//! Reading objects.

use std::sync::{Mutex, OnceLock, PoisonError};

use transload_store::internal::{on_threads, readable};
use transload_store::{ChunkHash, ManifestName, StoreError};

use super::part::{PartMut, pieces_mut, total_mut};
use super::{Info, ObjectError, Objects, PIECE};
use crate::reading::{forget, whole_chunk};

/// An object to read.
#[derive(Debug)]
pub struct Target<'a, 'p> {
    /// The object's key.
    pub key: &'a [u8],
    /// The memory for its bytes, one part after another. The parts together must have the object's length.
    pub parts: &'a mut [PartMut<'p>],
}

#[derive(Debug)]
struct Piece<'a> {
    object: usize,
    hash: ChunkHash,
    parts: Vec<PartMut<'a>>,
}

type Broken = (ChunkHash, u64);

/// The bytes of pieces that one thread requests from a store at once: enough to hide a network's round trip, and little
/// enough memory for an engine's process.
const IN_FLIGHT: u64 = 16 << 20;

impl Objects {
    /// Reads objects into the memory of each target. Returns the info of each object, or `None` (a *miss*) if it does
    /// not exist, has another length than its parts together, or has a missing or damaged piece. A piece is checked
    /// before any of its bytes is written. After a miss the contents of the parts are undefined: unchanged, or with
    /// some whole pieces.
    ///
    /// An object with a missing or damaged piece is removed, unless it has been put again meanwhile. So the next
    /// [`put`](Self::put) of it writes what is missing.
    ///
    /// # Errors
    /// [`ObjectError::Key`] if a key is invalid, and then nothing was read. If the store fails, the contents of the
    /// parts are undefined.
    pub fn get(&self, targets: &mut [Target<'_, '_>]) -> Result<Vec<Option<Info>>, ObjectError> {
        let keys: Vec<&[u8]> = targets.iter().map(|target| target.key).collect();
        let names = self.names(&keys)?;
        let found = self.find(&keys, &names)?;
        // An object of another length is a miss.
        let fits = found
            .into_iter()
            .zip(&*targets)
            .map(|(found, target)| found.filter(|found| found.record.bytes == total_mut(target.parts)));
        let found: Vec<_> = fits.collect();
        let mut pieces = Vec::new();
        for (object, (found, target)) in found.iter().zip(targets).enumerate() {
            let Some(found) = found else { continue };
            let both = found.record.pieces().zip(pieces_mut(target.parts));
            pieces.extend(both.map(|(hash, parts)| Piece { object, hash, parts }));
        }
        let broken: Vec<OnceLock<Broken>> = found.iter().map(|_| OnceLock::new()).collect();
        self.fill(pieces, &broken)?;
        let read = found.into_iter().zip(&broken).zip(&names);
        let read = read.map(|((found, broken), name)| {
            let found = found?;
            let Some(broken) = broken.get() else {
                return Some(found.record.info());
            };
            self.forget_broken(name, &found.manifest, broken);
            None
        });
        Ok(read.collect())
    }

    /// Reads an object of any length. Memory is allocated for what was read, not for what its manifest claims. Returns
    /// `None` for a miss, as in [`get`](Self::get).
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn read(&self, key: &[u8]) -> Result<Option<(Info, Vec<u8>)>, ObjectError> {
        let names = self.names(&[key])?;
        let Some(found) = self.find(&[key], &names)?.pop().flatten() else {
            return Ok(None);
        };
        let mut bytes: Vec<u8> = Vec::new();
        let mut left = found.record.bytes;
        let hashes: Vec<ChunkHash> = found.record.pieces().collect();
        let mut rest = &hashes[..];
        while !rest.is_empty() {
            let start = bytes.len();
            // Double the buffer each time, but start with enough work for all threads.
            let step = (4 * IN_FLIGHT as usize).max(start) / PIECE;
            let (hashes, later) = rest.split_at(step.min(rest.len()));
            rest = later;
            let some = left.min((hashes.len() * PIECE) as u64);
            left -= some;
            bytes.resize(start + some as usize, 0);
            let pieces = hashes.iter().zip(bytes[start..].chunks_mut(PIECE));
            let pieces = pieces.map(|(&hash, memory)| Piece { object: 0, hash, parts: vec![memory.into()] });
            let broken = [OnceLock::new()];
            self.fill(pieces.collect(), &broken)?;
            if let Some(broken) = broken[0].get() {
                self.forget_broken(&names[0], &found.manifest, broken);
                return Ok(None);
            }
        }
        Ok(Some((found.record.info(), bytes)))
    }

    /// Removes an object with an unreadable piece, unless it was put again.
    fn forget_broken(&self, name: &ManifestName, manifest: &[u8], broken: &Broken) {
        forget(&*self.store, name, |there| there == manifest && !self.is_healed(broken));
    }

    /// Reads pieces on several threads, and records the first unreadable piece of each object.
    fn fill(&self, pieces: Vec<Piece<'_>>, broken: &[OnceLock<Broken>]) -> Result<(), StoreError> {
        let hashes: Vec<ChunkHash> = pieces.iter().map(|piece| piece.hash).collect();
        // A prefetch is a hint. Reading reports the errors.
        let _ = self.store.prefetch_chunks(&hashes);
        let together = self.store.batch().max(1);
        let mut loads: Vec<Mutex<Vec<Piece<'_>>>> = Vec::new();
        let (mut load, mut bytes) = (Vec::new(), 0);
        for piece in pieces {
            bytes += piece.bytes();
            if load.len() == together || bytes > IN_FLIGHT {
                bytes = piece.bytes();
                loads.push(Mutex::new(std::mem::take(&mut load)));
            }
            load.push(piece);
        }
        loads.push(Mutex::new(load));
        on_threads(
            self.threads,
            &loads,
            || Ok(()),
            |(), load| {
                // No other thread uses this load.
                let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
                self.load(&mut load, broken)
            },
        )?;
        Ok(())
    }

    /// Reads pieces in one batch, except those of objects that are known to be broken.
    fn load(&self, pieces: &mut Vec<Piece<'_>>, broken: &[OnceLock<Broken>]) -> Result<(), StoreError> {
        pieces.retain(|piece| broken[piece.object].get().is_none());
        let hashes: Vec<ChunkHash> = pieces.iter().map(|piece| piece.hash).collect();
        let read = readable(&hashes, |hashes| self.store.get_chunks(hashes))?;
        for (piece, data) in pieces.iter_mut().zip(read) {
            let data = whole_chunk(&*self.store, &piece.hash, Ok(data), |data| piece.is(data));
            match data {
                Ok(Some(data)) => piece.write(&data),
                Err(error) if !matches!(error, StoreError::Damaged { .. }) => return Err(error),
                Ok(None) | Err(_) => {
                    // Another piece of the object may be recorded already.
                    let _ = broken[piece.object].set((piece.hash, piece.bytes()));
                }
            }
        }
        Ok(())
    }

    /// Tells whether an unreadable piece is readable after all. If the store cannot be asked, it counts as readable,
    /// because an object is removed only for certain damage.
    fn is_healed(&self, (hash, bytes): &Broken) -> bool {
        match self.store.get_chunk(hash) {
            Ok(Some(data)) => data.len() as u64 == *bytes && is_of(hash, &data),
            Ok(None) | Err(StoreError::Damaged { .. }) => false,
            Err(_) => true,
        }
    }
}

impl Piece<'_> {
    fn bytes(&self) -> u64 {
        total_mut(&self.parts)
    }

    fn is(&self, data: &[u8]) -> bool {
        data.len() as u64 == self.bytes() && is_of(&self.hash, data)
    }

    fn write(&mut self, mut data: &[u8]) {
        for part in &mut self.parts {
            data = part.fill(data);
        }
    }
}

fn is_of(hash: &ChunkHash, data: &[u8]) -> bool {
    ChunkHash::from(blake3::hash(data)) == *hash
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::objects::name;
    use crate::objects::record::{LARGEST, Record};
    use transload_store::backend::{Backend, MemoryStore};

    #[test]
    fn a_manifest_that_claims_much_takes_no_memory() {
        let peak = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("VmPeak:"));
            let kib = line.unwrap().split_whitespace().nth(1).unwrap();
            kib.parse::<u64>().unwrap() << 10
        };
        let store = Arc::new(MemoryStore::new());
        let record = Record {
            namespace: b"ns".to_vec(),
            key: b"key".to_vec(),
            bytes: LARGEST,
            meta: Vec::new(),
            pieces: vec![[7; 32]; LARGEST as usize / PIECE],
        };
        let manifest = name::manifest(b"ns", b"key");
        store.put_manifest(&manifest, &record.encode()).unwrap();
        let objects = Objects::new(store, b"ns").unwrap();
        assert_eq!(objects.has(&[b"key"]).unwrap()[0].as_ref().unwrap().bytes, LARGEST);
        let before = peak();
        assert_eq!(objects.read(b"key").unwrap(), None);
        assert!(peak() < before + (1 << 30));
    }
}

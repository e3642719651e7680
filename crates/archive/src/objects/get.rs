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
    /// Its key.
    pub key: &'a [u8],
    /// The memory that takes its bytes, one part behind the other: as long together as the object.
    pub parts: &'a mut [PartMut<'p>],
}

/// A piece to read.
#[derive(Debug)]
struct Piece<'a> {
    /// The place of its object in the batch.
    object: usize,
    hash: ChunkHash,
    parts: Vec<PartMut<'a>>,
}

/// A piece that cannot be read: its hash, and how long it should be.
type Broken = (ChunkHash, u64);

/// Bytes of pieces that one thread asks a store for at once: enough to fill a network's round trip, few enough to hold
/// beside an engine.
const IN_FLIGHT: u64 = 16 << 20;

impl Objects {
    /// Reads objects into the memory that is given for each. For each, what is known of it; or `None`, a *miss*, if it is
    /// not there, has another length than its parts together, or a piece of it is gone or damaged. A piece is checked
    /// before a byte of it is written, so the parts of a miss hold what they held, or whole pieces that came before the
    /// damage was found: nothing of use.
    ///
    /// An object with a piece that is gone or damaged is removed, unless somebody has put it again meanwhile, so that the
    /// next [`put`](Self::put) of it writes what is missing.
    ///
    /// # Errors
    /// [`ObjectError::Key`], and then nothing was read; or if the store fails, and then what the parts hold is not
    /// defined.
    pub fn get(&self, targets: &mut [Target<'_, '_>]) -> Result<Vec<Option<Info>>, ObjectError> {
        let keys: Vec<&[u8]> = targets.iter().map(|target| target.key).collect();
        let names = self.names(&keys)?;
        let found = self.find(&keys, &names)?;
        // One of another length is a miss.
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

    /// Reads an object whatever its length: memory is taken for what was read, and not for what its manifest says. `None` is
    /// a miss, as for [`get`](Self::get).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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
            // As much as was read, so that the threads have work.
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

    /// Removes an object one of whose pieces could not be read, unless it was put again.
    fn forget_broken(&self, name: &ManifestName, manifest: &[u8], broken: &Broken) {
        forget(&*self.store, name, |there| there == manifest && !self.is_healed(broken));
    }

    /// Reads pieces, on a few threads, and notes of each object the first one that cannot be read.
    fn fill(&self, pieces: Vec<Piece<'_>>, broken: &[OnceLock<Broken>]) -> Result<(), StoreError> {
        let hashes: Vec<ChunkHash> = pieces.iter().map(|piece| piece.hash).collect();
        // A hint: what is wrong is told by reading.
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
                // No other thread has it.
                let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
                self.load(&mut load, broken)
            },
        )?;
        Ok(())
    }

    /// Reads pieces at once, but for those of objects that are broken.
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
                    // Another piece of it may be noted already.
                    let _ = broken[piece.object].set((piece.hash, piece.bytes()));
                }
            }
        }
        Ok(())
    }

    /// Whether a piece that could not be read is there after all. So it is taken to be where the store cannot be asked: an
    /// object is removed only for what is known.
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

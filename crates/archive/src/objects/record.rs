//! The manifest of an object.

use serde::{Deserialize, Serialize};
use transload_store::{ChunkHash, ManifestName, StoreError};

use super::name::{self, LONGEST_NAME, NAMES};
use crate::manifest::{self, Unreadable};

const MAGIC: &[u8; 8] = b"TLobjs\x01\n";

/// The length in bytes of every piece except the last: large enough to make the store's work for each negligible, small
/// enough to hold some in an engine's process.
pub const PIECE: usize = 4 << 20;

/// The largest object, in bytes.
pub const LARGEST: u64 = 64 << 30;

/// The longest meta of an object, in bytes.
pub const LONGEST_META: usize = 4096;

/// The longest manifest in bytes: names, meta, the hashes of all pieces, and room for the encoding.
const LONGEST: usize = 2 * LONGEST_NAME + LONGEST_META + (LARGEST / PIECE as u64) as usize * 32 + 256;

/// The manifest of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The object's namespace, so that a manifest under a wrong name is detected.
    pub namespace: Vec<u8>,
    /// The object's key.
    pub key: Vec<u8>,
    /// The object's length in bytes.
    pub bytes: u64,
    /// The engine's meta.
    pub meta: Vec<u8>,
    /// The BLAKE3-256 of each piece, which is also the store chunk's hash.
    pub(super) pieces: Vec<[u8; 32]>,
}

/// The length and the meta of an object, which can be read without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The object's length in bytes.
    pub bytes: u64,
    /// The engine's meta.
    pub meta: Vec<u8>,
}

impl Record {
    /// Parses a manifest. Returns `None` if its name is not that of an object. The name may have a prefix in front, as
    /// in a store whose handle was opened below its root.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the manifest does not match its name.
    pub fn read(name: &ManifestName, manifest: &[u8]) -> Option<Result<Self, StoreError>> {
        let own = &name.as_str()[name.as_str().rfind(NAMES)?..];
        let record = Self::decode(manifest).and_then(|record| {
            match name::manifest(&record.namespace, &record.key).as_str() == own {
                true => Ok(record),
                false => Err(Unreadable("it is of another object than its name says")),
            }
        });
        Some(record.map_err(|why| StoreError::Damaged {
            what: format!("the object's manifest {name}"),
            how: why.0.to_owned(),
        }))
    }

    /// Returns every store chunk that the object needs, in the order of its bytes.
    pub fn pieces(&self) -> impl Iterator<Item = ChunkHash> {
        self.pieces.iter().map(|hash| (*hash).into())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        manifest::encode(MAGIC, self)
    }

    pub(super) fn decode(manifest: &[u8]) -> Result<Self, Unreadable> {
        if manifest.len() > LONGEST {
            return Err(Unreadable("it is longer than the manifest of any object"));
        }
        let this: Self = manifest::decode(MAGIC, manifest)?;
        if !name::is_name(&this.namespace) || !name::is_name(&this.key) {
            return Err(Unreadable("its key or namespace is empty or too long"));
        }
        if this.meta.len() > LONGEST_META {
            return Err(Unreadable("its meta is too long"));
        }
        let pieces = this.bytes.div_ceil(PIECE as u64);
        if this.bytes > LARGEST || this.pieces.len() as u64 != pieces {
            return Err(Unreadable("its pieces do not make up its length"));
        }
        Ok(this)
    }

    pub(super) fn info(self) -> Info {
        Info { bytes: self.bytes, meta: self.meta }
    }
}

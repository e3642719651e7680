//! Objects: bytes of an engine under the engine's own keys.
//!
//! Some engines name what they cache by hashes of their own, and keep it in a layout that only they read. In a store
//! that is an *object*: bytes under a key, with up to 4 KiB of *meta*, in which the engine writes what it needs to read
//! them (a shape, a dtype). Such engines get the features of stores: deduplication, a cap, damaged data that reads as a
//! miss, and inspection with `transload store`.
//!
//! An object is one manifest and its *pieces*: store chunks of 4 MiB (the last one may be shorter) under the BLAKE3-256
//! of their bytes. All calls take batches, and none holds more than a few pieces for each thread in memory.
//!
//! - Keys have 1 to 4,096 bytes of any kind. So does the *namespace*, which is a part of every name. An engine whose
//!   keys stay the same while its weights change has to change the namespace with them.
//! - Key, length and meta identify an object's content: [`put`](Objects::put) writes nothing if an object of equal
//!   length and meta exists, and replaces any other.
//! - [`get`](Objects::get) checks every piece against its hash.
//!
//! ```
//! use std::sync::Arc;
//! use transload_store::backend::MemoryStore;
//! use transload_archive::objects::{Objects, Source, Target};
//!
//! let objects = Objects::new(Arc::new(MemoryStore::new()), b"llama-3.1-8b@r1")?;
//! let (keys, values) = ([1; 1000], [2; 500]);
//! objects.put(&[Source { key: b"block 7", meta: b"bf16", parts: &[(&keys).into(), (&values).into()] }])?;
//!
//! let found = objects.has(&[b"block 7", b"block 8"])?;
//! assert_eq!(found[0].as_ref().map(|info| info.bytes), Some(1500));
//! assert_eq!(found[1], None);
//!
//! let mut block = [0; 1500];
//! let mut parts = [(&mut block).into()];
//! let read = objects.get(&mut [Target { key: b"block 7", parts: &mut parts }])?;
//! assert_eq!(read[0].as_ref().map(|info| &info.meta[..]), Some(&b"bf16"[..]));
//! assert_eq!(block[999..1001], [1, 2]);
//! # Ok::<(), transload_archive::objects::ObjectError>(())
//! ```

mod error;
mod get;
mod list;
mod name;
mod namespace;
mod part;
mod put;
mod record;

pub use error::ObjectError;
pub use get::Target;
pub use list::Listed;
pub use name::{LONGEST_NAME, NAMES};
pub use namespace::Objects;
pub use part::{Part, PartMut};
pub use put::Source;
pub use record::{Info, LARGEST, LONGEST_META, PIECE, Record};

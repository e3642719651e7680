//! Backends around a backend: faults, throttling, metrics, checksums.
//!
//! | wrapper | what it adds |
//! |---|---|
//! | [`Faulty`] | errors before or after the effect, and changed bits, by plan or at random |
//! | [`Throttled`] | a time for each call, and a limit of bytes per second |
//! | [`Metered`] | counts of calls, bytes and errors, and the time they took |
//! | [`Checksummed`] | a checksum in every value |
//!
//! Each is a [`Backend`](super::Backend) and can be wrapped again.
//!
//! ```
//! use std::time::Duration;
//! use transload_store::backend::MemoryStore;
//! use transload_store::backend::wrap::{Metered, Throttled};
//! use transload_store::{Backend, ManifestName};
//!
//! let slow = Throttled::new(MemoryStore::default()).with_latency(Duration::from_millis(1));
//! let store = Metered::new(slow);
//! store.put_manifest(&ManifestName::new("m")?, b"four")?;
//! assert_eq!(store.snapshot().put_manifest.bytes, 4);
//! # Ok::<(), transload_store::StoreError>(())
//! ```

mod checksummed;
mod faulty;
mod metered;
mod throttled;

pub use checksummed::Checksummed;
pub use faulty::{Call, Effect, Faulty, Plan};
pub use metered::{CallStats, Metered, Stats};
pub use throttled::Throttled;

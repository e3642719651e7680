//! The environment of an item: handles, fresh names and hashes, and cleaning up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::ledger;
use super::options::{Options, random_seed};
use super::outcome::Stop;
use super::random::Random;
use crate::backend::{Backend, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::loader::Library;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// Opens a handle of the checked store, the same store at each call.
pub type Open<'a> = dyn Fn() -> Result<Arc<dyn Backend>, StoreError> + Sync + 'a;

/// The library that the C border's items examine.
pub(super) struct Border {
    pub(super) library: Arc<Library>,
    /// The path as it was passed.
    pub(super) path: PathBuf,
    pub(super) uri: StoreUri,
}

pub(super) struct Context<'a> {
    open: &'a Open<'a>,
    options: Options,
    border: Option<Border>,
    /// A value unique to this run.
    run: blake3::Hash,
    next: AtomicU64,
    names: Mutex<Vec<ManifestName>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(open: &'a Open<'a>, options: &Options, border: Option<Border>) -> Self {
        // One thread would never meet another, and one round replaces nothing.
        let options = Options { threads: options.threads.max(2), rounds: options.rounds.max(2), ..options.clone() };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut unique = now.unwrap_or_default().as_nanos().to_le_bytes().to_vec();
        unique.extend(std::process::id().to_le_bytes());
        unique.extend(random_seed().to_le_bytes());
        Self { open, options, border, run: blake3::hash(&unique), next: AtomicU64::new(0), names: Mutex::default() }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn open(&self) -> Result<Handle, Stop> {
        match (self.open)() {
            Ok(backend) => Ok(Handle(backend)),
            Err(error) => Err(Stop::Broken(format!("open failed: {error}"))),
        }
    }

    pub(super) fn border(&self) -> Result<&Border, Stop> {
        self.border.as_ref().ok_or_else(|| Stop::Skip("there is no library to look at".into()))
    }

    /// Returns a random generator that depends only on the seed.
    pub(super) fn random(&self) -> Random {
        Random::new(self.options.seed)
    }

    /// Returns `len` bytes that no other call returns. From 16 bytes on that is certain.
    pub(super) fn fresh(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut hasher = blake3::Hasher::new_keyed(self.run.as_bytes());
        hasher.update(&self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        hasher.finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Returns an unused hash of 1 to 64 bytes. With fewer than 8 bytes it may be in use.
    pub(super) fn hash(&self, len: usize) -> Result<ChunkHash, Stop> {
        Ok(ChunkHash::new(&self.fresh(len))?)
    }

    /// Returns a name for a manifest of this run. The manifest is removed at the end.
    pub(super) fn name(&self, rest: &str) -> Result<ManifestName, Stop> {
        self.exact_name(format!("{}{rest}", self.prefix()))
    }

    pub(super) fn prefix(&self) -> String {
        format!("transload-check-{}", &self.run.to_hex()[..16])
    }

    /// Registers a name that contains [`prefix`](Self::prefix) or is known to be unused.
    pub(super) fn exact_name(&self, name: String) -> Result<ManifestName, Stop> {
        let name = ManifestName::new(name)?;
        ledger::may_put(&name);
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        Ok(name)
    }

    /// Removes the manifests of this run. Returns those that could not be removed.
    pub(super) fn clean_up(&self) -> Vec<ManifestName> {
        let mut left = std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return left;
        }
        // A backend that panicked before may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Ok(store) = (self.open)() {
                left.retain(|name| match store.delete_manifest(name) {
                    Ok(()) => {
                        ledger::has_removed(name);
                        false
                    }
                    Err(_) => true,
                });
            }
        }));
        left
    }
}

/// A handle whose errors name the failed call.
#[derive(Clone)]
pub(super) struct Handle(pub(super) Arc<dyn Backend>);

fn failed(call: &str) -> impl FnOnce(StoreError) -> Stop {
    move |error| Stop::Broken(format!("{call} failed: {error}"))
}

impl Handle {
    pub(super) fn put(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, Stop> {
        self.0.put_chunk(hash, data).map_err(failed("put_chunk"))
    }

    pub(super) fn get(&self, hash: &ChunkHash) -> Result<Option<Bytes>, Stop> {
        self.0.get_chunk(hash).map_err(failed("get_chunk"))
    }

    pub(super) fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), Stop> {
        let _open = ledger::gate();
        self.0.put_manifest(name, data).map_err(failed("put_manifest"))
    }

    pub(super) fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, Stop> {
        self.0.get_manifest(name).map_err(failed("get_manifest"))
    }

    pub(super) fn delete_manifest(&self, name: &ManifestName) -> Result<(), Stop> {
        self.0.delete_manifest(name).map_err(failed("delete_manifest"))
    }

    pub(super) fn expect(&self, hash: &ChunkHash, data: &[u8], when: &str) -> Result<(), Stop> {
        same(self.get(hash)?.as_deref(), data, "the chunk", when)
    }

    pub(super) fn expect_manifest(&self, name: &ManifestName, data: &[u8], when: &str) -> Result<(), Stop> {
        same(self.get_manifest(name)?.as_deref(), data, &called(name), when)
    }

    pub(super) fn expect_no_manifest(&self, name: &ManifestName, when: &str) -> Result<(), Stop> {
        match self.get_manifest(name)? {
            None => Ok(()),
            Some(_) => Err(Stop::Broken(format!("{when}, {} is there", called(name)))),
        }
    }
}

fn called(name: &ManifestName) -> String {
    format!("manifest {:?}", shortened(name.as_str()))
}

fn same(found: Option<&[u8]>, expected: &[u8], what: &str, when: &str) -> Result<(), Stop> {
    let Some(found) = found else {
        return Err(Stop::Broken(format!("{when}, {what} is missing")));
    };
    if found == expected {
        return Ok(());
    }
    let how = if found.len() == expected.len() {
        let at = found.iter().zip(expected).position(|(a, b)| a != b);
        format!("differs from byte {} on", at.unwrap_or_default())
    } else {
        format!("has {} bytes, not {}", found.len(), expected.len())
    };
    Err(Stop::Broken(format!("{when}, {what} {how}")))
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(40) {
        Some((at, _)) => format!("{}... ({} bytes)", &name[..at], name.len()),
        None => name.to_owned(),
    }
}

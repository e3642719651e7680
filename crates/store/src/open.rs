//! Opening of a store by its URI.

use std::sync::Arc;

use crate::backend::tier::{self, Tier, TierStore, Write};
use crate::backend::{Backend, MemoryStore};
use crate::error::StoreError;
use crate::loader::{Library, LoadError};
use crate::uri::StoreUri;

/// Opens the store that a URI names, with the backend that its scheme names:
///
/// `libkv_store_<scheme>.so` in a folder of `KV_STORE_LIBRARY_PATH`. It comes first even if the scheme is one of ours,
/// so that an operator can replace a backend;
/// 2. the backend of this crate, if it was built with the feature of that name;
/// `libkv_store_<scheme>.so` where the system searches for libraries.
///
/// ```no_run
/// let store = transload_store::open("file:///var/kv")?;
/// # Ok::<(), transload_store::StoreError>(())
/// ```
///
/// # Errors
/// Returns an error if the text is no URI, if no such backend exists, or if the backend cannot open the store.
pub fn open(uri: &str) -> Result<Arc<dyn Backend>, StoreError> {
    open_or(uri, Absent::Make)
}

/// Opens a store like [`open`], but backends of this crate do not create a missing one. A plugin may create it, since
/// its call to open has no such option.
///
/// # Errors
/// The errors of [`open`], and [`StoreError::NotThere`] if there is no store. A Redis database always exists.
pub fn open_existing(uri: &str) -> Result<Arc<dyn Backend>, StoreError> {
    open_or(uri, Absent::Refuse)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Make,
    Refuse,
}

fn open_or(uri: &str, absent: Absent) -> Result<Arc<dyn Backend>, StoreError> {
    open_with(&uri.parse()?, absent, None)
}

/// Opens a store. `cap`, if there is one, takes precedence over the environment's.
fn open_with(uri: &StoreUri, absent: Absent, cap: Option<u64>) -> Result<Arc<dyn Backend>, StoreError> {
    if let Some(library) = Library::find_named(uri.scheme())? {
        if cap.is_some() {
            return Err(uri.wrong("a plugin takes no cap").into());
        }
        return Ok(Arc::new(library.open(uri)?));
    }
    if let Some(store) = built_in(uri, absent, cap) {
        return store;
    }
    match Library::find(uri.scheme()) {
        Ok(library) => Ok(Arc::new(library.open(uri)?)),
        Err(LoadError::NotFound { file, system, .. }) => Err(StoreError::Unsupported {
            what: "opening it",
            why: format!(
                "{}, and there is no {file} in a folder of KV_STORE_LIBRARY_PATH or where the system looks ({system})",
                without(uri.scheme())
            ),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Opens a store with a backend of this crate. Returns `None` if the scheme is not one of ours.
fn built_in(uri: &StoreUri, absent: Absent, cap: Option<u64>) -> Option<Result<Arc<dyn Backend>, StoreError>> {
    if uri.scheme() == "memory" {
        return Some(memory(uri, cap).map(|store| Arc::new(store) as _));
    }
    if tier::parts::is_tier(uri.scheme()) {
        return Some(tiers(uri, absent));
    }
    #[cfg(feature = "file")]
    if uri.scheme() == "file" {
        return Some(file(uri, absent, cap));
    }
    #[cfg(feature = "redis")]
    if ["redis", "rediss"].contains(&uri.scheme()) {
        return Some(redis(uri));
    }
    #[cfg(feature = "s3")]
    if uri.scheme() == "s3" {
        return Some(s3(uri, absent));
    }
    let _ = (absent, cap);
    None
}

fn memory(uri: &StoreUri, cap: Option<u64>) -> Result<MemoryStore, StoreError> {
    let cap = cap.map_or_else(MemoryStore::cap_from_env, Ok)?;
    MemoryStore::open_uri(uri, cap)
}

/// Opens a tier store. With [`Absent::Refuse`], missing tiers are left out, with two exceptions. The last tier must
/// exist, because it defines what is stored. With write-back, so must the first tier that outlives the process, because
/// manifests may be pending there.
fn tiers(uri: &StoreUri, absent: Absent) -> Result<Arc<dyn Backend>, StoreError> {
    let parts = tier::parts::parse(uri)?;
    let write = match uri.scheme() {
        "tier" => Write::Through,
        _ => Write::Back,
    };
    let mut tiers = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let name = part.uri.as_str();
        if part.uri.scheme() == "memory" && Library::find_named("memory")?.is_none() {
            tiers.push(Tier::memory(name, memory(&part.uri, part.cap)?));
            continue;
        }
        match open_with(&part.uri, absent, part.cap) {
            Err(StoreError::NotThere { .. })
                if absent == Absent::Refuse
                    && at + 1 < parts.len()
                    && (write == Write::Through || tiers.iter().any(Tier::outlives)) => {}
            store => tiers.push(Tier::new(name, store?)),
        }
    }
    Ok(Arc::new(TierStore::new(tiers, write)?))
}

#[cfg(feature = "file")]
fn file(uri: &StoreUri, absent: Absent, cap: Option<u64>) -> Result<Arc<dyn Backend>, StoreError> {
    use crate::backend::file::{FileOptions, FileStore};
    let mut options = FileOptions::from_env()?;
    options.cap = cap.or(options.cap);
    Ok(Arc::new(match absent {
        Absent::Make => FileStore::open_uri(uri, options)?,
        Absent::Refuse => FileStore::open_existing_uri(uri, options)?,
    }))
}

#[cfg(feature = "redis")]
fn redis(uri: &StoreUri) -> Result<Arc<dyn Backend>, StoreError> {
    use crate::backend::redis::{RedisOptions, RedisStore};
    Ok(Arc::new(RedisStore::open(uri, RedisOptions::from_env())?))
}

#[cfg(feature = "s3")]
fn s3(uri: &StoreUri, absent: Absent) -> Result<Arc<dyn Backend>, StoreError> {
    use crate::backend::s3::{S3Options, S3Store};
    let options = S3Options::default();
    Ok(Arc::new(match absent {
        Absent::Make => S3Store::open(uri, options)?,
        Absent::Refuse => S3Store::open_existing(uri, options)?,
    }))
}

/// Tells whether a scheme belongs to this crate, even if the crate was built without the feature.
pub fn is_built_in(scheme: &str) -> bool {
    tier::parts::is_tier(scheme) || ["memory", "file", "redis", "rediss", "s3"].contains(&scheme)
}

fn without(scheme: &str) -> String {
    match is_built_in(scheme) {
        true => format!("this program was built without the feature for `{scheme}`"),
        false => format!("`{scheme}` is not a built-in scheme (those are memory, file, redis, rediss, s3 and tier)"),
    }
}

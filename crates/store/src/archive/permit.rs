//! The permission to touch an engine's blocks, for as long as they are the request's.

use std::sync::{Arc, PoisonError, RwLock};

use super::ArchiveError;

/// The permission to read or write an engine's blocks. It can be revoked while a store is waited for: then the blocks may be
/// used again, however long the store takes.
///
/// Clones are the same permission.
#[derive(Clone, Debug)]
pub struct Permit(Arc<RwLock<bool>>);

impl Default for Permit {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(true)))
    }
}

impl Permit {
    /// A permission that stands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the permission. It waits for a copy that is under way, at most one token chunk of each group and thread; when it
    /// returns nothing touches the blocks any more.
    pub fn revoke(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Runs a copy, during which the permission stands.
    pub(super) fn during<T>(
        &self,
        copy: impl FnOnce() -> Result<T, ArchiveError>,
    ) -> Result<T, ArchiveError> {
        let stands = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !*stands {
            return Err(ArchiveError::Revoked);
        }
        copy()
    }
}

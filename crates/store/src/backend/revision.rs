//! The revision of a manifest.

use std::any::Any;
use std::fmt;

use crate::error::StoreError;

/// Identifies one put of a manifest, distinct even from another put of the same bytes.
/// [`Backend::manifest_revision`](super::Backend::manifest_revision) returns it. It is valid only for the handle that
/// read it.
pub struct Revision(Box<dyn Any + Send + Sync>);

impl Revision {
    /// Wraps a backend's own mark of a put.
    pub fn new(mark: impl Any + Send + Sync) -> Self {
        Self(Box::new(mark))
    }

    /// Returns the mark, if it has the type `T`.
    pub fn mark<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }

    pub(super) fn unsupported() -> StoreError {
        StoreError::Unsupported {
            what: "telling two puts of a manifest apart",
            why: "this backend has no such call".into(),
        }
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Revision").finish_non_exhaustive()
    }
}

//! Which put of a manifest it is that was read.

use std::any::Any;
use std::fmt;

use crate::error::StoreError;

/// Tells one put of a manifest from every other, also of the same bytes: what
/// [`Backend::manifest_revision`](super::Backend::manifest_revision) read. It is of use with the handle that read it.
pub struct Revision(Box<dyn Any + Send + Sync>);

impl Revision {
    /// A backend's own mark of the put.
    pub fn new(mark: impl Any + Send + Sync) -> Self {
        Self(Box::new(mark))
    }

    /// The mark, if a backend that makes such marks made it.
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

//! The trait of backends that can be plugins.

use crate::backend::Backend;
use crate::error::StoreError;
use crate::uri::StoreUri;

/// A backend that can be opened by its URI alone, and so can be a plugin.
pub trait Plugin: Backend + Sized + 'static {
    /// Whether [`Backend::prefetch_chunks`] is implemented. If so, the table is of version 2; otherwise it is of
    /// version 1 and has no such function.
    const PREFETCH: bool = false;

    /// Opens the store at `uri`. Secrets come from the environment.
    ///
    /// # Errors
    /// Any error of the URI or the store. It is printed to stderr, and the consumer gets NULL.
    fn open(uri: &StoreUri) -> Result<Self, StoreError>;
}

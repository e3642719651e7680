//! What a backend has to be to become a plugin.

use crate::backend::Backend;
use crate::error::StoreError;
use crate::uri::StoreUri;

/// A backend that can be opened by its URI alone, and so be a plugin.
pub trait Plugin: Backend + Sized + 'static {
    /// Whether [`Backend::prefetch_chunks`] does something. If so the table is of version 2; otherwise it is
    /// of version 1 and has no such function.
    const PREFETCH: bool = false;

    /// Opens the store at `uri`. Secrets come from the environment.
    ///
    /// # Errors
    /// Whatever is wrong with the URI or the store; its text goes to stderr, and the consumer gets NULL.
    fn open(uri: &StoreUri) -> Result<Self, StoreError>;
}

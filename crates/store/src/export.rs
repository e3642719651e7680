//! From a Rust type to a plugin: the C functions around a backend.
//!
//! [`export!`](crate::export!) makes a `cdylib` with one line into a `libkv_store_<scheme>.so`:
//!
//! ```
//! use transload_store::backend::MemoryStore;
//!
//! transload_store::export!(MemoryStore);
//! # fn main() {}
//! ```
//!
//! What the C side may get wrong is an error here, before the backend sees it: NULL pointers, lengths, names
//! that are not UTF-8. What the backend may get wrong ends here: a panic is caught and becomes
//! [`abi::ERROR`](crate::abi::ERROR), in each function, in `open` and in the `Drop` behind `close` too.
//! Everything that is an error is one line on stderr; a chunk or manifest that is not there is none.

mod calls;
mod guard;
mod input;
mod output;

use crate::abi::{VERSION_1, VERSION_2, Vtable};
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

/// The table of a plugin. [`export!`](crate::export!) exports it; a program that has the backend built in can
/// use it without a library.
pub const fn vtable<P: Plugin>() -> Vtable {
    Vtable {
        version: if P::PREFETCH { VERSION_2 } else { VERSION_1 },
        open: Some(calls::open::<P>),
        close: Some(calls::close::<P>),
        put_chunk: Some(calls::put_chunk::<P>),
        get_chunk: Some(calls::get_chunk::<P>),
        put_manifest: Some(calls::put_manifest::<P>),
        get_manifest: Some(calls::get_manifest::<P>),
        delete_manifest: Some(calls::delete_manifest::<P>),
        prefetch_chunks: if P::PREFETCH {
            Some(calls::prefetch_chunks::<P>)
        } else {
            None
        },
    }
}

/// Exports a [`Plugin`](crate::export::Plugin) as `kv_store_get_vtable`. Once in a crate whose `crate-type` is
/// `cdylib` and whose library is called `kv_store_<scheme>`.
///
/// It does not build with `panic = "abort"`: a panic has to be caught, and not to end the consumer.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        #[cfg(not(panic = "unwind"))]
        ::core::compile_error!(
            "a kv_store_v1 plugin catches panics, which needs `panic = \"unwind\"` in its profile"
        );

        /// The one symbol of a `kv_store_v1` plugin.
        // SAFETY: the name belongs to this ABI, a library exports it once, and it has the type that the ABI
        // gives it.
        #[unsafe(no_mangle)]
        pub extern "C" fn kv_store_get_vtable() -> *const $crate::abi::Vtable {
            static TABLE: $crate::abi::Vtable = $crate::export::vtable::<$plugin>();
            &raw const TABLE
        }
    };
}

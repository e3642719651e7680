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
mod plugin;
mod refusal;
mod table;

pub use plugin::Plugin;
pub use table::vtable;

/// Exports a [`Plugin`](crate::export::Plugin) as `kv_store_get_vtable`. Once in a crate whose `crate-type` is
/// `cdylib` and whose library is called `kv_store_<scheme>`.
///
/// It does not build with `panic = "abort"`: a panic has to be caught, and not to end the consumer.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        #[cfg(not(panic = "unwind"))]
        ::core::compile_error!("a kv_store_v1 plugin catches panics, which needs `panic = \"unwind\"` in its profile");

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

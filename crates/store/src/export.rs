//! Exporting of a Rust backend as a plugin with C functions.
//!
//! [`export!`](crate::export!) turns a `cdylib` with one line into a `libkv_store_<scheme>.so`:
//!
//! ```
//! use transload_store::backend::MemoryStore;
//!
//! transload_store::export!(MemoryStore);
//! # fn main() {}
//! ```
//!
//! Invalid arguments (NULL pointers, lengths, names that are not UTF-8) are errors before the backend sees them. A
//! panic of the backend is caught and becomes [`abi::ERROR`](crate::abi::ERROR), in every function including `open` and
//! the `Drop` behind `close`. Every error prints one line on stderr. A missing chunk or manifest is not an error.

mod calls;
mod guard;
mod input;
mod output;
mod plugin;
mod refusal;
mod table;

pub use plugin::Plugin;
pub use table::vtable;

/// Exports a [`Plugin`](crate::export::Plugin) as `kv_store_get_vtable`. Use it once in a crate whose `crate-type` is
/// `cdylib` and whose library is called `kv_store_<scheme>`.
///
/// It does not build with `panic = "abort"`, because a panic must not end the consumer's process.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        #[cfg(not(panic = "unwind"))]
        ::core::compile_error!("a kv_store_v1 plugin catches panics, which needs `panic = \"unwind\"` in its profile");

        /// The one symbol of a `kv_store_v1` plugin.
        // SAFETY: the name belongs to this ABI, a library exports it once, and its type is that of the ABI.
        #[unsafe(no_mangle)]
        pub extern "C" fn kv_store_get_vtable() -> *const $crate::abi::Vtable {
            static TABLE: $crate::abi::Vtable = $crate::export::vtable::<$plugin>();
            &raw const TABLE
        }
    };
}

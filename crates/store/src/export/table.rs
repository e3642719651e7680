//! A plugin's function table.

use super::{Plugin, calls};
use crate::abi::{VERSION_1, VERSION_2, Vtable};

/// Returns the function table of a plugin. [`export!`](crate::export!) exports it. A program that contains the backend
/// can use the table without a library.
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
        prefetch_chunks: if P::PREFETCH { Some(calls::prefetch_chunks::<P>) } else { None },
    }
}

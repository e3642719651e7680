//! Host copies.

mod between;
mod checksum;
mod kernel;
mod stream;
mod walk;

pub use between::{CopyError, CopyOptions, CopyReport, copy};
pub use checksum::Crc32c;
#[doc(hidden)]
pub use kernel::Kernel;
pub use stream::{Cursor, MemoryStream, Run, Runs, StreamError};

#[doc(hidden)]
pub fn tune(i: usize, v: usize) {
    kernel::x86::T[i].store(v, std::sync::atomic::Ordering::Relaxed)
}

/// x
pub fn settle() {
    kernel::fence()
}

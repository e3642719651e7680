//! Moving the bytes of plans on the host: from memory to memory, and between memory and streams.
mod between;
mod checksum;
mod cursor;
mod ends;
mod kernel;
mod runs;
mod stream;
#[cfg(test)]
mod tests;
mod walk;

pub use between::{BYTES_PER_THREAD, CopyError, CopyOptions, CopyReport, copy};
pub use checksum::{Checksum, Crc32c, NoChecksum};
pub use cursor::Cursor;
#[doc(hidden)]
pub use kernel::Kernel;
pub use kernel::settle;
pub use runs::{Run, Runs};
pub use stream::{MemoryStream, StreamError};

//! Moving the bytes of plans on the host: from memory to memory, and between memory and streams.
//!
//! There are two ways to run a [`Program`](transload_plan::program::Program).
//!
//! - **Both sides are memories of this process**: [`copy`] runs the program from one [`Memory`] to the other, with
//!   several threads if that pays.
//! - **The other side is elsewhere**: a [`MemoryStream`] lays one side's half of the program (a
//!   [`StreamProgram`](transload_plan::program::StreamProgram)) over its memory. A [`Cursor`] then gathers the bytes of
//!   the stream from the memory, or scatters them into it, in pieces cut anywhere.
//!
//! Programs are checked against the memory once, in O(places), and then run without further checks. A CRC-32C of the
//! bytes in program order ([`Crc32c`]) can be computed on the way. It takes little time if the processor has AVX-512 (2
//! to 15 % of the copy) or AVX2 (10 to 20 %), and a good third otherwise.
//!
//! **Other writers.** A sum is that of the delivered bytes, unless they are written to meanwhile. If an engine writes
//! to a block during a copy, the copy may contain old bytes, new ones or a mixture, and the sum may be of yet another
//! mixture, since some kernels read twice. Neither indicates that such a copy is good; leases and commits do that
//! ([`memory`](crate#other-writers)).
//!
//! # How it is done
//! A walk over the program turns its nests into rows of chunks at equal distances, and a kernel moves those, whatever
//! layout they come from. On x86-64 the kernels prefetch in program order, and store around the caches if a transfer is
//! too large to stay in them. The instructions are chosen at run time, and [`CopyReport::kernel`] names them. Other
//! machines use plain copies.
//!
//! Memory of huge pages that were touched beforehand, as made by [`Memory::allocate`], is up to 20 % faster than small
//! pages, and several times faster than pages that were never touched.
//!
//! [`Memory`]: crate::Memory
//! [`Memory::allocate`]: crate::Memory::allocate

mod between;
mod checksum;
mod kernel;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

pub use between::{CopyOptions, CopyReport, copy};
pub use checksum::Crc32c;
pub use kernel::{Kernel, settle};
pub use stream::{Cursor, MemoryStream, StreamError};

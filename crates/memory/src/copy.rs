//! Moving the bytes of plans on the host: from memory to memory, and between memory and streams.
//!
//! There are two ways to run a [`Program`](transload_plan::program::Program).
//!
//! - **Both sides are memories of this process**: [`copy`] runs the program from one [`Memory`] to
//!   the other, with several threads if it is worth it.
//! - **The other side is somewhere else**: a [`MemoryStream`] lays one side's half of the program (a
//!   [`StreamProgram`](transload_plan::program::StreamProgram)) over its memory, and a [`Cursor`]
//!   gathers the bytes of the stream from there, or scatters them to there, in pieces cut anywhere.
//!
//! Programs are checked against the memory once, in O(places), and then run without looking. A CRC-32C of the
//! bytes in the order of the program ([`Crc32c`]) can be had on the way. It costs little where the processor has
//! AVX-512 (2 to 15 % of the time) or AVX2 (10 to 20 %), and a good third on others.
//!
//! **Other writers.** A sum is of the bytes that were delivered as long as nobody writes to them
//! meanwhile. Where an engine writes to a block while it is copied, the copy may hold old bytes, new ones
//! or some of both, and its sum may be of yet others, since some kernels read twice. Neither says that
//! such a copy is good: that is for leases and commits to say
//! ([`memory`](crate#other-writers)).
//!
//! # How it is done
//! A walk over the program turns its nests into rows of chunks at even distances, and a kernel moves
//! those, whatever layout they came from. On x86-64 the kernels prefetch ahead in program order and
//! store around the caches, once a transfer is too big to stay in them; which instructions they use
//! is found out at run time, and [`CopyReport::kernel`] tells. Elsewhere they are plain copies.
//!
//! Memory made of huge pages and touched beforehand, as [`Memory::allocate`] makes it, is up to
//! 20 % faster than small pages, and several times faster than pages never touched.
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

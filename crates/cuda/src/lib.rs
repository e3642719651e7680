//! Caches in the memory of NVIDIA GPUs, moved by one kernel and summed by another.
//!
//! [`available`] says whether a GPU can be used here. [`Gpu::open`] opens a device, [`DeviceMemory`] is memory on it, and
//! [`copy`](copy()) runs a program between such memories, or between one and memory of the host.
//!
//! The driver (R525 or newer, on Linux) is loaded when it is first needed; building needs nothing of CUDA. The kernels
//! are `cuda/walk.cu` and `cuda/crc32c.cu`, included as PTX for compute capability 7.0, which the driver compiles for the
//! GPU in use.
//!
//! | file | idea |
//! |---|---|
//! | `sys`, `driver`, `error` | names of the driver's header; its functions, found at run time; what goes wrong |
//! | `context`, `resources`, `arena` | a device's context; its resources and their release; buffers that are reused |
//! | `launch` | from programs to launches of the kernel. Pure |
//! | `kernels`, `gpu` | the kernels, loaded; a device with them, its threads and its memory |
//! | `memory`, `stream` | allocations of a rank and group; a program laid over them |
//! | `piece`, `registered`, `pool` | pinned buffers for copies over the bus, our own or a ring's; which are in use |
//! | `crossing`, `queue`, `threads` | copies over the bus; the threads that submit them and report their end |
//! | `shared`, `sum`, `shuttle` | memory shared by two processes; sums on the GPU; a ring's slots, filled and emptied |
//! | `measure` | timed copies of this crate and of the driver, for `transload bench gpu` |
//! | `copy`, `peer`, `slots` | copies; those between two GPUs, and their bounce buffers |
//! | `mark`, `waiter` | points in streams that must be reached before blocks are touched; the threads that wait for them |

mod arena;
mod context;
mod copy;
mod crossing;
mod driver;
mod error;
mod gpu;
mod kernels;
mod launch;
mod mark;
mod measure;
mod memory;
mod peer;
mod piece;
mod pool;
mod queue;
mod registered;
mod resources;
mod shared;
#[expect(missing_docs, reason = "only a ring's ends share it")]
mod shuttle;
mod slots;
#[expect(missing_docs, reason = "only a ring's ends share it")]
mod stream;
mod sum;
mod sys;
#[cfg(test)]
mod tests;
mod threads;
mod waiter;

pub use copy::{Place, copy, copy_until_done};
pub use driver::available;
pub use error::{CallError, DeviceError, NoCuda};
pub use gpu::{Gpu, GpuOptions};
pub use launch::DEFAULT_MULTIPROCESSORS;
pub use launch::{LaunchError, MAX_LOOPS};
pub use mark::Mark;
pub use memory::DeviceMemory;

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub mod crossing {
        pub use crate::crossing::DmaBuffer;
    }
    pub mod measure {
        pub use crate::measure::{ChunkList, Meter, PinnedMemory, SUBMITTED};
    }
    pub mod pool {
        pub use crate::pool::{Held, PIECE};
    }
    pub mod queue {
        pub use crate::threads::Told;
    }
    pub mod shuttle {
        pub use crate::shuttle::{Moved, Shuttle, Slots};
    }
    pub mod stream {
        pub use crate::crossing::Way;
        pub use crate::stream::DeviceStream;
    }
}

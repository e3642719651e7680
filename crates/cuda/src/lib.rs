//! Caches in the memory of NVIDIA GPUs, moved by one kernel and summed by another.
//!
//! [`available`] says whether that can be had here; without a GPU everything else works as before. [`Gpu::open`] takes
//! a device, [`DeviceMemory`] is memory on it, and [`copy`](copy()) runs a program between such memories, or between
//! one and memory of the host.
//!
//! The driver is loaded when it is first needed: nothing of CUDA is needed to build this, and only the driver (R525 or
//! newer, on Linux) to use it. The kernels are `cuda/walk.cu` and `cuda/crc32c.cu`; they are part of this crate as PTX
//! for compute capability 7.0, which the driver compiles for the GPU that is there.
//!
//! | file | idea |
//! |---|---|
//! | `sys`, `driver`, `error` | names of the driver's header; its functions, found at run time; what goes wrong |
//! | `context`, `resources`, `arena` | a device's context; what is made in it and given back; what is kept and lent |
//! | `launch` | from programs to launches of the kernel. Pure |
//! | `kernels`, `gpu` | the kernels, loaded; a device with them, its threads and its memory |
//! | `memory`, `stream` | allocations of a rank and group; a program laid over them |
//! | `staging`, `registered`, `pool` | what bytes go through over the bus, of our own or of a ring's; who has it |
//! | `crossing`, `queue`, `threads` | bytes that cross the bus; the threads that have them do it |
//! | `shared`, `sum`, `shuttle` | memory shared by two processes; sums on the GPU; a ring's slots, filled and emptied |
//! | `measure` | copies of this crate and of the driver, timed: what `transload bench gpu` is made of |
//! | `copy`, `peer`, `slots` | copies; those between two GPUs, and what they pass through |
//! | `mark`, `waiter` | what has to be done before something may begin; the threads that wait for it |

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
mod pool;
mod queue;
mod registered;
mod resources;
mod shared;
#[expect(missing_docs, reason = "a ring's ends share it, and nobody else")]
mod shuttle;
mod slots;
mod staging;
#[expect(missing_docs, reason = "a ring's ends share it, and nobody else")]
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

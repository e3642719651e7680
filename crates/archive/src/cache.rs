//! The memory of one group of a rank, on the host or on a GPU.

#[cfg(feature = "cuda")]
use transload_cuda::{self, DeviceMemory, Place};
use transload_memory::Memory;
use transload_memory::copy::CopyOptions;
use transload_plan::program::Program;

use crate::ArchiveError;

/// The memory of an engine for one group of a rank. Blocks are saved from it and restored into it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cache {
    /// Memory of the host.
    Host(Memory),
    /// Memory of a GPU. Data crosses the bus in pieces, through the GPU's transfer buffers.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

impl From<Memory> for Cache {
    fn from(memory: Memory) -> Self {
        Self::Host(memory)
    }
}

#[cfg(feature = "cuda")]
impl From<DeviceMemory> for Cache {
    fn from(memory: DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

impl Cache {
    pub(crate) fn all(caches: &[impl Clone + Into<Self>]) -> Vec<Self> {
        caches.iter().cloned().map(Into::into).collect()
    }

    #[cfg(feature = "cuda")]
    fn place(&self) -> Place<'_> {
        match self {
            Self::Host(memory) => memory.into(),
            Self::Device(memory) => memory.into(),
        }
    }
}

/// Runs a program. When it returns, nothing accesses either memory any more.
pub(crate) fn copy(program: &Program, from: &Cache, to: &Cache) -> Result<(), ArchiveError> {
    // Several threads copy token chunks already.
    let options = CopyOptions { threads: Some(1), ..CopyOptions::default() };
    #[cfg(feature = "cuda")]
    transload_cuda::copy_until_done(program, from.place(), to.place(), &options)?;
    #[cfg(not(feature = "cuda"))]
    {
        let (Cache::Host(from), Cache::Host(to)) = (from, to);
        transload_memory::copy::copy(program, from, to, &options)?;
    }
    Ok(())
}

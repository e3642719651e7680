//! The caches of a side that are in GPU memory.

#[cfg(feature = "cuda")]
pub(in crate::commands) use with::{Gpu, find, open};
#[cfg(feature = "cuda")]
pub(super) use with::{GpuError, OnGpu};
#[cfg(not(feature = "cuda"))]
pub(in crate::commands) use without::{Gpu, find, open};
#[cfg(not(feature = "cuda"))]
pub(super) use without::{GpuError, OnGpu};

#[cfg(feature = "cuda")]
mod with {
    use transload::archive::Cache;
    use transload::transfer::device::{self, DeviceMemory, Place};
    use transload::transfer::memory::copy::CopyOptions;
    use transload::transfer::plan::program::{Nest, Placed, Program};
    use transload::transfer::{Memory, Region};

    pub(in crate::commands::engines) use transload::transfer::device::DeviceError as GpuError;
    pub(in crate::commands) use transload::transfer::device::Gpu;

    use crate::failure::Failure;

    /// Opens the first GPU, if there is one.
    ///
    /// # Errors
    /// Returns an error if the GPU exists but cannot be used.
    pub(in crate::commands) fn find() -> Result<Option<Gpu>, GpuError> {
        match Gpu::open(0) {
            Ok(gpu) => Ok(Some(gpu)),
            Err(GpuError::NoCuda(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    pub(in crate::commands) fn open(ordinal: u32) -> Result<Gpu, Failure> {
        Gpu::open(ordinal).map_err(|error| match error {
            GpuError::NoCuda(why) => {
                Failure::no(why.to_string(), "this command needs an NVIDIA GPU and driver R525 or newer")
            }
            error => Failure::no(
                format!("GPU {ordinal} cannot be used: {error}"),
                "`nvidia-smi` lists the GPUs and the processes that use them",
            ),
        })
    }

    /// A side's caches in GPU memory, by rank. The side writes and checks copies of them on the host.
    #[derive(Debug)]
    pub(in crate::commands::engines) struct OnGpu(Vec<DeviceMemory>);

    impl OnGpu {
        /// Allocates memory on the GPU for these host copies.
        pub(in crate::commands::engines) fn new(gpu: &Gpu, copies: &[Memory]) -> Result<Self, GpuError> {
            let ranks = copies.iter().map(|copy| DeviceMemory::allocate(gpu, &[copy.bytes() as usize]));
            ranks.collect::<Result<_, _>>().map(Self)
        }

        pub(in crate::commands::engines) fn upload(&self, rank: usize, copy: &Memory) -> Result<(), GpuError> {
            whole(copy, &self.0[rank], copy.bytes())
        }

        pub(in crate::commands::engines) fn download(&self, rank: usize, copy: &Memory) -> Result<(), GpuError> {
            whole(&self.0[rank], copy, copy.bytes())
        }

        pub(in crate::commands::engines) fn memory(&self, rank: usize) -> &DeviceMemory {
            &self.0[rank]
        }

        /// Returns one rank's memory in the form that an agent registers.
        pub(in crate::commands::engines) fn region(&self, rank: usize) -> Region {
            self.memory(rank).into()
        }

        /// Returns one rank's memory in the form that an archive takes.
        pub(in crate::commands::engines) fn cache(&self, rank: usize) -> Cache {
            self.memory(rank).clone().into()
        }
    }

    /// Copies all bytes between memories with one allocation each.
    fn whole<'a>(from: impl Into<Place<'a>>, to: impl Into<Place<'a>>, bytes: u64) -> Result<(), GpuError> {
        let program = Program {
            nests: vec![Nest { loops: Default::default(), run: bytes }],
            placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
        };
        device::copy(&program, from, to, &CopyOptions::default()).map(drop)
    }
}

/// Stand-ins without the feature: there is no GPU, so none of these methods is ever called.
#[cfg(not(feature = "cuda"))]
mod without {
    use std::convert::Infallible;

    use transload::archive::Cache;
    use transload::transfer::{Memory, Region};

    use crate::failure::Failure;

    pub(in crate::commands::engines) type GpuError = Infallible;

    /// An uninhabited type, since there is no GPU.
    #[derive(Clone, Debug)]
    pub(in crate::commands) enum Gpu {}

    impl Gpu {
        pub(in crate::commands) fn name(&self) -> &str {
            match *self {}
        }

        pub(in crate::commands) fn ordinal(&self) -> u32 {
            match *self {}
        }
    }

    pub(in crate::commands) fn find() -> Result<Option<Gpu>, GpuError> {
        Ok(None)
    }

    pub(in crate::commands) fn open(_ordinal: u32) -> Result<Gpu, Failure> {
        Err(Failure::no(
            "no CUDA here: this program was built without the feature `cuda`",
            "build it with its default features",
        ))
    }

    /// An uninhabited type, since there is no GPU memory.
    #[derive(Debug)]
    pub(in crate::commands::engines) enum OnGpu {}

    impl OnGpu {
        pub(in crate::commands::engines) fn new(gpu: &Gpu, _copies: &[Memory]) -> Result<Self, GpuError> {
            match *gpu {}
        }

        pub(in crate::commands::engines) fn upload(&self, _rank: usize, _copy: &Memory) -> Result<(), GpuError> {
            match *self {}
        }

        pub(in crate::commands::engines) fn download(&self, _rank: usize, _copy: &Memory) -> Result<(), GpuError> {
            match *self {}
        }

        pub(in crate::commands::engines) fn region(&self, _rank: usize) -> Region {
            match *self {}
        }

        pub(in crate::commands::engines) fn cache(&self, _rank: usize) -> Cache {
            match *self {}
        }
    }
}

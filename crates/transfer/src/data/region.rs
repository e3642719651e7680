//! Memory of any kind, as agents see it. It may work asynchronously.
//!
//! Agents need four operations: the lengths of its allocations, laying a program over it, gathering the program's next
//! bytes into a buffer, and scattering bytes from one. Host memory has finished when the call returns. Memory that
//! takes longer is an [`AsyncMemory`].

#[cfg(feature = "cuda")]
use std::any::Any;
use std::{ops::Range, sync::Arc};

use tokio::sync::watch;

use super::{
    async_cursor::AsyncCursor,
    async_memory::{AsyncMemory, AsyncStream},
    fence::Inside,
    operation::{Operation, RegionError},
    shared::SharedMemory,
};
use transload_memory::Memory;
use transload_memory::copy::{Crc32c, Cursor, MemoryStream, StreamError};
use transload_plan::program::StreamProgram;

/// The memory of one group of a rank. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct Region(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host(Memory),
    Async(Arc<dyn AsyncMemory>),
}

impl From<Memory> for Region {
    fn from(memory: Memory) -> Self {
        Self(Kind::Host(memory))
    }
}

impl From<&Memory> for Region {
    fn from(memory: &Memory) -> Self {
        memory.clone().into()
    }
}

impl From<Arc<dyn AsyncMemory>> for Region {
    fn from(memory: Arc<dyn AsyncMemory>) -> Self {
        Self(Kind::Async(memory))
    }
}

impl Region {
    /// Returns the length of each allocation in bytes.
    pub fn extents(&self) -> Vec<u64> {
        match &self.0 {
            Kind::Host(memory) => {
                let extent = |number| memory.allocation(number).map_or(0, |(_, len)| len as u64);
                (0..memory.allocations()).map(extent).collect()
            }
            Kind::Async(memory) => memory.extents(),
        }
    }

    /// Returns the ordinal of the GPU that holds it, if any.
    pub fn device(&self) -> Option<u32> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Async(memory) => memory.device(),
        }
    }

    /// Returns a channel that becomes true, for good, when the memory is lost. `None` if that is impossible.
    pub(crate) fn lost(&self) -> Option<watch::Receiver<bool>> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Async(memory) => Some(memory.lost()),
        }
    }

    /// Returns the memory that works asynchronously, if it is of this type.
    #[cfg(feature = "cuda")]
    pub(crate) fn async_memory<T: AsyncMemory>(&self) -> Option<&T> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Async(memory) => (memory.as_ref() as &dyn Any).downcast_ref(),
        }
    }

    /// Lays a program over the memory.
    pub(crate) fn bind(&self, program: StreamProgram) -> Result<RegionStream, RegionError> {
        Ok(match &self.0 {
            Kind::Host(memory) => RegionStream::Host(MemoryStream::new(program, memory.clone())?),
            Kind::Async(memory) => RegionStream::Async(memory.bind(program)?),
        })
    }
}

impl SharedMemory {
    /// Registers the memory once, for all devices, with the first driver of these regions' devices that accepts it. It
    /// takes as long as pinning every page.
    ///
    /// # Errors
    /// The error of the first driver, if none accepts it. Then bytes pass through the devices' own buffers.
    pub(crate) fn register(&self, regions: &[Region]) -> Result<(), RegionError> {
        let Some(mapping) = &self.mapping else {
            return Ok(());
        };
        let mut refused = Ok(());
        for region in regions {
            let Kind::Async(memory) = &region.0 else {
                continue;
            };
            // SAFETY: the bytes are the mapping's.
            match unsafe { memory.register(self.start, self.len(), mapping.map.clone()) } {
                Ok(registration) => {
                    let _ = mapping.registration.set(registration);
                    return Ok(());
                }
                Err(error) => refused = refused.and(Err(error)),
            }
        }
        refused
    }
}

/// A program laid over a region.
#[derive(Clone, Debug)]
pub(crate) enum RegionStream {
    Host(MemoryStream),
    Async(Arc<dyn AsyncStream>),
}

impl RegionStream {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(stream) => stream.bytes(),
            Self::Async(stream) => stream.bytes(),
        }
    }

    /// Makes a cursor for a range. If it is to gather, all of the range may be read already.
    pub(crate) fn cursor(&self, range: Range<u64>) -> Result<RegionCursor, StreamError> {
        Ok(match self {
            Self::Host(stream) => RegionCursor::Host(stream.cursor(range.start)?),
            Self::Async(stream) => RegionCursor::Async(AsyncCursor::new(stream.clone(), range)),
        })
    }
}

/// A position in the bytes of a program. It moves forward only.
#[derive(Debug)]
pub(crate) enum RegionCursor {
    Host(Cursor),
    Async(AsyncCursor),
}

impl RegionCursor {
    /// Waits for bytes to gather, and returns how many of the next can be gathered without waiting. Cancel-safe.
    pub(crate) async fn ready(&mut self, inside: &Inside) -> Result<usize, RegionError> {
        match self {
            Self::Host(_) => Ok(usize::MAX),
            Self::Async(cursor) => cursor.ready(inside).await,
        }
    }

    /// Gathers the next bytes, and adds them to `sum`.
    pub(crate) async fn gather(
        &mut self,
        out: &mut [u8],
        sum: &mut Crc32c,
        inside: &Inside,
    ) -> Result<(), RegionError> {
        match self {
            Self::Host(cursor) => cursor.gather(out, Some(sum))?,
            Self::Async(cursor) => {
                cursor.gather(out, inside).await?;
                sum.update(out);
            }
        }
        Ok(())
    }

    /// Scatters the next bytes, and adds them to `sum`. They are in place once the operations of
    /// [`submit`](Self::submit) are done.
    pub(crate) async fn scatter(&mut self, bytes: &[u8], sum: &mut Crc32c, inside: &Inside) -> Result<(), RegionError> {
        match self {
            Self::Host(cursor) => cursor.scatter(bytes, Some(sum))?,
            Self::Async(cursor) => {
                sum.update(bytes);
                cursor.scatter(bytes, inside).await?;
            }
        }
        Ok(())
    }

    /// Submits the scattered bytes to the memory.
    pub(crate) fn submit(&mut self, inside: &Inside) -> Vec<Operation<()>> {
        match self {
            Self::Host(_) => Vec::new(),
            Self::Async(cursor) => cursor.submit(inside),
        }
    }
}

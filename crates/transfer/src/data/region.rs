//! Memory of any kind, as agents see it. It may work asynchronously.
//!
//! Agents need four operations: the lengths of its allocations, laying a program over it, gathering the program's next
//! bytes into a buffer, and scattering bytes from one. Host memory has finished when the call returns. Memory that
//! takes longer is a [`Later`]: it returns an [`Operation`], which holds up the fence of its transfer until it is done.

use std::{any::Any, fmt::Debug, ops::Range, ptr::NonNull, sync::Arc};

use tokio::sync::watch;

use super::{
    ahead::LaterCursor,
    fence::Inside,
    operation::{Operation, RegionError},
    shared::{Registration, Stretch},
};
use crate::path::carrier::Provider;
use transload_memory::Memory;
use transload_memory::copy::{Crc32c, Cursor, MemoryStream, StreamError};
use transload_plan::program::StreamProgram;

/// The memory of one group of a rank. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct Region(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host(Memory),
    Later(Arc<dyn Later>),
}

/// Memory that works asynchronously: operations continue after the call returns.
pub(crate) trait Later: Debug + Send + Sync {
    /// Returns the length of each allocation in bytes.
    fn extents(&self) -> Vec<u64>;

    /// Returns the ordinal of the GPU that holds it, if any.
    fn device(&self) -> Option<u32> {
        None
    }

    /// Lays a program over it.
    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn LaterStream>, RegionError>;

    /// Returns a channel that becomes true, for good, when the memory is lost.
    fn lost(&self) -> watch::Receiver<bool>;

    /// Registers host memory so that its device can access it, until the result is dropped.
    ///
    /// # Safety
    /// The bytes stay valid for as long as `mapping` exists.
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, RegionError>;

    /// Returns the path between agents whose memory is all on its GPU, if it is on one.
    fn path(&self) -> Option<Box<dyn Provider>> {
        None
    }
}

/// A program laid over such memory. Ranges are positions in the program's stream.
pub(crate) trait LaterStream: Any + Debug + Send + Sync {
    fn bytes(&self) -> u64;

    /// Gathers at most [`WINDOW`](super::ahead::WINDOW) bytes. The returned buffer is `into`, and contains just them.
    fn gather(&self, range: Range<u64>, into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>>;

    /// Requests room for bytes that are to be scattered. Rooms are few, so its holder must wait neither for another one
    /// nor for a peer.
    fn room(&self, inside: &Inside) -> Operation<Box<dyn Room>>;

    /// Gathers bytes from a position on until the shared memory is full. The memory is released before the operation is
    /// done.
    fn gather_into(&self, position: u64, into: Stretch, inside: &Inside) -> Operation<()>;

    /// Scatters the bytes of shared memory from a position on. The memory is released before the operation is done.
    fn scatter_from(&self, position: u64, from: Stretch, inside: &Inside) -> Operation<()>;
}

/// Host memory through which bytes pass on their way to a stream.
pub(crate) trait Room: Debug + Send {
    fn bytes(&mut self) -> &mut [u8];

    /// Scatters its first `len` bytes from a position on.
    fn scatter(self: Box<Self>, position: u64, len: usize, inside: &Inside) -> Operation<()>;
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

impl From<Arc<dyn Later>> for Region {
    fn from(memory: Arc<dyn Later>) -> Self {
        Self(Kind::Later(memory))
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
            Kind::Later(memory) => memory.extents(),
        }
    }

    /// Returns the ordinal of the GPU that holds it, if any.
    pub fn device(&self) -> Option<u32> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Later(memory) => memory.device(),
        }
    }

    /// Returns a channel that becomes true, for good, when the memory is lost. `None` if that is impossible.
    pub(crate) fn lost(&self) -> Option<watch::Receiver<bool>> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Later(memory) => Some(memory.lost()),
        }
    }

    /// Registers host memory so that the region's device can access it, until the result is dropped. `None` if the
    /// region is not on a device.
    ///
    /// # Safety
    /// The bytes stay valid for as long as `mapping` exists.
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Option<Result<Registration, RegionError>> {
        match &self.0 {
            Kind::Host(_) => None,
            // SAFETY: the caller vouches for the bytes.
            Kind::Later(memory) => Some(unsafe { memory.register(start, len, mapping) }),
        }
    }

    /// Returns the path between agents whose memory is all on its GPU, if it is on one.
    pub(crate) fn path(&self) -> Option<Box<dyn Provider>> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Later(memory) => memory.path(),
        }
    }

    /// Lays a program over the memory.
    pub(crate) fn bind(&self, program: StreamProgram) -> Result<RegionStream, RegionError> {
        Ok(match &self.0 {
            Kind::Host(memory) => RegionStream::Host(MemoryStream::new(program, memory.clone())?),
            Kind::Later(memory) => RegionStream::Later(memory.bind(program)?),
        })
    }
}

/// A program laid over a region.
#[derive(Clone, Debug)]
pub(crate) enum RegionStream {
    Host(MemoryStream),
    Later(Arc<dyn LaterStream>),
}

impl RegionStream {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(stream) => stream.bytes(),
            Self::Later(stream) => stream.bytes(),
        }
    }

    /// Makes a cursor for a range. If it is to gather, all of the range may be read already.
    pub(crate) fn cursor(&self, range: Range<u64>) -> Result<RegionCursor, StreamError> {
        Ok(match self {
            Self::Host(stream) => RegionCursor::Host(stream.cursor(range.start)?),
            Self::Later(stream) => RegionCursor::Later(LaterCursor::new(stream.clone(), range)),
        })
    }
}

/// A position in the bytes of a program. It moves forward only.
#[derive(Debug)]
pub(crate) enum RegionCursor {
    Host(Cursor),
    Later(LaterCursor),
}

impl RegionCursor {
    /// Waits for bytes to gather, and returns how many of the next can be gathered without waiting. Cancel-safe.
    pub(crate) async fn ready(&mut self, inside: &Inside) -> Result<usize, RegionError> {
        match self {
            Self::Host(_) => Ok(usize::MAX),
            Self::Later(cursor) => cursor.ready(inside).await,
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
            Self::Later(cursor) => {
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
            Self::Later(cursor) => {
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
            Self::Later(cursor) => cursor.submit(inside),
        }
    }
}

//! Memory as agents see it: of whatever kind, and perhaps not done at once.
//!
//! Agents ask four things of any memory: how long its allocations are, to lay a program over it, to gather the next bytes of
//! that into a buffer, and to scatter bytes from one. Host memory has done it when the call returns. A kind that needs
//! longer is a [`Later`]: it gives an [`Operation`], which holds up the fence of its transfer until it is done.

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

/// The memory of one group of a rank. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Region(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host(Memory),
    Later(Arc<dyn Later>),
}

/// Memory that has not done what it is asked to when a call returns.
pub(crate) trait Later: Debug + Send + Sync {
    /// How many bytes each of its allocations has.
    fn extents(&self) -> Vec<u64>;

    /// The ordinal of the GPU that it is on, if any.
    fn device(&self) -> Option<u32> {
        None
    }

    /// Lays a program over it.
    fn bind(&self, program: StreamProgram) -> Result<Arc<dyn LaterStream>, RegionError>;

    /// Turns true when it is lost, for good.
    fn lost(&self) -> watch::Receiver<bool>;

    /// Has its device reach memory of the host itself, until what this gives is dropped.
    ///
    /// # Safety
    /// The bytes are there for as long as their mapping.
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Result<Registration, RegionError>;

    /// The path between agents whose memory is all on its GPU, if it is on one.
    fn path(&self) -> Option<Box<dyn Provider>> {
        None
    }
}

/// A program laid over such memory. Ranges are of its stream.
pub(crate) trait LaterStream: Any + Debug + Send + Sync {
    fn bytes(&self) -> u64;

    /// Gathers some bytes, at most [`WINDOW`](super::ahead::WINDOW), into a buffer that is given back with just them.
    fn gather(&self, range: Range<u64>, into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>>;

    /// Asks for room for bytes that are to be scattered. Whoever has it waits for neither another room nor a peer: there are few.
    fn room(&self, inside: &Inside) -> Operation<Box<dyn Room>>;

    /// Gathers as many bytes from a position on as shared memory has room for, which is given back before the operation is
    /// done.
    fn gather_into(&self, position: u64, into: Stretch, inside: &Inside) -> Operation<()>;

    /// Scatters the bytes of shared memory from a position on, likewise.
    fn scatter_from(&self, position: u64, from: Stretch, inside: &Inside) -> Operation<()>;
}

/// Memory of the host that bytes go through on their way to a stream.
pub(crate) trait Room: Debug + Send {
    fn bytes(&mut self) -> &mut [u8];

    /// Scatters its first bytes, so many, from a position on.
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
    /// How many bytes each of its allocations has.
    pub fn extents(&self) -> Vec<u64> {
        match &self.0 {
            Kind::Host(memory) => {
                let extent = |number| memory.allocation(number).map_or(0, |(_, len)| len as u64);
                (0..memory.allocations()).map(extent).collect()
            }
            Kind::Later(memory) => memory.extents(),
        }
    }

    /// The ordinal of the GPU that it is on, if any.
    pub fn device(&self) -> Option<u32> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Later(memory) => memory.device(),
        }
    }

    /// Turns true when the memory is lost, for good; `None` where that cannot be.
    pub(crate) fn lost(&self) -> Option<watch::Receiver<bool>> {
        match &self.0 {
            Kind::Host(_) => None,
            Kind::Later(memory) => Some(memory.lost()),
        }
    }

    /// Has its device, if it lies on one, reach memory of the host, until what this gives is dropped.
    ///
    /// # Safety
    /// The bytes are there for as long as their mapping.
    pub(crate) unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Option<Result<Registration, RegionError>> {
        match &self.0 {
            Kind::Host(_) => None,
            // SAFETY: the caller's word.
            Kind::Later(memory) => Some(unsafe { memory.register(start, len, mapping) }),
        }
    }

    /// The path between agents whose memory is all on its GPU, if it is on one.
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

    /// A cursor for bytes of a range, which may be read already if it is to gather.
    pub(crate) fn cursor(&self, range: Range<u64>) -> Result<RegionCursor, StreamError> {
        Ok(match self {
            Self::Host(stream) => RegionCursor::Host(stream.cursor(range.start)?),
            Self::Later(stream) => RegionCursor::Later(LaterCursor::new(stream.clone(), range)),
        })
    }
}

/// A place in the bytes of a program, which moves forward.
#[derive(Debug)]
pub(crate) enum RegionCursor {
    Host(Cursor),
    Later(LaterCursor),
}

impl RegionCursor {
    /// Waits for bytes to gather, and says how many of the next can be had without waiting. Cancel-safe.
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

    /// Scatters the next bytes, and adds them to `sum`. They are in their place once what [`submit`](Self::submit) gives
    /// is done.
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

    /// Hands what was scattered to the memory.
    pub(crate) fn submit(&mut self, inside: &Inside) -> Vec<Operation<()>> {
        match self {
            Self::Host(_) => Vec::new(),
            Self::Later(cursor) => cursor.submit(inside),
        }
    }
}

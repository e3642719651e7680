//! Memory as agents see it: of whatever kind, and perhaps not done at once.
//!
//! Agents ask four things of memory: how long its allocations are, to lay a program over it, to gather the next bytes of
//! that into a buffer, and to scatter bytes from one. Host memory has done it when the call returns. A kind that needs
//! longer submits an [`Operation`], which owns its buffer and holds up the fence of its transfer until it is done.

use std::ops::{DerefMut, Range};

#[cfg(test)]
use super::late::{LateCursor, LateMemory};
use super::{
    fence::Inside,
    operation::{Operation, RegionError},
};
use crate::{
    copy::{Crc32c, Cursor, MemoryStream, StreamError},
    memory::{CheckError, Memory},
    plan::program::StreamProgram,
};

/// The memory of one group of a rank. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Region(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host(Memory),
    #[cfg(test)]
    Late(LateMemory),
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

#[cfg(test)]
impl From<LateMemory> for Region {
    fn from(memory: LateMemory) -> Self {
        Self(Kind::Late(memory))
    }
}

impl Region {
    /// How many bytes each of its allocations has.
    pub fn extents(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let memory = self.memory();
        let extent = |number| memory.allocation(number).map_or(0, |(_, len)| len as u64);
        (0..memory.allocations()).map(extent)
    }

    fn memory(&self) -> &Memory {
        match &self.0 {
            Kind::Host(memory) => memory,
            #[cfg(test)]
            Kind::Late(late) => late.memory(),
        }
    }

    /// Lays a program over the memory.
    pub(crate) fn bind(&self, program: StreamProgram) -> Result<MemoryStream, CheckError> {
        MemoryStream::new(program, self.memory().clone())
    }

    /// A place in a program that is laid over this memory.
    pub(crate) fn cursor(
        &self,
        stream: &MemoryStream,
        position: u64,
    ) -> Result<RegionCursor, StreamError> {
        Ok(match &self.0 {
            Kind::Host(_) => RegionCursor::Host(stream.cursor(position)?),
            #[cfg(test)]
            Kind::Late(late) => RegionCursor::Late(late.cursor(stream, position)),
        })
    }
}

/// A place in the bytes of a program, which moves forward.
#[derive(Debug)]
pub(crate) enum RegionCursor {
    Host(Cursor),
    #[cfg(test)]
    Late(LateCursor),
}

impl RegionCursor {
    /// Gathers the next bytes into a range of a buffer, and adds them to `sum`.
    #[cfg_attr(
        not(test),
        expect(unused_variables, reason = "host memory submits nothing")
    )]
    pub(crate) async fn gather<B>(
        &mut self,
        mut buffer: B,
        range: Range<usize>,
        sum: &mut Crc32c,
        inside: &Inside,
    ) -> Result<B, RegionError>
    where
        B: DerefMut<Target = [u8]> + Send + 'static,
    {
        match self {
            Self::Host(cursor) => cursor.gather(&mut buffer[range], Some(sum))?,
            #[cfg(test)]
            Self::Late(cursor) => {
                buffer = cursor.gather(buffer, range.clone(), inside).await?;
                sum.update(&buffer[range]);
            }
        }
        Ok(buffer)
    }

    /// Scatters the next bytes, and adds them to `sum`. They are in their place once what [`submit`](Self::submit) gives
    /// is done.
    pub(crate) fn scatter(&mut self, bytes: &[u8], sum: &mut Crc32c) -> Result<(), StreamError> {
        match self {
            Self::Host(cursor) => cursor.scatter(bytes, Some(sum)),
            #[cfg(test)]
            Self::Late(cursor) => {
                sum.update(bytes);
                cursor.scatter(bytes);
                Ok(())
            }
        }
    }

    /// Hands what was scattered to the memory.
    #[cfg_attr(
        not(test),
        expect(unused_variables, reason = "host memory submits nothing")
    )]
    pub(crate) fn submit(&mut self, inside: &Inside) -> Option<Operation<()>> {
        match self {
            Self::Host(_) => None,
            #[cfg(test)]
            Self::Late(cursor) => cursor.submit(inside),
        }
    }

    /// The cursor of memory that this process can reach itself.
    pub(crate) fn host(&mut self) -> Option<&mut Cursor> {
        match self {
            Self::Host(cursor) => Some(cursor),
            #[cfg(test)]
            Self::Late(_) => None,
        }
    }
}

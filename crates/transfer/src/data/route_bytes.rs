//! One side's bytes of a route, where they lie.

use std::{ops::Range, sync::Arc};

use thiserror::Error;

use crate::path::ring::carrier::staging::{ReadWindow, StageError, WriteWindow};
use crate::{
    copy::{Crc32c, Cursor, MemoryStream, StreamError},
    memory::{CheckError, Memory},
    plan::RouteStream,
};

/// The byte stream of a route, bound to the memories of one side: all of it proved to lie in them,
/// so that any range can be gathered or scattered without looking again. Clones are cheap.
#[derive(Clone, Debug)]
pub struct RouteBytes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sections: Box<[Section]>,
    bytes: u64,
}

#[derive(Debug)]
struct Section {
    start: u64,
    layer: Option<u32>,
    stream: MemoryStream,
}

impl Section {
    fn end(&self) -> u64 {
        self.start + self.stream.bytes()
    }
}

/// Why a route cannot be bound to memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RouteError {
    /// There is no memory for one of its groups.
    #[error("no memory is registered for group {group}")]
    NoMemory {
        /// Index of the group in the plan.
        group: usize,
    },
    /// The memory is smaller than its deployment says.
    #[error("group {group}: {source}")]
    Check {
        /// Index of the group in the plan.
        group: usize,
        /// What does not fit.
        source: CheckError,
    },
}

impl RouteBytes {
    /// Binds a stream to memories; `memory` gives the one of a group, by its index in the plan.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn new<'a>(
        stream: RouteStream,
        memory: impl Fn(usize) -> Option<&'a Memory>,
    ) -> Result<Self, RouteError> {
        let bytes = stream.bytes();
        let bind = |section: crate::plan::Section| {
            let group = section.group;
            let memory = memory(group).ok_or(RouteError::NoMemory { group })?;
            let stream = MemoryStream::new(section.program, memory.clone())
                .map_err(|source| RouteError::Check { group, source })?;
            Ok(Section {
                start: section.start,
                layer: section.layer,
                stream,
            })
        };
        let sections = stream.sections.into_iter().map(bind);
        let sections = sections.collect::<Result<_, _>>()?;
        let inner = Arc::new(Inner { sections, bytes });
        Ok(Self { inner })
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Where the bytes of one layer lie in the stream. Empty unless the plan goes by layer and has it.
    pub fn layer(&self, layer: u32) -> Range<u64> {
        let of_layer = |section: &&Section| section.layer == Some(layer);
        let mut sections = self.inner.sections.iter().filter(of_layer);
        let Some(first) = sections.next() else {
            return 0..0;
        };
        first.start..sections.next_back().unwrap_or(first).end()
    }

    /// Ends of the stretches that are ready one after another: of layers, or of everything.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = u64> + '_ {
        let sections = &self.inner.sections;
        let last_of_layer = |i: usize| {
            let layer = sections[i].layer;
            let next = sections.get(i + 1);
            next.is_none_or(|next| layer.is_some() && next.layer != layer)
        };
        let ends = (0..sections.len()).filter(move |&i| last_of_layer(i));
        ends.map(|i| sections[i].end())
    }

    /// A cursor at an offset.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn cursor(&self, position: u64) -> Result<RouteCursor, StreamError> {
        if position > self.bytes() {
            return Err(StreamError::PastEnd {
                offset: position,
                len: 0,
                bytes: self.bytes(),
            });
        }
        let sections = &self.inner.sections;
        let section = sections.partition_point(|section| section.end() <= position);
        let next = sections.get(section);
        let cursor = next.map(|next| next.stream.cursor(position - next.start));
        Ok(RouteCursor {
            route: self.clone(),
            section,
            cursor: cursor.transpose()?,
            position,
        })
    }
}

/// A place in a route's bytes, which moves forward.
#[derive(Debug)]
pub struct RouteCursor {
    route: RouteBytes,
    section: usize,
    /// Inside that section; `None` at the end of the route.
    cursor: Option<Cursor>,
    position: u64,
}

impl RouteCursor {
    /// Offset in the route.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Gathers the next bytes, and adds them to `sum`.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn gather(&mut self, out: &mut [u8], sum: &mut Crc32c) -> Result<(), StreamError> {
        self.each_section(out.len(), |cursor, bytes| {
            cursor.gather(&mut out[bytes], sum)
        })
    }

    /// Scatters the next bytes, and adds them to `sum`.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn scatter(&mut self, bytes: &[u8], sum: &mut Crc32c) -> Result<(), StreamError> {
        self.each_section(bytes.len(), |cursor, range| {
            cursor.scatter(&bytes[range], sum)
        })
    }

    /// Gathers the next `len` bytes to `at` in a slot, and adds them to `sum`.
    pub(crate) fn gather_slot(
        &mut self,
        slot: &mut WriteWindow<'_>,
        at: usize,
        len: usize,
        sum: &mut Crc32c,
    ) -> Result<(), StageError> {
        self.each_section(len, |cursor, bytes| {
            slot.gather(at + bytes.start, bytes.len(), cursor, sum)
        })
    }

    /// Scatters `len` bytes from `at` in a slot, and adds them to `sum`.
    pub(crate) fn scatter_slot(
        &mut self,
        slot: &ReadWindow<'_>,
        at: usize,
        len: usize,
        sum: &mut Crc32c,
    ) -> Result<(), StageError> {
        self.each_section(len, |cursor, bytes| {
            slot.scatter(at + bytes.start, bytes.len(), cursor, sum)
        })
    }

    /// Moves over the next `len` bytes: calls `each` with every section's cursor and the range of the
    /// `len` bytes that lie there.
    fn each_section<E: From<StreamError>>(
        &mut self,
        len: usize,
        mut each: impl FnMut(&mut Cursor, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.route.bytes();
        if len as u64 > bytes - self.position {
            let (offset, len) = (self.position, len as u64);
            return Err(StreamError::PastEnd { offset, len, bytes }.into());
        }
        let mut done = 0;
        while done < len {
            let Some((cursor, left)) = self.current() else {
                break;
            };
            let step = (len - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            each(cursor, done..done + step)?;
            self.moved(step as u64)?;
            done += step;
        }
        Ok(())
    }

    /// The current section's cursor, and how many bytes are left of that section.
    fn current(&mut self) -> Option<(&mut Cursor, u64)> {
        let end = self.route.inner.sections.get(self.section)?.end();
        Some((self.cursor.as_mut()?, end - self.position))
    }

    /// Notes that the current section's cursor has moved.
    fn moved(&mut self, bytes: u64) -> Result<(), StreamError> {
        self.position += bytes;
        let sections = &self.route.inner.sections;
        if self.position == sections[self.section].end() {
            self.section += 1;
            let next = sections.get(self.section);
            self.cursor = next.map(|next| next.stream.cursor(0)).transpose()?;
        }
        Ok(())
    }
}

//! One side's bytes of a route, in its memory.

use std::{ops::Range, sync::Arc};

use thiserror::Error;

use super::{
    fence::Inside,
    operation::{Operation, Operations, RegionError},
    region::{Region, RegionCursor, RegionStream},
};
use transload_memory::copy::{Crc32c, StreamError};
use transload_memory::internal::settle;
use transload_plan::codec::Codec;
use transload_plan::{Pieces, RouteStream};

/// The byte stream of a route, bound to the memories of one side. All of it is proved to lie in them, so that any range
/// can be gathered or scattered without further checks. Clones are cheap.
#[derive(Clone, Debug)]
pub struct RouteBytes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sections: Box<[Section]>,
    bytes: u64,
    codec: Codec,
}

#[derive(Debug)]
struct Section {
    start: u64,
    layer: Option<u32>,
    stream: RegionStream,
    pieces: Option<Pieces>,
}

impl Section {
    fn end(&self) -> u64 {
        self.start + self.stream.bytes()
    }

    /// Makes a cursor for this section's part of a range of the route. The range must begin in this section.
    fn cursor(&self, range: &Range<u64>) -> Result<RegionCursor, StreamError> {
        let end = range.end.min(self.end());
        self.stream.cursor(range.start - self.start..end - self.start)
    }
}

/// The reason why a route cannot be bound to memory. Groups are given by their index in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RouteError {
    #[error("no memory is registered for group {group}")]
    NoMemory { group: usize },
    /// The memory is smaller than its deployment says, or cannot be used now.
    #[error("group {group}: {source}")]
    Region { group: usize, source: RegionError },
}

impl RouteBytes {
    /// Binds a stream to memory. `region` returns that of a group, given the group's index in the plan.
    ///
    /// # Errors
    /// `RouteError`.
    pub fn new(stream: RouteStream, region: impl Fn(usize) -> Option<Region>) -> Result<Self, RouteError> {
        let (bytes, codec) = (stream.bytes(), stream.codec);
        let bind = |section: transload_plan::Section| {
            let group = section.group;
            let region = region(group).ok_or(RouteError::NoMemory { group })?;
            let stream = region.bind(section.program);
            let stream = stream.map_err(|source| RouteError::Region { group, source })?;
            Ok(Section { start: section.start, layer: section.layer, stream, pieces: section.pieces })
        };
        let sections = stream.sections.into_iter().map(bind);
        let sections = sections.collect::<Result<_, _>>()?;
        let inner = Inner { sections, bytes, codec };
        let inner = Arc::new(inner);
        Ok(Self { inner })
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Returns the codec of the parts that can be encoded.
    pub fn codec(&self) -> Codec {
        self.inner.codec
    }

    /// Returns the piece that begins at a position, and its number of bytes.
    pub(crate) fn piece(&self, position: u64) -> (Pieces, usize) {
        let sections = &self.inner.sections;
        let section = sections.partition_point(|section| section.end() <= position);
        let section = sections.get(section);
        let found = section.and_then(|section| Some((section, section.pieces?)));
        let (section, pieces) = found.unwrap_or_else(|| unreachable!("no piece at {position}"));
        let end = section.end().min(position + pieces.bytes);
        (pieces, (end - position) as usize)
    }

    /// Returns the first position from `position` on at which a stream may be cut: with a codec the end of a piece,
    /// otherwise any.
    pub(crate) fn cut(&self, position: u64) -> u64 {
        let sections = &self.inner.sections;
        let section = sections.partition_point(|section| section.end() < position);
        match sections.get(section).map(|section| (section, section.pieces)) {
            Some((section, Some(Pieces { bytes, .. }))) => {
                let inside = (position - section.start).next_multiple_of(bytes);
                section.end().min(section.start + inside)
            }
            _ => position,
        }
    }

    /// Returns the range of one layer in the stream. It is empty unless the plan goes by layer and has that layer.
    pub fn layer(&self, layer: u32) -> Range<u64> {
        let of_layer = |section: &&Section| section.layer == Some(layer);
        let mut sections = self.inner.sections.iter().filter(of_layer);
        let Some(first) = sections.next() else {
            return 0..0;
        };
        first.start..sections.next_back().unwrap_or(first).end()
    }

    /// Returns the ends of the stretches that become ready one after another: the layers, or everything at once.
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

    /// Checks that the route has `len` bytes from an offset on.
    fn check(&self, offset: u64, len: u64) -> Result<(), StreamError> {
        let bytes = self.bytes();
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        let past = StreamError::PastEnd { offset, len, bytes };
        end.map(drop).ok_or(past)
    }

    /// Makes a cursor for a range. If it is to gather, all of the range may be read from now on.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn cursor(&self, range: Range<u64>) -> Result<RouteCursor, StreamError> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let sections = &self.inner.sections;
        let section = sections.partition_point(|section| section.end() <= range.start);
        let next = sections.get(section).map(|next| next.cursor(&range));
        Ok(RouteCursor {
            route: self.clone(),
            section,
            cursor: next.transpose()?,
            range,
            submitted: Operations::default(),
        })
    }
}

/// A position in a route's bytes. It moves forward only.
#[derive(Debug)]
pub struct RouteCursor {
    route: RouteBytes,
    section: usize,
    /// The cursor in that section; `None` at the end of the route.
    cursor: Option<RegionCursor>,
    /// The bytes that are left.
    range: Range<u64>,
    /// Unfinished operations of earlier sections.
    submitted: Operations,
}

impl RouteCursor {
    /// Returns the offset in the route.
    pub fn position(&self) -> u64 {
        self.range.start
    }

    /// Returns the number of bytes that are left.
    pub fn remaining(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Waits for bytes to gather, and returns how many of the next, at most `most`, can be gathered without waiting.
    /// Call it before taking a buffer that others wait for. Returns at least 1, unless none are left. Cancel-safe.
    pub(crate) async fn ready(&mut self, most: usize, inside: &Inside) -> Result<usize, RegionError> {
        let most = most.min(usize::try_from(self.remaining()).unwrap_or(usize::MAX));
        let Some((cursor, section)) = self.section(0, most) else {
            return Ok(0);
        };
        let mut ready = cursor.ready(inside).await?.min(section.end);
        if ready == section.end {
            for next in &self.route.inner.sections[self.section + 1..] {
                if ready == most || !matches!(next.stream, RegionStream::Host(_)) {
                    break;
                }
                let left = usize::try_from(next.end() - self.range.start);
                ready = most.min(left.unwrap_or(usize::MAX));
            }
        }
        Ok(ready.max(1))
    }

    /// Gathers the next bytes, and adds them to `sum`.
    pub(crate) async fn gather(
        &mut self,
        out: &mut [u8],
        sum: &mut Crc32c,
        inside: &Inside,
    ) -> Result<(), RegionError> {
        self.check(out.len())?;
        let mut done = 0;
        while let Some((cursor, bytes)) = self.section(done, out.len()) {
            cursor.gather(&mut out[bytes.clone()], sum, inside).await?;
            done = bytes.end;
            self.moved(bytes.len(), inside)?;
        }
        Ok(())
    }

    /// Scatters the next bytes, and adds them to `sum`. They are in place once the operations of
    /// [`submit`](Self::submit) are done. Waits while memory has no room for them.
    pub(crate) async fn scatter(&mut self, bytes: &[u8], sum: &mut Crc32c, inside: &Inside) -> Result<(), RegionError> {
        self.check(bytes.len())?;
        let mut done = 0;
        while let Some((cursor, range)) = self.section(done, bytes.len()) {
            let bytes = &bytes[range.clone()];
            cursor.scatter(bytes, sum, inside).await?;
            done = range.end;
            self.moved(range.len(), inside)?;
        }
        Ok(())
    }

    /// Submits the scattered bytes to the memory. Must be called on the thread that scattered them.
    pub(crate) fn submit(&mut self, inside: &Inside) -> Operations {
        settle();
        if let Some(cursor) = &mut self.cursor {
            self.submitted.push(cursor.submit(inside));
        }
        std::mem::take(&mut self.submitted)
    }

    /// Moves over the next `len` bytes, for a caller that gathers into or scatters from memory of which no slice may be
    /// made. Calls `each` with every section's cursor and the range of the `len` bytes that lie there. Returned
    /// operations are [submitted](Self::submit) with the others.
    pub(crate) fn each_section<E: From<StreamError>>(
        &mut self,
        len: usize,
        inside: &Inside,
        mut each: impl FnMut(&mut RegionCursor, Range<usize>) -> Result<Option<Operation<()>>, E>,
    ) -> Result<(), E> {
        self.check(len)?;
        let mut done = 0;
        while let Some((cursor, bytes)) = self.section(done, len) {
            let asked = each(cursor, bytes.clone())?;
            self.submitted.push(asked);
            done = bytes.end;
            self.moved(bytes.len(), inside)?;
        }
        Ok(())
    }

    fn check(&self, len: usize) -> Result<(), StreamError> {
        match len as u64 <= self.remaining() {
            true => Ok(()),
            false => Err(StreamError::PastEnd { offset: self.position(), len: len as u64, bytes: self.range.end }),
        }
    }

    /// Returns the current section's cursor, and which of `len` bytes lie there after the first `done`. `None` when all
    /// are done.
    fn section(&mut self, done: usize, len: usize) -> Option<(&mut RegionCursor, Range<usize>)> {
        let end = self.route.inner.sections.get(self.section)?.end();
        let left = usize::try_from(end - self.position()).unwrap_or(usize::MAX);
        let bytes = done..len.min(done.saturating_add(left));
        self.cursor.as_mut().filter(|_| done < len).zip(Some(bytes))
    }

    /// Records that the current section's cursor has moved.
    fn moved(&mut self, bytes: usize, inside: &Inside) -> Result<(), StreamError> {
        self.range.start += bytes as u64;
        let sections = &self.route.inner.sections;
        if self.position() == sections[self.section].end() {
            // Submitted now, because the next section may never become ready.
            settle();
            if let Some(cursor) = &mut self.cursor {
                self.submitted.push(cursor.submit(inside));
            }
            self.section += 1;
            let next = sections.get(self.section);
            self.cursor = next.map(|next| next.cursor(&self.range)).transpose()?;
        }
        Ok(())
    }
}

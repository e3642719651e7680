//! A cursor over memory that works asynchronously: the next bytes are gathered while earlier ones are sent.

use std::{
    mem::{replace, take},
    ops::Range,
    sync::Arc,
};

use super::{
    async_memory::{AsyncStream, Room},
    fence::Inside,
    operation::{Operation, RegionError},
    shared::Stretch,
};

/// The number of bytes that are gathered at a time: enough to hide a GPU's response time behind sending. A cursor has
/// two such windows, the one being sent and the next.
pub(crate) const WINDOW: usize = 256 << 10;

/// A position in the bytes of a program that is laid over such memory. It moves forward only.
#[derive(Debug)]
pub(crate) struct AsyncCursor {
    pub(super) stream: Arc<dyn AsyncStream>,
    /// Bytes that were neither requested nor submitted yet.
    range: Range<u64>,
    /// Gathered bytes, of which the first `consumed` were passed on.
    window: Vec<u8>,
    consumed: usize,
    next: Option<Operation<Vec<u8>>>,
    /// A free buffer.
    spare: Vec<u8>,
    /// Bytes to be scattered, which precede `range`: their room, and their number.
    room: Option<(Box<dyn Room>, usize)>,
    /// The operations that scatter the bytes before those.
    scattered: Vec<Operation<()>>,
}

impl AsyncCursor {
    /// Makes a cursor for a range. If it is to gather, all of the range may be read already.
    pub(crate) fn new(stream: Arc<dyn AsyncStream>, range: Range<u64>) -> Self {
        Self {
            stream,
            range,
            window: Vec::new(),
            consumed: 0,
            next: None,
            spare: Vec::new(),
            room: None,
            scattered: Vec::new(),
        }
    }

    /// Waits for bytes, and returns how many of the next can be gathered without waiting. Cancel-safe.
    pub(crate) async fn ready(&mut self, inside: &Inside) -> Result<usize, RegionError> {
        if self.consumed == self.window.len() {
            self.gather_window(inside).await?;
        }
        Ok(self.window.len() - self.consumed)
    }

    /// Gathers the next bytes, which must be in the range. Cancel-safe if they are [ready](Self::ready).
    pub(crate) async fn gather(&mut self, mut out: &mut [u8], inside: &Inside) -> Result<(), RegionError> {
        while !out.is_empty() {
            self.ready(inside).await?;
            let ready = &self.window[self.consumed..];
            let (now, later) = out.split_at_mut(ready.len().min(out.len()));
            now.copy_from_slice(&ready[..now.len()]);
            self.consumed += now.len();
            out = later;
        }
        Ok(())
    }

    /// Waits for the next window, and requests the one after it. If this future is dropped, the request is kept.
    async fn gather_window(&mut self, inside: &Inside) -> Result<(), RegionError> {
        let next = match self.next.take() {
            Some(next) => next,
            None => {
                let spare = take(&mut self.spare);
                self.ask(spare, inside)
            }
        };
        let gathered = (&mut *self.next.insert(next)).await;
        self.next = None;
        let used = replace(&mut self.window, gathered?);
        self.consumed = 0;
        match self.range.is_empty() {
            true => self.spare = used,
            false => self.next = Some(self.ask(used, inside)),
        }
        Ok(())
    }

    fn ask(&mut self, into: Vec<u8>, inside: &Inside) -> Operation<Vec<u8>> {
        let end = self.range.end.min(self.range.start + WINDOW as u64);
        let range = self.range.start..end;
        self.range.start = end;
        self.stream.gather(range, into, inside)
    }

    /// Takes the next bytes, to be scattered. Waits while there is no room for them.
    pub(crate) async fn scatter(&mut self, mut bytes: &[u8], inside: &Inside) -> Result<(), RegionError> {
        while !bytes.is_empty() {
            let (mut room, filled) = match self.room.take() {
                Some(room) => room,
                None => (self.stream.room(inside).await?, 0),
            };
            let free = &mut room.bytes()[filled..];
            let (now, later) = bytes.split_at(free.len().min(bytes.len()));
            free[..now.len()].copy_from_slice(now);
            let is_full = now.len() == free.len();
            self.room = Some((room, filled + now.len()));
            if is_full {
                self.scatter_room(inside);
            }
            bytes = later;
        }
        Ok(())
    }

    /// Submits the bytes to the memory. Returns the operations that place them.
    pub(crate) fn submit(&mut self, inside: &Inside) -> Vec<Operation<()>> {
        self.scatter_room(inside);
        take(&mut self.scattered)
    }

    fn scatter_room(&mut self, inside: &Inside) {
        if let Some((room, filled)) = self.room.take() {
            let position = self.pass(filled);
            self.scattered.push(room.scatter(position, filled, inside));
        }
    }

    /// Gathers the next bytes into shared memory.
    pub(crate) fn gather_into(&mut self, into: Stretch, inside: &Inside) -> Operation<()> {
        let position = self.pass(into.len());
        self.stream.gather_into(position, into, inside)
    }

    /// Scatters the bytes of shared memory as the next ones.
    pub(crate) fn scatter_from(&mut self, from: Stretch, inside: &Inside) -> Operation<()> {
        let position = self.pass(from.len());
        self.stream.scatter_from(position, from, inside)
    }

    /// Moves forward, and returns the position before.
    pub(super) fn pass(&mut self, bytes: usize) -> u64 {
        let position = self.range.start;
        self.range.start += bytes as u64;
        position
    }
}

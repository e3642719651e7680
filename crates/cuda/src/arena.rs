//! Device memory for tables: the places of programs, and the base addresses of memories.
//!
//! Every transfer needs tables for a short time. Freeing device memory waits for all work that any part of the process
//! has submitted to the device, and allocating may wait too. So the arena allocates chunks from the driver, the first
//! one when the GPU is opened, keeps them until the GPU is closed, and hands out parts of them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::resources::{Buffer, Event, Stream};

/// Bytes of a chunk. A chunk for a longer table is a multiple of this.
const CHUNK: u64 = 4 << 20;

/// The lengths of tables are rounded up to this, which is more than a cache line.
const GRAIN: u64 = 256;

#[derive(Debug)]
pub(crate) struct Arena {
    context: Arc<Context>,
    stream: Stream,
    stall: Duration,
    chunks: Mutex<Vec<Chunk>>,
    /// Uploads that did not finish in time, each with the event behind it.
    overdue: Mutex<Vec<(Event, Upload)>>,
}

type Upload = (Table, Box<[u8]>);

#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    /// Free stretches by their address, with their length. No two of them touch.
    free: BTreeMap<u64, u64>,
}

/// A table in device memory. Dropping it lets the arena reuse the memory, so no kernel may still use the table by then.
#[derive(Debug)]
pub(crate) struct Table {
    arena: Arc<Arena>,
    address: u64,
    len: u64,
}

impl Arena {
    pub(crate) fn new(context: &Arc<Context>, stall: Duration) -> Result<Arc<Self>, DeviceError> {
        Ok(Arc::new(Self {
            context: context.clone(),
            stream: Stream::new(context)?,
            stall,
            chunks: Mutex::new(vec![Chunk::new(context, CHUNK)?]),
            overdue: Mutex::default(),
        }))
    }

    /// Copies values to a new table and waits for this copy alone. Fails at once while an earlier upload is still
    /// overdue.
    pub(crate) fn upload<T: bytemuck::Pod>(self: &Arc<Self>, values: &[T]) -> Result<Table, DeviceError> {
        let bytes: Box<[u8]> = bytemuck::cast_slice(values).into();
        let table = self.lend(bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(table);
        }
        self.check_overdue()?;
        let copy = |(table, bytes): &Upload| {
            let _entered = self.context.enter()?;
            let (to, from) = (table.address, bytes.as_ptr().cast());
            // SAFETY: the table has room for them, and both stay until this is done.
            let copied = unsafe { driver::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream.raw) };
            self.context.check("cuMemcpyHtoDAsync_v2", copied)
        };
        // Without an event the end of the copy cannot be known, so its memory is never used again.
        let if_late = |event: Option<Event>, used| match event {
            Some(event) => self.overdue().push((event, used)),
            None => mem::forget(used),
        };
        let (table, _) = self.stream.run(self.stall, (table, bytes), copy, if_late)?;
        Ok(table)
    }

    /// Releases overdue uploads that have finished since. Fails if any is left.
    fn check_overdue(&self) -> Result<(), DeviceError> {
        let mut overdue = self.overdue();
        if overdue.is_empty() {
            return Ok(());
        }
        let entered = self.context.enter()?;
        overdue.retain(|(event, _)| !event.is_done(&entered).unwrap_or(false));
        match overdue.is_empty() {
            true => Ok(()),
            false => Err(self.context.stalled(self.stall)),
        }
    }

    fn overdue(&self) -> MutexGuard<'_, Vec<(Event, Upload)>> {
        self.overdue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(self: &Arc<Self>, len: u64) -> Result<Table, DeviceError> {
        let len = len.next_multiple_of(GRAIN);
        let lent = match len {
            0 => Some(0),
            len => self.chunks().iter_mut().find_map(|chunk| chunk.lend(len)),
        };
        let address = match lent {
            Some(address) => address,
            None => {
                // The lock is not held here: the driver may be slow, and dropping a table must not wait for it.
                let mut chunk = Chunk::new(&self.context, len.next_multiple_of(CHUNK))?;
                let address = chunk.buffer.address;
                chunk.lend(len);
                self.chunks().push(chunk);
                address
            }
        };
        Ok(Table { arena: self.clone(), address, len })
    }

    fn chunks(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunk {
    fn new(context: &Arc<Context>, len: u64) -> Result<Self, DeviceError> {
        let buffer = Buffer::new(context, len as usize)?;
        let free = BTreeMap::from([(buffer.address, len)]);
        Ok(Self { buffer, free })
    }

    fn lend(&mut self, len: u64) -> Option<u64> {
        let (&start, &long) = self.free.iter().find(|(_, long)| **long >= len)?;
        self.free.remove(&start);
        if long > len {
            self.free.insert(start + len, long - len);
        }
        Some(start)
    }

    fn holds(&self, address: u64) -> bool {
        (self.buffer.address..self.buffer.address + self.buffer.len as u64).contains(&address)
    }

    fn take_back(&mut self, mut start: u64, mut len: u64) {
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        if let Some((&before, long)) = self.free.range_mut(..start).next_back()
            && before + *long == start
        {
            len += *long;
            start = before;
        }
        self.free.insert(start, len);
    }
}

impl Table {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let mut chunks = self.arena.chunks();
        if self.len > 0
            && let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.holds(self.address))
        {
            chunk.take_back(self.address, self.len);
        }
    }
}

//! Device memory for tables: the places of programs, and the bases of memories.
//!
//! Tables come and go with every transfer, and giving memory back to the driver waits for all that anybody has submitted to the
//! device, as may taking it. So it is taken from the driver in chunks, the first when the GPU is opened, which are kept for as long as that is
//! open, and lent from there.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::resources::{Buffer, Event, Stream};

/// Bytes of a chunk; one for a longer table has some times as many.
const CHUNK: u64 = 4 << 20;

/// What lengths are rounded up to: a line of a cache and more.
const GRAIN: u64 = 256;

/// The chunks of a GPU.
#[derive(Debug)]
pub(crate) struct Arena {
    context: Arc<Context>,
    stream: Stream,
    /// How long an upload may take.
    stall: Duration,
    chunks: Mutex<Vec<Chunk>>,
    /// Uploads that had no end in time, and the events behind them.
    late: Mutex<Vec<(Event, Upload)>>,
}

/// A table, and what is copied to it.
type Upload = (Table, Box<[u8]>);

#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    /// Address and length of each stretch that is not lent; no two of them touch.
    free: BTreeMap<u64, u64>,
}

/// A table in device memory. It is lent to others once it is dropped; no kernel may use it by then.
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
            late: Mutex::default(),
        }))
    }

    /// Copies numbers to the device. Waits for nothing but that, and not at all where the last one has no end yet.
    pub(crate) fn upload<T: bytemuck::Pod>(self: &Arc<Self>, values: &[T]) -> Result<Table, DeviceError> {
        let bytes: Box<[u8]> = bytemuck::cast_slice(values).into();
        let table = self.lend(bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(table);
        }
        self.check_late()?;
        let copy = |(table, bytes): &Upload| {
            let _entered = self.context.enter()?;
            let (to, from) = (table.address, bytes.as_ptr().cast());
            // SAFETY: the table has room for them, and both stay until this is done.
            let copied = unsafe { driver::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream.raw) };
            self.context.check("cuMemcpyHtoDAsync_v2", copied)
        };
        // Where nobody will know of its end, it is lent to nobody any more.
        let late = |event: Option<Event>, used| match event {
            Some(event) => self.late().push((event, used)),
            None => mem::forget(used),
        };
        let (table, _) = self.stream.run(self.stall, (table, bytes), copy, late)?;
        Ok(table)
    }

    /// Lets go of uploads that have come to their end after all; fails if there are others.
    fn check_late(&self) -> Result<(), DeviceError> {
        let mut late = self.late();
        if late.is_empty() {
            return Ok(());
        }
        let entered = self.context.enter()?;
        late.retain(|(event, _)| !event.is_done(&entered).unwrap_or(false));
        match late.is_empty() {
            true => Ok(()),
            false => Err(self.context.stalled(self.stall)),
        }
    }

    fn late(&self) -> MutexGuard<'_, Vec<(Event, Upload)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
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
                // Not while the lock is held: the driver may take its time, and whoever gives a table back does not wait for it.
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

    /// Takes the first stretch that is long enough.
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

    /// Takes a stretch back, and joins it to those beside it.
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

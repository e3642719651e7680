//! What bytes go through between a GPU and the host.
//!
//! A kernel that reads or writes host memory holds its multiprocessors for as long as the bus takes. So bytes go through
//! a dense buffer of the device, which few multiprocessors fill or empty, and through pinned memory, and a copy
//! engine carries them from one to the other.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::{Context, Entered};
use crate::driver;
use crate::error::DeviceError;
use crate::launch::LONGEST_UNIT;
use crate::resources::{Buffer, Event, Pinned, Stream};

/// The buffers that pieces are cut from: neighbours have neighbouring bytes.
#[derive(Debug)]
struct Buffers {
    context: Arc<Context>,
    device: Buffer,
    host: Pinned,
    /// Bytes of a piece.
    len: usize,
}

/// A buffer of the device and one of the host, for as many bytes each. Several neighbours can be used as one longer buffer.
///
/// Bytes of a stream begin in the device's buffer where their position in the stream says, modulo the kernel's longest unit. So
/// the kernel moves all but the edges in its longest units, wherever a stream is cut: a header or the packets of a network cut it
/// anywhere.
#[derive(Debug)]
pub(crate) struct Piece {
    buffers: Arc<Buffers>,
    number: usize,
    /// Behind the last operation that uses them.
    done: Event,
}

impl Piece {
    /// Makes so many neighbours.
    pub(crate) fn several(context: &Arc<Context>, count: usize, len: usize) -> Result<Vec<Self>, DeviceError> {
        let buffers = Arc::new(Buffers {
            context: context.clone(),
            device: Buffer::new(context, count * (len + LONGEST_UNIT as usize))?,
            host: Pinned::new(context, count * len)?,
            len,
        });
        let piece = |number| Ok(Self { buffers: buffers.clone(), number, done: Event::new(context)? });
        (0..count).map(piece).collect()
    }

    /// Which of its neighbours it is.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Where the device's buffer has bytes of a stream that begin at this position.
    pub(crate) fn device_at(&self, position: u64) -> u64 {
        let stride = self.buffers.len as u64 + LONGEST_UNIT;
        self.buffers.device.address + self.number as u64 * stride + position % LONGEST_UNIT
    }

    /// The host's buffer. Nothing uses it: pieces under way are the queue's.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: pinned memory of that length, zeroed when it was made; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.host().as_ptr(), self.buffers.len) }
    }

    /// Where the host's buffer starts.
    pub(crate) fn host(&self) -> NonNull<u8> {
        // SAFETY: the buffer has as many bytes for each piece.
        unsafe { self.buffers.host.start.add(self.number * self.buffers.len) }
    }

    /// Submits the way from the device's buffer, where it has bytes from this position on, to memory of the host.
    ///
    /// # Safety
    /// Copy engines reach `len` bytes there; they are kept, and left alone, until [`is_done`](Self::is_done). So are as many of the next
    /// neighbours as have these bytes with this piece.
    pub(crate) unsafe fn fetch(
        &mut self,
        stream: &Stream,
        position: u64,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = self.buffers.context.enter()?;
        let device = self.device_at(position);
        // SAFETY: the buffers are long enough by the caller's word, and kept as the caller keeps the other.
        let copied = unsafe { driver::cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), device, len, stream.raw) };
        self.buffers.context.check("cuMemcpyDtoHAsync_v2", copied)
    }

    /// Submits the way from memory of the host to the device's buffer, for bytes from this position on.
    ///
    /// # Safety
    /// As for [`fetch`](Self::fetch).
    pub(crate) unsafe fn send(
        &mut self,
        stream: &Stream,
        position: u64,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = self.buffers.context.enter()?;
        let device = self.device_at(position);
        // SAFETY: as above.
        let copied = unsafe { driver::cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), len, stream.raw) };
        self.buffers.context.check("cuMemcpyHtoDAsync_v2", copied)
    }

    /// Says that all was submitted that uses these buffers.
    pub(crate) fn submitted(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.done.record(stream)
    }

    /// Whether all of that is done.
    pub(crate) fn is_done(&self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        self.done.is_done(entered)
    }
}

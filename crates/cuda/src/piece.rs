//! Pieces: the bounce buffers between a GPU and the host.
//!
//! A kernel that accesses host memory occupies its multiprocessors for as long as the bus takes. So bytes pass through
//! a dense buffer of the device, which a few multiprocessors fill or empty, and through pinned memory. A copy engine
//! carries them between the two.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::{Context, Entered};
use crate::driver;
use crate::error::DeviceError;
use crate::launch::LONGEST_UNIT;
use crate::resources::{Buffer, Event, Pinned, Stream};

/// The buffers that pieces are parts of. Adjacent pieces have adjacent bytes.
#[derive(Debug)]
struct Buffers {
    context: Arc<Context>,
    device: Buffer,
    host: Pinned,
    /// Bytes of a piece on the host.
    len: usize,
}

/// A buffer of the device and one of the host, of the same length. Several neighbours can serve as one longer buffer.
///
/// In the device's buffer, bytes begin at their position in the stream modulo the kernel's longest unit. So the kernel
/// moves all but the edges in its longest units, wherever a header or the packets of a network cut the stream.
#[derive(Debug)]
pub(crate) struct Piece {
    buffers: Arc<Buffers>,
    number: usize,
    /// The event behind the last operation that uses the buffers.
    done: Event,
}

impl Piece {
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

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns the address in the device's buffer for bytes that begin at this position of a stream.
    pub(crate) fn device_at(&self, position: u64) -> u64 {
        let stride = self.buffers.len as u64 + LONGEST_UNIT;
        self.buffers.device.address + self.number as u64 * stride + position % LONGEST_UNIT
    }

    /// Returns the host's buffer. No operation uses it: while one does, the queue owns the piece.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: pinned memory of that length, zeroed when it was made; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.host().as_ptr(), self.buffers.len) }
    }

    pub(crate) fn host(&self) -> NonNull<u8> {
        // SAFETY: the buffer has as many bytes for each piece.
        unsafe { self.buffers.host.start.add(self.number * self.buffers.len) }
    }

    /// Submits a copy from the device's buffer, which has bytes from this position on, to memory of the host.
    ///
    /// # Safety
    /// Copy engines can access `len` bytes there, which stay valid and unused until [`is_done`](Self::is_done). The
    /// same holds for the next neighbours of this piece that share these bytes.
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

    /// Records that everything that uses these buffers was submitted.
    pub(crate) fn submitted(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.done.record(stream)
    }

    /// Returns whether everything before [`submitted`](Self::submitted) is done.
    pub(crate) fn is_done(&self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        self.done.is_done(entered)
    }
}

//! What bytes go through between a GPU and the host.
//!
//! A kernel that reads or writes host memory holds its multiprocessors for as long as the bus takes. So bytes go through
//! a dense buffer of the device, which few multiprocessors fill or empty, and through pinned memory, and a copy
//! engine carries them from one to the other.

use std::ptr::NonNull;
use std::sync::Arc;

use super::context::{Context, Entered};
use super::driver;
use super::error::DeviceError;
use super::launch::LONGEST_UNIT;
use super::resources::{Buffer, Event, Pinned, Stream};

/// A buffer of the device and one of the host, for as many bytes each.
///
/// Bytes of a stream begin in the device's buffer where their position in the stream says, modulo the kernel's longest unit. So
/// the kernel moves all but the edges in its longest units, wherever a stream is cut: a header or the packets of a network cut it
/// anywhere.
#[derive(Debug)]
pub(super) struct Piece {
    context: Arc<Context>,
    device: Buffer,
    host: Pinned,
    /// Behind the last operation that uses them.
    done: Event,
}

impl Piece {
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            context: context.clone(),
            device: Buffer::new(context, len + LONGEST_UNIT as usize)?,
            host: Pinned::new(context, len)?,
            done: Event::new(context)?,
        })
    }

    /// Where the device's buffer has bytes of a stream that begin at this position.
    pub(super) fn device_at(&self, position: u64) -> u64 {
        self.device.address + position % LONGEST_UNIT
    }

    /// The host's buffer. Nothing uses it: pieces under way are the queue's.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: pinned memory of that length, zeroed when it was made; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.host.start.as_ptr(), self.host.len) }
    }

    /// Where the host's buffer starts.
    pub(super) fn host(&self) -> NonNull<u8> {
        self.host.start
    }

    /// Submits the way from the device's buffer, where it has bytes from this position on, to memory of the host.
    ///
    /// # Safety
    /// Copy engines reach `len` bytes there; they are kept, and left alone, until [`is_done`](Self::is_done).
    pub(super) unsafe fn fetch(
        &mut self,
        stream: &Stream,
        position: u64,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let device = self.device_at(position);
        // SAFETY: the buffer is long enough, and kept as the caller keeps the other.
        let copied =
            unsafe { driver::cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), device, len, stream.raw) };
        self.context.check("cuMemcpyDtoHAsync_v2", copied)
    }

    /// Submits the way from memory of the host to the device's buffer, for bytes from this position on.
    ///
    /// # Safety
    /// As for [`fetch`](Self::fetch).
    pub(super) unsafe fn send(
        &mut self,
        stream: &Stream,
        position: u64,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let device = self.device_at(position);
        // SAFETY: as above.
        let copied =
            unsafe { driver::cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), len, stream.raw) };
        self.context.check("cuMemcpyHtoDAsync_v2", copied)
    }

    /// Says that all was submitted that uses these buffers.
    pub(super) fn submitted(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.done.record(stream)
    }

    /// Whether all of that is done.
    pub(super) fn is_done(&self, entered: &Entered<'_>) -> Result<bool, DeviceError> {
        self.done.is_done(entered)
    }
}

//! The way between a GPU and the host: gathered on the device, then carried by the copy engine; and back.
//!
//! A kernel that reads or writes host memory holds its multiprocessors for as long as the bus takes. So a
//! piece goes through a dense buffer of the device, which few multiprocessors fill or empty, and through pinned memory. Two of
//! each are in use at a time: while one piece crosses the bus, the host has the one before.

use std::sync::Arc;

use super::context::Context;
use super::driver;
use super::error::DeviceError;
use super::resources::{Buffer, Event, Pinned, Stream};

/// Bytes of a piece.
pub(super) const PIECE: usize = 8 << 20;

/// How many pieces are under way at a time.
const PIECES: usize = 2;

/// The buffers of a GPU.
#[derive(Debug)]
pub(super) struct Staging {
    pieces: [Piece; PIECES],
}

/// What one piece goes through.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) device: Buffer,
    host: Pinned,
    /// Behind the last operation that uses them.
    done: Event,
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let piece = || {
            Ok::<_, DeviceError>(Piece {
                device: Buffer::new(context, PIECE)?,
                host: Pinned::new(context, PIECE)?,
                done: Event::new(context)?,
            })
        };
        Ok(Self {
            pieces: [piece()?, piece()?],
        })
    }

    /// The buffers of the n-th piece of a copy.
    pub(super) fn piece(&mut self, number: u64) -> &mut Piece {
        &mut self.pieces[number as usize % PIECES]
    }
}

impl Piece {
    /// Submits the way from the device's buffer to the host's.
    pub(super) fn fetch(
        &mut self,
        context: &Context,
        stream: &Stream,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = context.enter()?;
        // SAFETY: both buffers have room for a piece; they are kept, and left alone, until the event was waited for.
        let copied = unsafe {
            driver::cuMemcpyDtoHAsync_v2(
                self.host.start.as_ptr().cast(),
                self.device.address,
                len,
                stream.raw,
            )
        };
        context.check("cuMemcpyDtoHAsync_v2", copied)?;
        self.done.record(stream)
    }

    /// Submits the way from the host's buffer to the device's.
    pub(super) fn send(
        &mut self,
        context: &Context,
        stream: &Stream,
        len: usize,
    ) -> Result<(), DeviceError> {
        let _entered = context.enter()?;
        // SAFETY: as above.
        let copied = unsafe {
            driver::cuMemcpyHtoDAsync_v2(
                self.device.address,
                self.host.start.as_ptr().cast(),
                len,
                stream.raw,
            )
        };
        context.check("cuMemcpyHtoDAsync_v2", copied)
    }

    /// Says that all was submitted that uses these buffers.
    pub(super) fn submitted(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.done.record(stream)
    }

    /// The host's buffer, once nothing uses it any more.
    pub(super) fn host(&mut self) -> Result<&mut [u8], DeviceError> {
        self.done.synchronize()?;
        // SAFETY: pinned memory of that length, initialised by the driver or by the copies before; nobody else has it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host.start.as_ptr(), self.host.len) })
    }
}

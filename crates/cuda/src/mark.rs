//! Marks: work in an engine's stream that must be done before a transfer begins.

use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::resources::{Event, Stream};
use crate::sys::{CU_STREAM_CAPTURE_STATUS_NONE, CUresult, CUstream};

/// A mark in an engine's stream: all work that was submitted to the stream before it must be done before a transfer may
/// begin. Clones are the same mark.
///
/// An engine reports a cache as computed when it has *submitted* the work; the GPU does it later. A transfer with a
/// mark neither reads nor writes before the stream has reached it.
#[derive(Clone, Debug)]
pub struct Mark {
    event: Arc<Event>,
    /// The driver's id of the stream, which is never reused.
    stream: u64,
    gpu: Gpu,
}

/// Results that the driver returns for a stream while its work would become part of a graph.
const CAPTURED: [u32; 3] = [
    CUresult::STREAM_CAPTURE_UNSUPPORTED.0,
    CUresult::STREAM_CAPTURE_INVALIDATED.0,
    CUresult::STREAM_CAPTURE_IMPLICIT.0,
];

impl Mark {
    /// Marks a stream behind all that was submitted to it until now. It takes a few microseconds, and waits for
    /// nothing.
    ///
    /// `stream` is the driver's handle (`CUstream`, or `cudaStream_t`) as a number; 0 is the default stream.
    ///
    /// # Safety
    /// The stream is one of this GPU's primary context, and has not been destroyed.
    ///
    /// # Errors
    /// [`DeviceError::Capturing`]; [`DeviceError::NotItsStream`], as far as the driver can tell; or another error of
    /// the driver.
    pub unsafe fn new(gpu: &Gpu, stream: u64) -> Result<Self, DeviceError> {
        // SAFETY: the caller vouches for the stream.
        unsafe { Self::of_raw(gpu, ptr::with_exposed_provenance_mut(stream as usize)) }
    }

    pub(crate) fn behind(gpu: &Gpu, stream: &Stream) -> Result<Self, DeviceError> {
        // SAFETY: the stream is there, and of the context of all that the crate makes for this GPU.
        unsafe { Self::of_raw(gpu, stream.raw) }
    }

    /// # Safety
    /// As for [`new`](Self::new).
    unsafe fn of_raw(gpu: &Gpu, stream: CUstream) -> Result<Self, DeviceError> {
        let event = Event::awaited(gpu.context())?;
        // SAFETY: the caller vouches for the stream.
        let number = unsafe { number(gpu.context(), stream) };
        let recorded = number.and_then(|number| {
            // SAFETY: as above.
            unsafe { event.record_raw(stream) }.map(|()| number)
        });
        let stream = recorded.map_err(|error| match error {
            DeviceError::Call(why) if why.code == CUresult::INVALID_HANDLE.0 => {
                let ordinal = gpu.ordinal();
                DeviceError::NotItsStream { ordinal, why }
            }
            // The default stream, while another stream that it waits for is being captured.
            DeviceError::Call(why) if CAPTURED.contains(&why.code) => DeviceError::Capturing,
            error => error,
        })?;
        Ok(Self { event: Arc::new(event), stream, gpu: gpu.clone() })
    }

    /// Returns whether all work before the mark is done. It does not wait.
    ///
    /// # Errors
    /// An error of the driver, after which this can no longer be known.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        self.event.is_done(&self.gpu.context().enter()?)
    }

    /// Calls `told` when all work before the mark is done, or when that can no longer be known. The callback delays
    /// those of later marks of the stream, so it should take microseconds.
    pub fn when_done(&self, told: impl FnOnce(Result<(), DeviceError>) + Send + 'static) {
        let event = self.event.clone();
        let waiters = self.gpu.waiters();
        waiters.watch(self.stream, event, Box::new(told));
    }
}

/// Returns the driver's id of a stream, and fails if the stream is being captured.
///
/// # Safety
/// The stream is there, and one of this context.
unsafe fn number(context: &Context, stream: CUstream) -> Result<u64, DeviceError> {
    let _entered = context.enter()?;
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is there by the caller's word; the status goes into a local variable.
    let asked = unsafe { driver::cuStreamIsCapturing(stream, &mut status) };
    context.check("cuStreamIsCapturing", asked)?;
    if status != CU_STREAM_CAPTURE_STATUS_NONE {
        return Err(DeviceError::Capturing);
    }
    let mut number = 0;
    // SAFETY: as above.
    let status = unsafe { driver::cuStreamGetId(stream, &mut number) };
    context.check("cuStreamGetId", status)?;
    Ok(number)
}

//! Marks: points in a GPU's stream that have to be reached before blocks are touched.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use transload::archive::RankArchive;
use transload::transfer::After;

use crate::cuda;
use crate::device::{Device, read_device};
use crate::errors::CudaError;

/// Returns whether GPU memory can be used, and the reason if not: `(True, "")`, or `(False, "no CUDA here: ...")`. It
/// looks for the driver and starts it.
#[pyfunction]
pub(crate) fn cuda_available(py: Python<'_>) -> (bool, String) {
    match py.detach(cuda::available) {
        Ok(()) => (true, String::new()),
        Err(why) => (false, why),
    }
}

/// A point in a GPU's stream, after all work submitted to the stream before it was made.
///
/// An engine passes blocks on when it has *submitted* the work that computes them, or that reads them for the last
/// time; the GPU executes it later. An operation that gets a mark as `after` touches no block before the GPU has
/// reached the mark. Making one takes a few microseconds and does not wait. The first mark of a process on a GPU opens
/// the GPU, which takes a moment unless a `Memory` has already done so.
///
/// Args:
///     stream: a `torch.cuda.Stream`, an object with `__cuda_stream__`, or the driver's handle as a number; 0 is the
///         default stream. It has not been destroyed.
///     device: the stream's GPU, as `"cuda:0"` or a `torch.device`. If None, the one that `stream` names, or else that
///         of this thread's current context.
///
/// Raises:
///     CudaError: there is no CUDA here, no such GPU, or the stream does not belong to it.
///     ValueError: `device` is not a GPU, or not that of `stream`.
///     TypeError: `stream` is not a stream.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Mark {
    inner: cuda::Mark,
}

#[pymethods]
impl Mark {
    #[new]
    #[pyo3(signature = (stream = Stream::default(), device = None))]
    fn new(py: Python<'_>, stream: Stream, device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let given = device.map(read_device).transpose()?;
        let device = match (given, stream.device) {
            (Some(Device::Host), _) => {
                return Err(PyValueError::new_err("device is the CPU, which has no streams"));
            }
            (Some(Device::Gpu(given)), Some(its)) if given != its => {
                return Err(PyValueError::new_err(format!(
                    "device is cuda:{given}, and the stream is one of cuda:{its}"
                )));
            }
            (Some(Device::Gpu(given)), _) => Some(given),
            (None, its) => its,
        };
        // SAFETY: the caller vouches for the stream.
        let marked = py.detach(|| unsafe { cuda::mark(stream.handle, device) });
        let inner = marked
            .map_err(CudaError::new_err)?
            .ok_or_else(|| CudaError::new_err("no context is current in this thread: give the stream's device"))?;
        Ok(Self { inner })
    }

    /// True if the GPU has reached the mark. It does not wait.
    ///
    /// Raises:
    ///     CudaError: the GPU is lost, so this is unknown.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| cuda::is_done(&self.inner)).map_err(CudaError::new_err)
    }
}

impl Mark {
    /// Makes an archive touch blocks only after the mark.
    pub(crate) fn archive(&self, rank: RankArchive) -> RankArchive {
        cuda::archive_after(rank, &self.inner)
    }

    pub(crate) fn after(&self) -> After {
        cuda::after(&self.inner)
    }
}

#[derive(Default)]
struct Stream {
    handle: u64,
    device: Option<u32>,
}

impl<'py> FromPyObject<'_, 'py> for Stream {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Some(handle) = object.getattr_opt("cuda_stream")? {
            let device = match read_device(&object.getattr("device")?)? {
                Device::Gpu(ordinal) => Some(ordinal),
                Device::Host => None,
            };
            let handle = handle.extract()?;
            return Ok(Self { handle, device });
        }
        let handle = if object.hasattr("__cuda_stream__")? {
            let (version, handle): (u32, u64) = object.call_method0("__cuda_stream__")?.extract()?;
            if version != 0 {
                return Err(PyTypeError::new_err(format!("__cuda_stream__ of version {version}: 0 is known")));
            }
            handle
        } else {
            object.extract().map_err(|_| {
                let kind = object.get_type();
                PyTypeError::new_err(format!(
                    "the stream is a {kind}: give a torch.cuda.Stream, an object with __cuda_stream__, or a handle"
                ))
            })?
        };
        let device = None;
        Ok(Self { handle, device })
    }
}

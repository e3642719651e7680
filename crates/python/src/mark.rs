//! Marks: work of a GPU's stream that has to be done before blocks are touched.

use std::str::FromStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use transload::archive::RankArchive;
use transload::transfer::After;

use crate::cuda;
use crate::errors::CudaError;

/// Whether memory of GPUs can be moved here, and otherwise why not: `(True, "")`, or `(False, "no CUDA here: ...")`. It looks
/// for the driver, and starts it.
#[pyfunction]
pub(crate) fn cuda_available(py: Python<'_>) -> (bool, String) {
    match py.detach(cuda::available) {
        Ok(()) => (true, String::new()),
        Err(why) => (false, why),
    }
}

/// A place in a stream of a GPU: behind all that was submitted to it until this is made.
///
/// An engine hands blocks over when it has *submitted* what computes them, or what reads them for the last time; the GPU does
/// that later. What is given a mark as `after` touches no block before the GPU has come there. It costs a few
/// microseconds, and waits for nothing. The first of a process on a GPU opens it, which takes a moment where no `Memory`
/// has.
///
/// Args:
///     stream: a `torch.cuda.Stream`, an object with `__cuda_stream__`, or the driver's handle as a number; 0 is the default
///         stream. It has not been destroyed.
///     device: the GPU that it is of, as `"cuda:0"` or a `torch.device`. If None, the one that `stream` names, or else the one
///         whose context is current in this thread.
///
/// Raises:
///     CudaError: there is no CUDA here, or no such GPU, or the stream is none of it.
///     ValueError: `device` is no GPU, or not that of `stream`.
///     TypeError: `stream` is no stream.
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

    /// Whether the GPU has come there. It does not wait.
    ///
    /// Raises:
    ///     CudaError: nobody can tell any more, as the GPU is lost.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| cuda::is_done(&self.inner)).map_err(CudaError::new_err)
    }
}

impl Mark {
    /// Has an archive touch blocks after it only.
    pub(crate) fn archive(&self, rank: RankArchive) -> RankArchive {
        cuda::archive_after(rank, &self.inner)
    }

    /// It as what something has to wait for.
    pub(crate) fn after(&self) -> After {
        cuda::after(&self.inner)
    }
}

/// A stream as Python hands it over.
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

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    Host,
    Gpu(u32),
}

impl FromStr for Device {
    type Err = PyErr;

    fn from_str(text: &str) -> PyResult<Self> {
        let gpu = |text: &str| text.strip_prefix("cuda:")?.parse().ok().map(Self::Gpu);
        match text {
            "cpu" => Ok(Self::Host),
            text => gpu(text).ok_or_else(|| {
                PyValueError::new_err(format!("device is {text:?}: give \"cpu\", or a GPU as \"cuda:0\""))
            }),
        }
    }
}

/// A device as text, or a `torch.device`, whose text is the same.
pub(crate) fn read_device(object: &Bound<'_, PyAny>) -> PyResult<Device> {
    object.str()?.to_str()?.parse()
}

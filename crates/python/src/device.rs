//! The device of memory or of a stream, the host or a GPU, as callers name it.

use std::str::FromStr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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

/// Reads a device given as text or as a `torch.device`, whose text is the same.
pub(crate) fn read_device(object: &Bound<'_, PyAny>) -> PyResult<Device> {
    object.str()?.to_str()?.parse()
}

//! The memory of one rank and one group, as agents and copies see it.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use transload::transfer::memory::{self, Access, AccessError};
use transload::transfer::plan::program::ALLOCATION_BITS;

use crate::errors::{CacheMemoryError, raise};

/// The allocations of one rank and one group: an engine's own, or new ones.
///
/// Nothing is copied. The objects are kept alive for as long as this memory, or a transfer that uses it, is; until then
/// numpy refuses to resize them. A torch storage can never be resized again.
///
/// Args:
///     allocations: for each allocation a contiguous torch tensor on the CPU or its `untyped_storage()`, a
///         contiguous numpy array, or `(address, bytes)` of memory that outlives every use of it. The first byte of
///         each is offset 0 of the layout: of a tensor that is a view into a larger buffer, give the buffer's storage.
///     writable: whether transfers may write to it.
///
/// Raises:
///     CacheMemoryError: an object is not contiguous, not on the CPU, not writable, or not there; or torch lacks the numpy
///         that it takes to keep a storage from being resized.
///     TypeError: an object is none of these.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Memory {
    pub(crate) inner: memory::Memory,
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (allocations, *, writable = true))]
    fn new(allocations: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        // A list of its elements would be one of temporary objects.
        if allocations.hasattr("data_ptr")? || allocations.hasattr("__array_interface__")? {
            return Err(PyTypeError::new_err(
                "give a list of allocations, also where there is one: [tensor]",
            ));
        }
        let allocations: Vec<Bound<'_, PyAny>> = allocations.extract()?;
        // What holds a buffer in place comes first: what is looked at before could be elsewhere after.
        let held = allocations.iter().map(hold).collect::<PyResult<Vec<_>>>()?;
        let parts = allocations.iter().enumerate();
        let parts = parts.map(|(number, object)| part(number, object, writable));
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let access = match writable {
            true => Access::ReadWrite,
            false => Access::Read,
        };
        // SAFETY: what is held owns these bytes, and keeps them where they are, until the last use of the memory; a bare
        // address comes with the caller's word for it. Python and the engine are foreign code to this module, and Rust
        // makes no reference to any of the bytes.
        let inner = unsafe { memory::Memory::from_raw_parts(&parts, access, Some(Arc::new(held))) };
        Ok(Self {
            inner: inner.map_err(raise!(CacheMemoryError))?,
        })
    }

    /// New memory of zeros, page-aligned, one allocation for each length in bytes.
    #[staticmethod]
    fn allocate(py: Python<'_>, lengths: Vec<usize>) -> PyResult<Self> {
        let inner = py.detach(|| memory::Memory::allocate(&lengths));
        Ok(Self {
            inner: inner.map_err(raise!(CacheMemoryError))?,
        })
    }

    /// `(address, bytes)` of each allocation.
    #[getter]
    fn allocations(&self) -> Vec<(usize, usize)> {
        let parts =
            (0..self.inner.allocations()).filter_map(|number| self.inner.allocation(number));
        parts
            .map(|(start, len)| (start.addr().get(), len))
            .collect()
    }

    /// Bytes of all allocations together.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Copies bytes out of one allocation.
    ///
    /// Raises:
    ///     CacheMemoryError: they are not all inside of it.
    #[pyo3(signature = (offset, length, allocation = 0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
        allocation: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let address = self.address(offset, length, allocation)?;
        PyBytes::new_with(py, length, |out| {
            let read = py.detach(|| self.inner.read(address, out));
            read.map_err(raise!(CacheMemoryError))
        })
    }

    /// Copies bytes into one allocation.
    ///
    /// Raises:
    ///     CacheMemoryError: they do not all go into it, or it may only be read.
    #[pyo3(signature = (offset, data, allocation = 0))]
    fn write(&self, py: Python<'_>, offset: u64, data: &[u8], allocation: usize) -> PyResult<()> {
        let address = self.address(offset, data.len(), allocation)?;
        let written = py.detach(|| self.inner.write(address, data));
        written.map_err(raise!(CacheMemoryError))
    }

    fn __repr__(&self) -> String {
        format!(
            "<transload.Memory: {} bytes in {} allocations>",
            self.inner.bytes(),
            self.inner.allocations(),
        )
    }
}

impl Memory {
    /// The address of bytes that are all inside one allocation.
    fn address(&self, offset: u64, length: usize, allocation: usize) -> PyResult<u64> {
        let available = self
            .inner
            .allocation(allocation)
            .map_or(0, |(_, len)| len as u64);
        if offset > available || length as u64 > available - offset {
            let source = AccessError::OutOfBounds {
                allocation,
                offset,
                len: length as u64,
                available,
            };
            return Err(CacheMemoryError::new_err(source.to_string()));
        }
        Ok((allocation as u64) << ALLOCATION_BITS | offset)
    }
}

/// First byte and length of what somebody wants to register.
fn part(number: usize, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<(*mut u8, usize)> {
    let refused = |why: &str| {
        Err(CacheMemoryError::new_err(format!(
            "allocation {number}: {why}"
        )))
    };
    let (address, len): (usize, usize) = if let Ok(raw) = object.extract() {
        raw
    } else if object.hasattr("data_ptr")? {
        let device: String = object.getattr("device")?.getattr("type")?.extract()?;
        if device != "cpu" {
            return refused(&format!(
                "it is on {device}; only memory of the CPU can be registered"
            ));
        }
        // A storage has no strides.
        if object.hasattr("is_contiguous")? && !object.call_method0("is_contiguous")?.is_truthy()? {
            return refused("the tensor is not contiguous; give its untyped_storage()");
        }
        let len = match object.hasattr("element_size")? && object.hasattr("numel")? {
            true => {
                let count: usize = object.call_method0("numel")?.extract()?;
                let size: usize = object.call_method0("element_size")?.extract()?;
                count.saturating_mul(size)
            }
            false => object.call_method0("nbytes")?.extract()?,
        };
        (object.call_method0("data_ptr")?.extract()?, len)
    } else if is_array(object)? {
        let interface = object
            .getattr("__array_interface__")?
            .cast_into::<PyDict>()?;
        let item = |key| {
            let item = interface.get_item(key)?;
            item.ok_or_else(|| PyTypeError::new_err(format!("an array without {key:?}")))
        };
        let (address, read_only): (usize, bool) = item("data")?.extract()?;
        if interface
            .get_item("strides")?
            .is_some_and(|strides| !strides.is_none())
        {
            return refused("the array is not contiguous");
        }
        if item("typestr")?.extract::<String>()?.contains('O') {
            return refused("the array is one of Python objects");
        }
        if read_only && writable {
            return refused("the array is read-only; register it with writable=False");
        }
        (address, object.getattr("nbytes")?.extract()?)
    } else {
        return Err(PyTypeError::new_err(format!(
            "allocation {number} is a {}: give a torch tensor or storage, a numpy array, or (address, bytes)",
            object.get_type().name()?
        )));
    };
    Ok((std::ptr::with_exposed_provenance_mut(address), len))
}

/// What keeps the bytes of an object where they are, for as long as it is held.
fn hold(object: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    let mut held = vec![object.clone().unbind()];
    if object.hasattr("data_ptr")? {
        // A tensor can be given another storage.
        let storage = match object.hasattr("untyped_storage")? {
            true => object.call_method0("untyped_storage")?,
            false => object.clone(),
        };
        held.extend(unresizable(&storage)?.map(Bound::unbind));
        held.push(storage.unbind());
    } else {
        // An array does not count who has its buffer; what it does not resize, whatever it is told, is an array that is
        // weakly referenced. The bytes may be those of its base.
        let weakly = object.py().import("weakref")?.getattr("ref")?;
        let mut array = object.clone();
        while is_array(&array)? {
            held.push(weakly.call1((&array,))?.unbind());
            array = array.getattr("base")?;
        }
    }
    Ok(held)
}

/// An array over the bytes of a storage: torch resizes no storage that numpy has seen. None for what is no storage of
/// torch's, but only looks like one.
fn unresizable<'py>(storage: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = imported(storage.py(), "torch")? else {
        return Ok(None);
    };
    let is_storage = torch.hasattr("UntypedStorage")?
        && storage.is_instance(&torch.getattr("UntypedStorage")?)?;
    let on = |device: &Bound<'_, PyAny>| device.getattr("type")?.extract::<String>();
    if !is_storage || on(&storage.getattr("device")?)? != "cpu" {
        return Ok(None);
    }
    let options = PyDict::new(storage.py());
    options.set_item("dtype", torch.getattr("uint8")?)?;
    let bytes = torch.call_method("empty", (0,), Some(&options))?;
    let array = bytes
        .call_method1("set_", (storage,))?
        .call_method0("numpy");
    array.map(Some).map_err(|error| {
        CacheMemoryError::new_err(format!(
            "torch cannot promise to leave this storage where it is ({error}): is numpy installed?"
        ))
    })
}

/// Whether it is a numpy array, and not a scalar, which looks like one and owns nothing. Who has one has imported
/// numpy.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match imported(object.py(), "numpy")? {
        Some(numpy) => object.is_instance(&numpy.getattr("ndarray")?),
        None => Ok(false),
    }
}

/// A module, if anybody has imported it.
fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let module = modules.call_method1("get", (name,))?;
    Ok((!module.is_none()).then_some(module))
}

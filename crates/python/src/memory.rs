//! Registered memory of one rank and one group.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use transload::transfer::Region;
use transload::transfer::memory::{self, Access, AccessError};
use transload::transfer::plan::program::{ALLOCATION_BITS, Nest, Placed, Program};

use crate::allocation::{Allocation, CUDA, Place, hold, imported};
use crate::cuda::{self, Kind};
use crate::device::{Device, read_device};
use crate::errors::{CacheMemoryError, raise};

/// The allocations of one rank and one group, all in host memory or all on one GPU: an engine's own, or new ones.
///
/// Nothing is copied. The objects are kept alive while this memory, or a transfer that uses it, exists; until then
/// numpy refuses to resize them. A torch storage on the CPU can never be resized again, nor moved into shared memory:
/// call `share_memory_()` first, or pass it through a queue of `torch.multiprocessing` first. One on a GPU must not be
/// resized: torch would reuse its bytes.
///
/// Args:
///     allocations: for each allocation a contiguous torch tensor on the CPU or a CUDA device, or its
///         `untyped_storage()`; a contiguous numpy array; an object with `__cuda_array_interface__`; or `(address,
///         bytes)` of host memory that outlives every use of it. The first byte of each is offset 0 of the layout: for
///         a tensor that is a view into a larger buffer, give the buffer's storage.
///     writable: whether transfers may write to it.
///
/// Raises:
///     CacheMemoryError: a tensor uses memory that torch did not allocate, which its owner may move: give the owner,
///         such as the numpy array; an object is not contiguous, on an unsupported device, not writable, or missing;
///         not all are on one device; the driver knows no such memory on that GPU, or there is no CUDA here; or torch
///         lacks numpy, which it needs to keep a storage from being resized.
///     TypeError: an object is none of these.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Memory {
    pub(crate) kind: Kind,
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (allocations, *, writable = true))]
    fn new(py: Python<'_>, allocations: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        // Iterating over an array would yield temporary objects.
        for attribute in ["data_ptr", "__array_interface__", CUDA] {
            if allocations.hasattr(attribute)? {
                return Err(PyTypeError::new_err("give a list of allocations, also where there is one: [tensor]"));
            }
        }
        let allocations: Vec<Bound<'_, PyAny>> = allocations.extract()?;
        // Objects are held in place before their addresses are read, since they could still move before that.
        let held = allocations.iter().enumerate();
        let held = held.map(|(number, object)| hold(number, object));
        let held = held.collect::<PyResult<Vec<_>>>()?;
        let parts = allocations.iter().enumerate();
        let parts = parts.map(|(number, object)| Allocation::read(number, object, writable));
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let access = match writable {
            true => Access::ReadWrite,
            false => Access::Read,
        };
        let kind = match common_place(&parts)? {
            Place::Host => Kind::Host(on_host(py, &parts, access, held)?),
            Place::Gpu(named) => Kind::Device(on_gpu(py, named, &parts, access, held)?),
        };
        Ok(Self { kind })
    }

    /// Allocates page-aligned memory with one allocation for each length in bytes: zeroed on the host, if `device` is
    /// None or `"cpu"`; undefined on a GPU, `"cuda:0"`.
    ///
    /// Raises:
    ///     CacheMemoryError: there is not enough memory, no such GPU, or no CUDA here.
    ///     ValueError: `device` is something else.
    #[staticmethod]
    #[pyo3(signature = (lengths, device = None))]
    fn allocate(py: Python<'_>, lengths: Vec<usize>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device = device.map_or(Ok(Device::Host), read_device)?;
        let kind = match device {
            Device::Host => {
                py.detach(|| memory::Memory::allocate(&lengths)).map(Kind::Host).map_err(raise!(CacheMemoryError))?
            }
            Device::Gpu(ordinal) => {
                py.detach(|| cuda::allocate(ordinal, &lengths)).map(Kind::Device).map_err(CacheMemoryError::new_err)?
            }
        };
        Ok(Self { kind })
    }

    /// `(address, bytes)` of each allocation.
    #[getter]
    fn allocations(&self) -> Vec<(u64, u64)> {
        match &self.kind {
            Kind::Host(memory) => (0..memory.allocations())
                .filter_map(|number| memory.allocation(number))
                .map(|(start, len)| (start.addr().get() as u64, len as u64))
                .collect(),
            Kind::Device(memory) => cuda::allocations(memory),
        }
    }

    /// The bytes of all allocations.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.allocations().iter().map(|(_, len)| len).sum()
    }

    /// The location: `"cpu"`, or the GPU, as `"cuda:0"`.
    #[getter]
    fn device(&self) -> String {
        match &self.kind {
            Kind::Host(_) => "cpu".to_owned(),
            Kind::Device(memory) => format!("cuda:{}", cuda::ordinal(memory)),
        }
    }

    /// Copies bytes out of one allocation. On a GPU it does not wait for the engine's work.
    ///
    /// Raises:
    ///     CacheMemoryError: the range exceeds the allocation, or the GPU fails.
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
            py.detach(|| match &self.kind {
                Kind::Host(memory) => memory.read(address, out).map_err(raise!(CacheMemoryError)),
                Kind::Device(_) => through_host(length, |host| {
                    cuda::copy(&one_run(length, address, 0), &self.kind, &host.into())
                        .map_err(CacheMemoryError::new_err)?;
                    host.read(0, out).map_err(raise!(CacheMemoryError))
                }),
            })
        })
    }

    /// Copies bytes into one allocation. On a GPU it does not wait for the engine's work.
    ///
    /// Raises:
    ///     CacheMemoryError: the range exceeds the allocation, the memory is read-only, or the GPU fails.
    #[pyo3(signature = (offset, data, allocation = 0))]
    fn write(&self, py: Python<'_>, offset: u64, data: &[u8], allocation: usize) -> PyResult<()> {
        let address = self.address(offset, data.len(), allocation)?;
        py.detach(|| match &self.kind {
            Kind::Host(memory) => memory.write(address, data).map_err(raise!(CacheMemoryError)),
            Kind::Device(_) => through_host(data.len(), |host| {
                host.write(0, data).map_err(raise!(CacheMemoryError))?;
                cuda::copy(&one_run(data.len(), 0, address), &host.into(), &self.kind)
                    .map_err(CacheMemoryError::new_err)
            }),
        })
    }

    fn __repr__(&self) -> String {
        format!(
            "<transload.Memory: {} bytes in {} allocations on {}>",
            self.nbytes(),
            self.allocations().len(),
            self.device(),
        )
    }
}

impl Memory {
    pub(crate) fn region(&self) -> Region {
        match &self.kind {
            Kind::Host(memory) => memory.into(),
            Kind::Device(memory) => cuda::region(memory),
        }
    }

    fn address(&self, offset: u64, length: usize, allocation: usize) -> PyResult<u64> {
        let allocations = self.allocations();
        let available = allocations.get(allocation).map_or(0, |(_, len)| *len);
        if offset > available || length as u64 > available - offset {
            let source = AccessError::OutOfBounds { allocation, offset, len: length as u64, available };
            return Err(CacheMemoryError::new_err(source.to_string()));
        }
        Ok((allocation as u64) << ALLOCATION_BITS | offset)
    }
}

impl From<&memory::Memory> for Kind {
    fn from(memory: &memory::Memory) -> Self {
        Self::Host(memory.clone())
    }
}

/// Returns the common location of all allocations. For a GPU, the ordinal is the first that an allocation names.
fn common_place(parts: &[Allocation]) -> PyResult<Place> {
    let on_host = |part: &Allocation| part.place == Place::Host;
    let Some(first) = parts.first() else {
        return Ok(Place::Host);
    };
    if let Some(number) = parts.iter().position(|part| on_host(part) != on_host(first)) {
        let [this, that] = match on_host(first) {
            true => ["a GPU", "the host"],
            false => ["the host", "a GPU"],
        };
        return Err(CacheMemoryError::new_err(format!(
            "allocation {number} is memory of {this}, allocation 0 of {that}: make a memory of each"
        )));
    }
    let named = parts.iter().find_map(|part| match part.place {
        Place::Gpu(named) => named,
        Place::Host => None,
    });
    Ok(match on_host(first) {
        true => Place::Host,
        false => Place::Gpu(named),
    })
}

/// The objects that keep a memory's bytes in place: some for each allocation.
type Held = Vec<Vec<Py<PyAny>>>;

fn on_host(py: Python<'_>, parts: &[Allocation], access: Access, held: Held) -> PyResult<memory::Memory> {
    if is_cuda_in_use(py)? {
        for (number, part) in parts.iter().enumerate() {
            let address = (part.address as u64, part.len);
            if let Ok(ordinal) = py.detach(|| cuda::ordinal_of(&[address])) {
                return Err(CacheMemoryError::new_err(format!(
                    "allocation {number} is memory of cuda:{ordinal}, given as memory of the host: give the tensor, or an object with {CUDA}"
                )));
            }
        }
    }
    let parts: Vec<_> = parts
        .iter()
        .map(|part| {
            let start: *mut u8 = std::ptr::with_exposed_provenance_mut(part.address);
            (start, part.len)
        })
        .collect();
    // SAFETY: what is held owns these bytes, and keeps them where they are, until the last use of the memory; a bare
    // address comes with the caller's word for it. Python and the engine are foreign code to this module, and Rust
    // makes no reference to any of the bytes.
    let made = unsafe { memory::Memory::from_raw_parts(&parts, access, Some(Arc::new(held))) };
    made.map_err(raise!(CacheMemoryError))
}

/// Returns whether a driver is running that can be asked about addresses. Starting one just for that would prevent the
/// process from forking.
fn is_cuda_in_use(py: Python<'_>) -> PyResult<bool> {
    if cuda::in_use() {
        return Ok(true);
    }
    let Some(torch) = imported(py, "torch")? else {
        return Ok(false);
    };
    match torch.getattr_opt("cuda")? {
        Some(cuda) if cuda.hasattr("is_initialized")? => cuda.call_method0("is_initialized")?.is_truthy(),
        _ => Ok(false),
    }
}

fn on_gpu(
    py: Python<'_>,
    named: Option<u32>,
    parts: &[Allocation],
    access: Access,
    held: Held,
) -> PyResult<cuda::Memory> {
    let parts = parts.iter().map(|part| (part.address as u64, part.len));
    let parts: Vec<_> = parts.collect();
    let made = py.detach(|| {
        let ordinal = named.map_or_else(|| cuda::ordinal_of(&parts), Ok)?;
        // SAFETY: what is held owns these bytes until the last use of the memory, and the engine does not resize them.
        unsafe { cuda::register(ordinal, &parts, access, Arc::new(held)) }
    });
    made.map_err(CacheMemoryError::new_err)
}

/// Runs a copy through temporary host memory, unless it is empty.
fn through_host(length: usize, go: impl FnOnce(&memory::Memory) -> PyResult<()>) -> PyResult<()> {
    if length == 0 {
        return Ok(());
    }
    let host = memory::Memory::allocate(&[length]);
    go(&host.map_err(raise!(CacheMemoryError))?)
}

fn one_run(length: usize, src: u64, dst: u64) -> Program {
    Program {
        nests: vec![Nest { loops: Default::default(), run: length as u64 }],
        placed: vec![Placed { nest: 0, src, dst }],
    }
}

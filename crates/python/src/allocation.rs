//! The Python objects behind registered memory: finds their bytes, and keeps them in place.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

use crate::errors::CacheMemoryError;

pub(crate) struct Allocation {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// The memory is on the GPU that the object names. If it names none, the driver is asked.
    Gpu(Option<u32>),
}

fn refused(number: usize, why: &str) -> PyErr {
    CacheMemoryError::new_err(format!("allocation {number}: {why}"))
}

impl Allocation {
    pub(crate) fn read(number: usize, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        if let Ok((address, len)) = object.extract() {
            let place = Place::Host;
            return Ok(Self { address, len, place });
        }
        if object.hasattr("data_ptr")? {
            return Self::of_torch(number, object);
        }
        let (given, read_only) = if is_array(object)? {
            Self::of_numpy(number, object)?
        } else if object.hasattr(CUDA)? {
            Self::of_cuda(number, object)?
        } else {
            return Err(PyTypeError::new_err(format!(
                "allocation {number} is a {}: give a torch tensor or storage, a numpy array, an object with {CUDA}, or (address, bytes)",
                object.get_type().name()?
            )));
        };
        match read_only && writable {
            true => Err(refused(number, "the array is read-only; register it with writable=False")),
            false => Ok(given),
        }
    }

    fn of_torch(number: usize, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device = object.getattr("device")?;
        let place = match device.getattr("type")?.extract()? {
            "cpu" => Place::Host,
            "cuda" => Place::Gpu(match device.getattr_opt("index")? {
                Some(index) => index.extract()?,
                None => None,
            }),
            other => {
                let why = format!("it is on {other}; only memory of the CPU and of CUDA devices can be registered");
                return Err(refused(number, &why));
            }
        };
        // A storage has no strides, so only tensors can be non-contiguous.
        if object.hasattr("is_contiguous")? && !object.call_method0("is_contiguous")?.is_truthy()? {
            let why = "the tensor is not contiguous; give its untyped_storage()";
            return Err(refused(number, why));
        }
        let len = match object.hasattr("element_size")? && object.hasattr("numel")? {
            true => {
                let count: usize = object.call_method0("numel")?.extract()?;
                let size: usize = object.call_method0("element_size")?.extract()?;
                count.saturating_mul(size)
            }
            false => object.call_method0("nbytes")?.extract()?,
        };
        let address = object.call_method0("data_ptr")?.extract()?;
        Ok(Self { address, len, place })
    }

    /// Reads a numpy array. Also returns whether it is read-only.
    fn of_numpy(number: usize, object: &Bound<'_, PyAny>) -> PyResult<(Self, bool)> {
        let interface = Interface::of(object, "__array_interface__")?;
        let (address, read_only) = interface.item("data")?.extract()?;
        if interface.optional("strides")?.is_some() {
            return Err(refused(number, "the array is not contiguous"));
        }
        if interface.item("typestr")?.extract::<String>()?.contains('O') {
            return Err(refused(number, "the array is one of Python objects"));
        }
        let (len, place) = (object.getattr("nbytes")?.extract()?, Place::Host);
        Ok((Self { address, len, place }, read_only))
    }

    /// Reads an array in GPU memory. Also returns whether it is read-only.
    fn of_cuda(number: usize, object: &Bound<'_, PyAny>) -> PyResult<(Self, bool)> {
        let interface = Interface::of(object, CUDA)?;
        let version: u32 = interface.item("version")?.extract()?;
        if !(2..=3).contains(&version) {
            let why = format!("its {CUDA} has version {version}; 2 and 3 are known");
            return Err(refused(number, &why));
        }
        let (address, read_only) = interface.item("data")?.extract()?;
        let typestr: String = interface.item("typestr")?.extract()?;
        let size = typestr.get(2..).and_then(|size| size.parse().ok());
        let size: usize = size.ok_or_else(|| refused(number, &format!("its typestr is {typestr:?}")))?;
        let shape: Vec<usize> = interface.item("shape")?.extract()?;
        let mut len = size;
        let strides = interface.optional("strides")?;
        let strides: Option<Vec<i64>> = strides.map(|given| given.extract()).transpose()?;
        let strides = strides.unwrap_or_default();
        for (at, &count) in shape.iter().enumerate().rev() {
            // The stride of an axis of length 1 has no effect.
            let stepped = strides.get(at).filter(|_| count > 1);
            if stepped.is_some_and(|&step| u64::try_from(step) != Ok(len as u64)) {
                return Err(refused(number, "the array is not contiguous"));
            }
            len = len.saturating_mul(count);
        }
        if interface.optional("mask")?.is_some() {
            return Err(refused(number, "the array has a mask"));
        }
        if len == 0 {
            return Err(refused(number, "the array is empty, so it is on no device"));
        }
        let place = Place::Gpu(None);
        Ok((Self { address, len, place }, read_only))
    }
}

/// The property with the address of an array in GPU memory, which arrays of torch, cupy and numba have.
pub(crate) const CUDA: &str = "__cuda_array_interface__";

struct Interface<'py> {
    name: &'static str,
    items: Bound<'py, PyDict>,
}

impl<'py> Interface<'py> {
    fn of(object: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        let items = object.getattr(name)?.cast_into()?;
        Ok(Self { name, items })
    }

    fn item(&self, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let item = self.items.get_item(key)?;
        item.ok_or_else(|| PyTypeError::new_err(format!("{} without {key:?}", self.name)))
    }

    fn optional(&self, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.items.get_item(key)?.filter(|item| !item.is_none()))
    }
}

pub(crate) fn hold(number: usize, object: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    let mut held = vec![object.clone().unbind()];
    if object.hasattr("data_ptr")? {
        held.extend(hold_storage(number, object, true)?);
    } else {
        // An array does not count the users of its buffer, but numpy never resizes an array that has weak references.
        // The bytes may belong to its base.
        let weakly = object.py().import("weakref")?.getattr("ref")?;
        let mut array = object.clone();
        while is_array(&array)? {
            held.push(weakly.call1((&array,))?.unbind());
            array = array.getattr("base")?;
        }
        if array.hasattr("data_ptr")? {
            // This is numpy's view of a tensor, which does not mean that numpy has seen the storage itself.
            held.extend(hold_storage(number, &array, false)?);
        }
    }
    Ok(held)
}

/// Keeps the bytes of a tensor or storage in place: torch does not resize a storage that numpy has seen, and does not
/// move one into shared memory if its methods for that refuse. With `refuse_foreign`, memory that torch did not
/// allocate is an error, since its owner could still move it.
fn hold_storage(number: usize, object: &Bound<'_, PyAny>, refuse_foreign: bool) -> PyResult<Vec<Py<PyAny>>> {
    // A tensor can be given another storage, so the current one is held. A `TypedStorage` wraps an `UntypedStorage`.
    let method = ["untyped_storage", "untyped"];
    let method = method.into_iter().find(|name| matches!(object.hasattr(*name), Ok(true)));
    let storage = match method {
        Some(method) => object.call_method0(method)?,
        None => object.clone(),
    };
    let mut held = vec![storage.clone().unbind()];
    let Some(torch) = imported(storage.py(), "torch")? else {
        return Ok(held);
    };
    // Objects that only look like torch's storages are left alone.
    let is_storage = torch.hasattr("UntypedStorage")? && storage.is_instance(&torch.getattr("UntypedStorage")?)?;
    let on = |device: &Bound<'_, PyAny>| device.getattr("type")?.extract::<String>();
    if !is_storage || on(&storage.getattr("device")?)? != "cpu" {
        return Ok(held);
    }
    let options = PyDict::new(storage.py());
    options.set_item("dtype", torch.getattr("uint8")?)?;
    let bytes = torch.call_method("empty", (0,), Some(&options))?;
    let bytes = bytes.call_method1("set_", (&storage,))?;
    let is_held = storage.hasattr(HELD)?;
    let is_shared = storage.call_method0("is_shared")?.is_truthy()?;
    if is_held {
        // An earlier registration has already done this.
    } else if is_shared {
        // A storage shared with the other strategy is moved by this call, so it is made before the address is read.
        storage.call_method0("share_memory_")?;
        let strategy = torch.getattr("multiprocessing")?.call_method0("get_sharing_strategy")?;
        let other = match strategy.extract::<&str>()? {
            "file_descriptor" => "_share_filename_cpu_",
            _ => "_share_fd_cpu_",
        };
        forbid(&storage, &[other])?;
    } else if refuse_foreign && !storage.call_method0("resizable")?.is_truthy()? {
        return Err(refused(number, FOREIGN));
    } else {
        let all = ["share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"];
        forbid(&storage, &all)?;
    }
    if !bytes.call_method0("untyped_storage")?.is(&storage) {
        let why = "this version of torch may move it into shared memory";
        return Err(refused(number, why));
    }
    let array = bytes.call_method0("numpy").map_err(|error| {
        CacheMemoryError::new_err(format!(
            "torch cannot promise to leave this storage where it is ({error}): is numpy installed?"
        ))
    })?;
    held.push(array.unbind());
    Ok(held)
}

/// The reason for refusing a storage that is not resizable although it was never registered.
const FOREIGN: &str = "its storage is memory that torch did not allocate, or numpy has seen it, and torch does not say which: \
    what owns it might move it. Give what the tensor was made of, or `tensor.numpy()`, or a clone, or register it before numpy sees it";

/// The attribute that marks a registered storage.
const HELD: &str = "_transload_held";

/// Makes a storage refuse methods that would move it into (other) shared memory, for which torch would free the
/// registered memory. They are replaced in the one object that torch has for the storage, so that tensors and queues
/// are affected, too.
fn forbid(storage: &Bound<'_, PyAny>, methods: &[&str]) -> PyResult<()> {
    let refuse = PyCFunction::new_closure(storage.py(), None, None, |_, _| -> PyResult<()> {
        Err(CacheMemoryError::new_err(
            "this storage is registered with transload and stays where it is: call share_memory_() before it is registered, \
             and keep the sharing strategy",
        ))
    })?;
    for method in methods.iter().chain([&HELD]) {
        storage.setattr(*method, &refuse)?;
    }
    Ok(())
}

/// Returns whether an object is a numpy array, and not a scalar, which has the same interface but owns no memory. If
/// numpy was not imported, there are no arrays.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match imported(object.py(), "numpy")? {
        Some(numpy) => object.is_instance(&numpy.getattr("ndarray")?),
        None => Ok(false),
    }
}

pub(crate) fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let module = modules.call_method1("get", (name,))?;
    Ok((!module.is_none()).then_some(module))
}

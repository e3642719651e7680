//! Keys and values of objects from Python.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use transload::archive::objects;

use crate::buffer::Buffer;

/// Reads a key or a namespace: bytes, or text as UTF-8.
pub(crate) fn name(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(text.to_cow()?.as_bytes().to_vec());
    }
    match given.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => {
            Err(PyTypeError::new_err(format!("a key or a namespace is str or bytes, not {}", given.get_type().name()?)))
        }
    }
}

pub(crate) fn keys(given: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    each(given)?.map(|key| name(&key?)).collect()
}

fn each<'py>(batch: &Bound<'py, PyAny>) -> PyResult<impl Iterator<Item = PyResult<Bound<'py, PyAny>>>> {
    // Text and bytes are iterable, too, but a single one is a mistake here.
    if batch.is_instance_of::<PyString>() || batch.is_instance_of::<PyBytes>() {
        let wrong = "give a list of keys and a list of values, also of one";
        return Err(PyTypeError::new_err(wrong));
    }
    batch.try_iter()
}

/// The addresses of a batch's values: the parts of each. They are plain numbers, usable on any thread.
pub(crate) struct Values(Vec<Vec<Part>>);

#[derive(Clone, Copy)]
struct Part {
    address: usize,
    len: usize,
}

impl Values {
    /// Reads one value for each key, and returns the buffers that keep the bytes in place. Parts that are `written`
    /// must not overlap.
    pub(crate) fn read(given: &Bound<'_, PyAny>, keys: usize, written: bool) -> PyResult<(Self, Vec<Buffer>)> {
        let (mut values, mut held) = (Vec::with_capacity(keys), Vec::with_capacity(keys));
        for (at, value) in each(given)?.enumerate() {
            let value = value?;
            let parts = match is_several(&value)? {
                true => {
                    value.try_iter()?.map(|part| Part::read(at, &part?, written, &mut held)).collect::<PyResult<_>>()?
                }
                false => vec![Part::read(at, &value, written, &mut held)?],
            };
            values.push(parts);
        }
        if values.len() != keys {
            return Err(PyValueError::new_err(format!(
                "there are {keys} keys and {} values: give one for each",
                values.len()
            )));
        }
        let values = Self(values);
        if written {
            values.check_apart()?;
        }
        Ok((values, held))
    }

    fn check_apart(&self) -> PyResult<()> {
        let parts = self.0.iter().flatten().filter(|part| part.len > 0);
        let mut parts: Vec<_> = parts.map(|part| (part.address, part.len)).collect();
        parts.sort_unstable();
        for pair in parts.windows(2) {
            let ((before, len), (after, _)) = (pair[0], pair[1]);
            if before + len > after {
                return Err(PyValueError::new_err(format!(
                    "two parts share the memory at {after:#x}: give each object memory of its own"
                )));
            }
        }
        Ok(())
    }

    /// Returns the parts of each value for a put. Python may write them at the same time.
    ///
    /// # Safety
    /// The memory has to stay in place until the parts' last use.
    pub(crate) unsafe fn to_put<'a>(&self) -> Vec<Vec<objects::Part<'a>>> {
        self.map(|part| {
            let start = std::ptr::with_exposed_provenance(part.address);
            // SAFETY: `Part::read` has checked the numbers; the rest is the caller's promise.
            unsafe { objects::Part::from_raw_parts(start, part.len) }
        })
    }

    /// Returns the parts of each value to read into. Python may read and write them at the same time. The values have
    /// to be read as `written`.
    ///
    /// # Safety
    /// The memory has to stay in place until the parts' last use.
    pub(crate) unsafe fn to_fill<'a>(&self) -> Vec<Vec<objects::PartMut<'a>>> {
        self.map(|part| {
            let start = std::ptr::with_exposed_provenance_mut(part.address);
            // SAFETY: `Part::read` has checked the numbers; the rest is the caller's promise.
            unsafe { objects::PartMut::from_raw_parts(start, part.len) }
        })
    }

    fn map<T>(&self, make: impl Fn(&Part) -> T) -> Vec<Vec<T>> {
        let parts = |parts: &Vec<Part>| parts.iter().map(&make).collect();
        self.0.iter().map(parts).collect()
    }
}

/// Returns whether a value is a sequence of parts: a list, or a tuple that is not one pair of numbers.
fn is_several(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(tuple) = value.cast::<PyTuple>() else {
        return Ok(value.is_instance_of::<PyList>());
    };
    let is_number = |item: Bound<'_, PyAny>| match item.extract::<usize>() {
        Ok(_) => true,
        // A number that does not fit is a number, too.
        Err(error) => !error.is_instance_of::<PyTypeError>(item.py()),
    };
    Ok(tuple.len() != 2 || !tuple.iter().all(is_number))
}

impl Part {
    /// Reads one buffer that belongs to the value with index `at`.
    fn read(at: usize, part: &Bound<'_, PyAny>, written: bool, held: &mut Vec<Buffer>) -> PyResult<Self> {
        if part.is_instance_of::<PyTuple>() {
            return Self::at_address(part).map_err(|why| PyValueError::new_err(format!("values[{at}]: {why}")));
        }
        let buffer = Buffer::new(part, written).map_err(|error| {
            let (py, kind) = (part.py(), part.get_type());
            match error.is_instance_of::<PyTypeError>(py) {
                true => {
                    PyTypeError::new_err(format!("values[{at}]: a part is a buffer or (address, length), not {kind}"))
                }
                false => PyValueError::new_err(format!(
                    "values[{at}]: a part is contiguous, and writable to be read into: {}",
                    error.value(py)
                )),
            }
        })?;
        let (address, len) = (buffer.address(), buffer.len());
        held.push(buffer);
        Ok(Self { address, len })
    }

    fn at_address(pair: &Bound<'_, PyAny>) -> Result<Self, &'static str> {
        let pair = pair.extract();
        let (address, len): (usize, usize) =
            pair.map_err(|_| "(address, length) are two numbers, neither negative nor too large")?;
        let end = address.checked_add(len);
        if len > isize::MAX as usize || end.is_none() {
            return Err("no memory is as long as that");
        }
        if address == 0 && len > 0 {
            return Err("there is no memory at address 0");
        }
        Ok(Self { address, len })
    }
}

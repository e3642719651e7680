//! Objects: bytes of an engine in a store, under the engine's own keys.

use std::time::UNIX_EPOCH;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use transload::archive::objects::{self, Info, ObjectError, Part, PartMut, Source, Target};
use transload::store;
use transload::store::backend::{Backend, Put};

use crate::errors::{StoreError, chain, raise};
use crate::in_process::InProcess;
use crate::logs;
use crate::values::{self, Values};

/// The most threads of one call; further ones would only wait for each other.
const MOST_THREADS: usize = 64;

/// The objects of one namespace in a store: bytes of an engine under its own keys.
///
/// Methods take batches. They wait for the store without the interpreter's lock, and may be called from any thread. A
/// key is bytes, or text as UTF-8, of 1 to 4,096 bytes. A value is one part or a list of parts, which are joined. A
/// part is a contiguous buffer of any format, or `(address, length)` of memory that the caller keeps in place. The
/// memory of a value must not be written by others until the method has returned.
///
/// Args:
///     store: the store's URI, as for `Archive`.
///     namespace: a part of every key, 1 to 4,096 bytes. Engines' own keys do not depend on the weights, so change it
///         when the weights change.
///     threads: the number of threads that hash and copy for one call, at most 64; if None, the number of cores, but at
///         most 4.
///
/// Raises:
///     StoreError: the store cannot be opened, or fails. In a forked process, every method raises it.
///     ValueError: a key, a namespace, a meta or an object is too long or too short, or a part cannot be used.
///     TypeError: one has the wrong type. Whenever ValueError or TypeError is raised, nothing was done.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Objects {
    inner: InProcess<objects::Objects>,
}

#[pymethods]
impl Objects {
    #[new]
    #[pyo3(signature = (store, namespace, *, threads = None))]
    fn new(py: Python<'_>, store: &str, namespace: &Bound<'_, PyAny>, threads: Option<usize>) -> PyResult<Self> {
        Ok(Self { inner: InProcess::new(open(py, store, namespace, threads)?) })
    }

    /// Puts objects. An existing object with equal length and meta stays unchanged; any other is replaced. If a key
    /// occurs twice, the last one counts. When this returns, objects are as durable as the store makes them.
    ///
    /// Args:
    ///     keys: their keys.
    ///     values: the bytes of each.
    ///     meta: at most 4,096 bytes that the engine needs to read them: one for all, or one for each.
    ///
    /// Returns:
    ///     For each, whether it was written.
    #[pyo3(signature = (keys, values, meta = None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<bool>> {
        let (inner, keys) = (self.inner.get()?, values::keys(keys)?);
        let metas = metas(meta, keys.len())?;
        let (values, held) = Values::read(values, keys.len(), false)?;
        // SAFETY: `held` outlives the call; a bare address comes with the caller's word.
        let bytes = unsafe { values.to_put() };
        let put = py.detach(|| put(inner, &keys, &metas, &bytes));
        drop(held);
        put.map_err(failed)
    }

    /// Reads objects into memory. Every piece is checked against its hash.
    ///
    /// Args:
    ///     keys: their keys.
    ///     values: memory for each, as long as the object, writable, and without overlaps.
    ///
    /// Returns:
    ///     For each object its info; or None, a miss: it does not exist, has another length, or has a missing or
    ///         damaged piece, so that the next put writes it anew. The memory of a miss has undefined contents.
    fn get(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Option<ObjectInfo>>> {
        let (inner, keys) = (self.inner.get()?, values::keys(keys)?);
        let (values, held) = Values::read(values, keys.len(), true)?;
        // SAFETY: as for `put`.
        let mut memory = unsafe { values.to_fill() };
        let got = py.detach(|| get(inner, &keys, &mut memory));
        drop(held);
        Ok(infos(got.map_err(failed)?))
    }

    /// Looks objects up.
    ///
    /// Returns:
    ///     For each object its info, or None. An existing object may still turn out to be damaged when it is read.
    fn has(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<ObjectInfo>>> {
        let (inner, keys) = (self.inner.get()?, values::keys(keys)?);
        let had = py.detach(|| inner.has(&slices(&keys)));
        Ok(infos(had.map_err(failed)?))
    }

    /// Removes objects. Missing ones are not an error.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (inner, keys) = (self.inner.get()?, values::keys(keys)?);
        py.detach(|| inner.delete(&slices(&keys))).map_err(failed)
    }

    /// Lists the objects of the namespace in no particular order. Listing does not count as a use, if the store
    /// supports that.
    ///
    /// Returns:
    ///     For each object the key, its info, and the time when it was last put, read or looked up, in Unix seconds, or
    ///         None if the store does not know.
    ///
    /// Raises:
    ///     StoreError: the store failed, or cannot list its contents.
    fn list(&self, py: Python<'_>) -> PyResult<Vec<Listed>> {
        let inner = self.inner.get()?;
        let listed = py.detach(|| inner.list()).map_err(failed)?.into_iter();
        let listed = listed.map(|object| {
            let used = object.last_used.map(|used| {
                let since = used.duration_since(UNIX_EPOCH);
                since.map_or_else(|before| -before.duration().as_secs_f64(), |it| it.as_secs_f64())
            });
            let key = PyBytes::new(py, &object.key).unbind();
            (key, ObjectInfo::from(object.info), used)
        });
        Ok(listed.collect())
    }

    /// Returns the size of the whole store, including other namespaces and the archive.
    ///
    /// Returns:
    ///     A dict of `bytes`, everything that counts against the cap, and `cap` in bytes, or None if there is none.
    ///         None if the store does not know.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        usage(py, &**self.inner.get()?.store())
    }

    /// Returns statistics of each tier of a `tier://` store since it was opened here, like `Archive.tiers`.
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        tiers(py, &**self.inner.get()?.store())
    }
}

pub(crate) fn tiers<'py>(py: Python<'py>, store: &dyn Backend) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let dicts = store.tiers().into_iter().map(|stats| {
        let tier = PyDict::new(py);
        tier.set_item("tier", stats.tier)?;
        tier.set_item("hits", stats.hits)?;
        tier.set_item("bytes", stats.bytes)?;
        tier.set_item("misses", stats.misses)?;
        tier.set_item("failures", stats.failures)?;
        tier.set_item("promotions", stats.promotions)?;
        tier.set_item("skipped", stats.skipped)?;
        tier.set_item("evictions", stats.evictions)?;
        Ok(tier)
    });
    dicts.collect()
}

pub(crate) fn usage<'py>(py: Python<'py>, store: &dyn Backend) -> PyResult<Option<Bound<'py, PyDict>>> {
    let usage = py.detach(|| store.inventory().map(|inventory| inventory.usage()));
    let Some(usage) = usage.transpose().map_err(raise!(StoreError))? else {
        return Ok(None);
    };
    let report = PyDict::new(py);
    report.set_item("bytes", usage.total_bytes)?;
    report.set_item("cap", usage.cap)?;
    Ok(Some(report))
}

type Listed = (Py<PyBytes>, ObjectInfo, Option<f64>);

/// The info of an object: its length and its meta, which a look-up returns without reading the object.
#[pyclass(frozen, eq, module = "transload")]
#[derive(PartialEq)]
pub(crate) struct ObjectInfo {
    inner: Info,
}

#[pymethods]
impl ObjectInfo {
    /// The object's length in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// The bytes that the engine stored with it to describe it.
    #[getter]
    fn meta(&self) -> &[u8] {
        &self.inner.meta
    }

    fn __repr__(&self) -> String {
        let Info { bytes, meta, .. } = &self.inner;
        format!("<transload.ObjectInfo: {bytes} bytes, meta of {}>", meta.len())
    }
}

impl From<Info> for ObjectInfo {
    fn from(inner: Info) -> Self {
        Self { inner }
    }
}

fn infos(found: Vec<Option<Info>>) -> Vec<Option<ObjectInfo>> {
    found.into_iter().map(|info| info.map(Into::into)).collect()
}

pub(crate) fn open(
    py: Python<'_>,
    store: &str,
    namespace: &Bound<'_, PyAny>,
    threads: Option<usize>,
) -> PyResult<objects::Objects> {
    logs::start(py)?;
    let namespace = values::name(namespace)?;
    if threads.is_some_and(|threads| !(1..=MOST_THREADS).contains(&threads)) {
        let wrong = format!("threads is 1 to {MOST_THREADS}");
        return Err(PyValueError::new_err(wrong));
    }
    let opened = py.detach(|| objects::Objects::new(store::open(store)?, &namespace));
    let opened = opened.map_err(failed)?;
    Ok(match threads {
        Some(threads) => opened.with_threads(threads),
        None => opened,
    })
}

fn metas(given: Option<&Bound<'_, PyAny>>, keys: usize) -> PyResult<Vec<Vec<u8>>> {
    let Some(given) = given else {
        return Ok(vec![Vec::new(); keys]);
    };
    if let Ok(one) = given.cast::<PyBytes>() {
        return Ok(vec![one.as_bytes().to_vec(); keys]);
    }
    let metas: Vec<Bound<'_, PyBytes>> =
        given.extract().map_err(|_| PyTypeError::new_err("meta is bytes for all objects, or a list of bytes"))?;
    if metas.len() != keys {
        return Err(PyValueError::new_err(format!(
            "there are {keys} keys and {} metas: give one for each, or one for all",
            metas.len()
        )));
    }
    Ok(metas.iter().map(|meta| meta.as_bytes().to_vec()).collect())
}

/// Puts objects. Returns for each whether it was written.
pub(crate) fn put(
    objects: &objects::Objects,
    keys: &[Vec<u8>],
    metas: &[Vec<u8>],
    values: &[Vec<Part<'_>>],
) -> Result<Vec<bool>, ObjectError> {
    let sources = keys.iter().zip(metas).zip(values);
    let sources = sources.map(|((key, meta), parts)| Source { key, meta, parts });
    let put = objects.put(&sources.collect::<Vec<_>>())?;
    Ok(put.iter().map(|put| *put == Put::Stored).collect())
}

pub(crate) fn get(
    objects: &objects::Objects,
    keys: &[Vec<u8>],
    memory: &mut [Vec<PartMut<'_>>],
) -> Result<Vec<Option<Info>>, ObjectError> {
    let targets = keys.iter().zip(memory);
    let targets = targets.map(|(key, parts)| Target { key, parts });
    objects.get(&mut targets.collect::<Vec<_>>())
}

pub(crate) fn slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

/// Converts an error to an exception: a `ValueError` for what the caller could have avoided.
fn failed(error: ObjectError) -> PyErr {
    match error {
        ObjectError::Store(error) => StoreError::new_err(chain(&error)),
        error => PyValueError::new_err(error.to_string()),
    }
}

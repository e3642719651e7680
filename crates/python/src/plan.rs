//! Plans: which rank sends what to which rank, in chunks that are contiguous on both sides.

use std::sync::Arc;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use transload::transfer::plan;
use transload::transfer::plan::codec::Codec;

use crate::cuda;
use crate::deployment::Deployment;
use crate::errors::{CacheMemoryError, PlanError, raise};
use crate::memory::Memory;
use crate::tables;

/// The transfers between the ranks of two deployments. A plan contains no addresses and no block numbers.
///
/// Args:
///     src: the source deployment.
///     dst: the destination deployment.
///     tokens: the number of tokens.
///     start: the position of the first token.
///     by_layer: whether streams carry one layer after another.
///
/// Raises:
///     PlanError: the two do not have the same cache, or the range of tokens is not plausible.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Plan {
    inner: plan::Plan,
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (src, dst, tokens, *, start = 0, by_layer = false))]
    fn new(src: &Deployment, dst: &Deployment, tokens: u64, start: u64, by_layer: bool) -> PyResult<Self> {
        let request = plan::Request { start, tokens, by_layer, codec: Codec::Exact };
        let inner = plan::Plan::compile(&src.inner, &dst.inner, &request);
        Ok(Self { inner: inner.map_err(raise!(PlanError))? })
    }

    /// Names of the groups, in the order of the source's document.
    #[getter]
    fn groups(&self) -> Vec<String> {
        self.inner.group_names().map(str::to_owned).collect()
    }

    /// `(source rank, destination rank, bytes)` of every pair with a transfer.
    #[getter]
    fn routes(&self) -> Vec<(u32, u32, u64)> {
        let routes = self.inner.routes().iter();
        routes
            .map(|route| {
                let bytes = self.inner.route_bytes(route);
                (route.src_rank.0, route.dst_rank.0, bytes)
            })
            .collect()
    }

    /// Binds the plan to the block tables of a request on both sides.
    ///
    /// Args:
    ///     src: for each group of the source's document, block numbers (-1: none), or None for block i = entry i.
    ///     dst: the same for each group of the destination's document.
    ///
    /// Raises:
    ///     PlanError: a table is too short, names a block that does not exist, or names one twice.
    fn bind(&self, py: Python<'_>, src: &Bound<'_, PyAny>, dst: &Bound<'_, PyAny>) -> PyResult<BoundPlan> {
        let (src, dst) = (tables::read(src)?, tables::read(dst)?);
        let bound = py.detach(|| {
            let src = self.inner.arrange(plan::Side::Source, &src)?;
            let dst = self.inner.arrange(plan::Side::Destination, &dst)?;
            self.inner.bind(&src, &dst)
        });
        Ok(BoundPlan { names: self.groups().into(), inner: bound.map_err(raise!(PlanError))? })
    }

    fn __repr__(&self) -> String {
        let request = self.inner.request();
        format!("<transload.Plan: tokens {} to {}, {} routes>", request.start, request.end(), self.inner.routes().len(),)
    }
}

/// A plan bound to the block tables of both sides.
#[pyclass(frozen, module = "transload")]
pub(crate) struct BoundPlan {
    names: Arc<[String]>,
    inner: plan::BoundPlan,
}

#[pymethods]
impl BoundPlan {
    /// The number of bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// The number of chunks.
    #[getter]
    fn chunks(&self) -> u64 {
        self.inner.chunks()
    }

    /// `{length in bytes: number of chunks}`, shortest first.
    #[getter]
    fn histogram<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lengths = PyDict::new(py);
        for (length, chunks) in self.inner.histogram() {
            lengths.set_item(length, chunks)?;
        }
        Ok(lengths)
    }

    /// The routes: one for each pair of ranks and each group with a transfer.
    #[getter]
    fn routes(&self) -> Vec<BoundRoute> {
        let routes = self.inner.routes.iter().cloned();
        routes.map(|inner| BoundRoute { group: self.names[inner.group].clone(), inner }).collect()
    }

    fn __repr__(&self) -> String {
        format!("<transload.BoundPlan: {} bytes in {} chunks>", self.inner.bytes(), self.inner.chunks(),)
    }
}

/// The copies from one source rank to one destination rank for one group.
#[pyclass(frozen, module = "transload")]
pub(crate) struct BoundRoute {
    #[pyo3(get)]
    /// Name of the group.
    group: String,
    inner: plan::BoundRoute,
}

/// The bytes of a chunk's record: source address, destination address and length, 8 bytes each.
const CHUNK: usize = 24;

#[pymethods]
impl BoundRoute {
    /// The source rank.
    #[getter]
    fn src_rank(&self) -> u32 {
        self.inner.src_rank.0
    }

    /// The destination rank.
    #[getter]
    fn dst_rank(&self) -> u32 {
        self.inner.dst_rank.0
    }

    /// The number of bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Returns every chunk in a read-only numpy array with the fields `src`, `dst` and `length` (uint64, bytes). The
    /// upper 20 bits of an address are the number of the allocation of that rank and group, the lower 44 the offset in
    /// it.
    fn chunks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let program = self.inner.program();
        let len = usize::try_from(program.chunks())
            .ok()
            .and_then(|chunks| chunks.checked_mul(CHUNK))
            .ok_or_else(|| PyMemoryError::new_err("there are too many chunks for one array"))?;
        let bytes = PyBytes::new_with(py, len, |bytes| {
            py.detach(|| {
                let mut places = bytes.chunks_exact_mut(CHUNK);
                program.for_each_chunk(|src, dst, length| {
                    if let Some(place) = places.next() {
                        place.copy_from_slice(bytemuck::bytes_of(&[src, dst, length]));
                    }
                });
            });
            Ok(())
        })?;
        let fields = [("src", "=u8"), ("dst", "=u8"), ("length", "=u8")];
        let numpy = py.import("numpy")?;
        numpy.call_method1("frombuffer", (bytes, fields.to_vec()))
    }

    /// Copies the chunks between two memories of this process, without the interpreter's lock. On a GPU it does not
    /// wait for the engine's work.
    ///
    /// Args:
    ///     src: the memory of the source rank and this group.
    ///     dst: the memory of the destination rank and this group.
    ///
    /// Raises:
    ///     CacheMemoryError: a memory is shorter than its deployment requires, or is read-only; or a GPU fails.
    fn copy(&self, py: Python<'_>, src: &Memory, dst: &Memory) -> PyResult<()> {
        let program = self.inner.program();
        py.detach(|| cuda::copy(&program, &src.kind, &dst.kind)).map_err(CacheMemoryError::new_err)
    }

    fn __repr__(&self) -> String {
        format!(
            "<transload.BoundRoute: rank {} to rank {}, group {:?}, {} bytes in {} chunks>",
            self.inner.src_rank.0,
            self.inner.dst_rank.0,
            self.group,
            self.inner.bytes(),
            self.inner.chunks(),
        )
    }
}

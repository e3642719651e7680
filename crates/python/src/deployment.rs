//! Deployments: descriptions of how an engine lays its cache out.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use transload::layout::document::Value;
use transload::layout::{self, Axis, ComponentView, Dim, Rank, split_address};
use transload::transfer::plan::ids::DeploymentDigest;

use crate::errors::{DocumentError, raise};

/// The layout of one side's KV cache on its ranks: a checked `transload.deployment/1` document.
///
/// Args:
///     document: the document as a dict, or as JSON text.
///
/// Raises:
///     DocumentError: the document has faults; the message lists all, each with its key path.
#[pyclass(frozen, module = "transload", eq, hash)]
#[derive(Clone)]
pub(crate) struct Deployment {
    pub(crate) inner: Arc<layout::Deployment>,
    text: Arc<str>,
}

impl PartialEq for Deployment {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Hash for Deployment {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A few fields suffice: equal deployments have equal hashes, and `eq` decides the rest.
        self.inner.name().hash(state);
        (self.inner.tp(), self.inner.pp(), self.inner.groups().len()).hash(state);
    }
}

#[pymethods]
impl Deployment {
    #[new]
    fn new(document: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text: String = match document.cast::<PyString>() {
            Ok(text) => text.extract()?,
            Err(_) => {
                let py = document.py();
                // Sizes may be numpy integers, which `json` does not know.
                let options = PyDict::new(py);
                options.set_item("default", py.import("operator")?.getattr("index")?)?;
                let json = py.import("json")?;
                json.call_method("dumps", (document,), Some(&options))?.extract()?
            }
        };
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| DocumentError::new_err(format!("the document is not valid JSON: {error}")))?;
        let inner = layout::Deployment::from_value(&value).map_err(raise!(DocumentError))?;
        Ok(Self { inner: Arc::new(inner), text: text.into() })
    }

    /// The original document, as JSON text.
    #[getter]
    fn document(&self) -> &str {
        &self.text
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (&str,)) {
        (py.get_type::<Self>(), (&self.text,))
    }

    /// The side's name, for people.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Ranks of tensor parallelism.
    #[getter]
    fn tp(&self) -> u32 {
        self.inner.tp()
    }

    /// Stages of pipeline parallelism.
    #[getter]
    fn pp(&self) -> u32 {
        self.inner.pp()
    }

    /// The number of ranks, `tp * pp`. Rank r is TP rank `r % tp` of stage `r // tp`.
    #[getter]
    fn ranks(&self) -> u32 {
        self.inner.tp() * self.inner.pp()
    }

    /// BLAKE3-256 digest of the canonical document, 32 bytes, by which tickets name it.
    #[getter]
    fn digest(&self) -> PyResult<[u8; 32]> {
        let digest = DeploymentDigest::of_deployment(&self.inner);
        Ok(digest.map_err(raise!(DocumentError))?.0)
    }

    /// The groups in the document's order, which is also that of memories and block tables.
    #[getter]
    fn groups(&self) -> Vec<Group> {
        let count = self.inner.groups().len();
        let groups = (0..count).map(|index| Group { deployment: self.inner.clone(), index });
        groups.collect()
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.inner.groups().iter().map(|group| group.name()).collect();
        format!(
            "<transload.Deployment {:?}: tp {}, pp {}, groups {}>",
            self.inner.name(),
            self.inner.tp(),
            self.inner.pp(),
            names.join(", "),
        )
    }
}

/// Layers with the same specs and the same block table.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Group {
    deployment: Arc<layout::Deployment>,
    index: usize,
}

impl Group {
    fn inner(&self) -> &layout::Group {
        &self.deployment.groups()[self.index]
    }

    /// Returns the TP rank and the pipeline stage of a rank.
    fn split(&self, rank: u32) -> PyResult<(u32, u32)> {
        let ranks = self.deployment.tp() * self.deployment.pp();
        if rank >= ranks {
            return Err(PyIndexError::new_err(format!(
                "there is no rank {rank}: the deployment's ranks are 0 to {}",
                ranks - 1
            )));
        }
        Ok(self.deployment.split_rank(Rank(rank)))
    }
}

#[pymethods]
impl Group {
    /// The group's name, which pairs the groups of two sides.
    #[getter]
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// The number of tokens in a block.
    #[getter]
    fn block_size(&self) -> u64 {
        self.inner().block_size()
    }

    /// The number of blocks on each rank.
    #[getter]
    fn num_blocks(&self) -> u32 {
        self.inner().num_blocks()
    }

    /// Global layer numbers.
    #[getter]
    fn layers(&self) -> Vec<u32> {
        self.inner().layers().ids().to_vec()
    }

    /// Memory order, outermost axis first: `LBSHC`.
    #[getter]
    fn order(&self) -> String {
        self.inner().physical_order().to_string()
    }

    /// True if it holds recurrent state.
    #[getter]
    fn is_recurrent(&self) -> bool {
        self.inner().is_recurrent()
    }

    /// Returns the bytes of each allocation in a rank's memory of this group.
    #[pyo3(signature = (rank = 0))]
    fn allocations(&self, rank: u32) -> PyResult<Vec<u64>> {
        let (_, stage) = self.split(rank)?;
        let placement = self.inner().placement(stage);
        Ok(vec![placement.allocation_bytes; placement.allocations as usize])
    }

    /// Describes a rank's memory: for each of its layers, each component of each spec as a strided array. An engine's
    /// tensor matches the document if it has the same offset, shape and strides.
    ///
    /// Returns:
    ///     A list of dicts, by layer, spec and component:
    ///
    ///     - `layer`: global layer number.
    ///     - `spec`, `kind`, `component`: index and kind of the spec, name of the component: `k`, `v`, `latent` ...
    ///     - `units`: first and end of the component's heads (groups, channels) on this rank, counted over the whole
    ///       model.
    ///     - `allocation`, `offset`: index in `allocations`, and bytes from its start to the first element.
    ///     - `shape`: blocks, states of a block (tokens, except for recurrent and compressed kinds), units, and then
    ///       the axes of a unit's content, outermost first, in elements.
    ///     - `strides`: bytes from one to the next along each axis of `shape`. The stride of an axis with one position
    ///       is meaningless.
    ///     - `itemsize`: bytes of one element; 1 if the kind only knows bytes.
    ///
    /// Raises:
    ///     IndexError: there is no such rank.
    #[pyo3(signature = (rank = 0))]
    fn views<'py>(&self, py: Python<'py>, rank: u32) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let (tp_rank, stage) = self.split(rank)?;
        let group = self.inner();
        let components: Vec<_> = group.views(tp_rank, stage).collect();
        let slots = group.stage_slots(stage);
        let layers = (0..).zip(&group.layers().ids()[slots]);
        let views = layers.flat_map(|(slot, layer)| {
            let components = components.iter();
            components.map(move |component| view(py, group, *layer, slot, component))
        });
        views.collect()
    }

    fn __repr__(&self) -> String {
        let group = self.inner();
        format!(
            "<transload.Group {:?}: {} blocks of {} tokens, {}>",
            group.name(),
            group.num_blocks(),
            group.block_size(),
            group.physical_order(),
        )
    }
}

/// Describes one component in the layer at a slot in numpy's and torch's terms.
fn view<'py>(
    py: Python<'py>,
    group: &layout::Group,
    layer: u32,
    slot: u64,
    of: &ComponentView,
) -> PyResult<Bound<'py, PyDict>> {
    let view = &of.view;
    let (allocation, offset) = split_address(view.offset + slot * view.dim(Axis::Layer).stride);
    let content = view.dims.iter().copied();
    let content = content.filter(|dim| matches!(dim.axis, Axis::Content(_)));
    let outer = [Axis::Block, Axis::State, Axis::Unit].map(|axis| view.dim(axis));
    let dims: Vec<Dim> = outer.into_iter().chain(content).collect();
    let spec = &group.specs()[of.spec];
    let item = PyDict::new(py);
    item.set_item("layer", layer)?;
    item.set_item("spec", of.spec)?;
    item.set_item("kind", spec.kind())?;
    item.set_item("component", spec.geometry().components[of.component].name)?;
    item.set_item("units", (of.units.start, of.units.end))?;
    item.set_item("allocation", allocation)?;
    item.set_item("offset", offset)?;
    item.set_item("shape", PyTuple::new(py, dims.iter().map(|dim| dim.extent))?)?;
    item.set_item("strides", PyTuple::new(py, dims.iter().map(|dim| dim.stride))?)?;
    item.set_item("itemsize", view.dim(Axis::Byte).extent)?;
    Ok(item)
}

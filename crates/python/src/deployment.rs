//! Deployments: how an engine lays its cache out.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use transload::layout::document::Value;
use transload::layout::{self, Rank};
use transload::transfer::ids::DeploymentDigest;

use crate::errors::{DocumentError, raise};

/// How one side lays its KV cache out on its ranks: a checked `transload.deployment/1` document.
///
/// Args:
///     document: the document as a dict, or as JSON text.
///
/// Raises:
///     DocumentError: it lists all faults, each with its key path.
#[pyclass(frozen, module = "transload", eq, hash)]
#[derive(Clone)]
pub(crate) struct Deployment {
    pub(crate) inner: Arc<layout::Deployment>,
    /// As it was given, in JSON.
    text: Arc<str>,
}

impl PartialEq for Deployment {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Hash for Deployment {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal ones have equal names; the rest is for `eq`.
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
                // Shapes come as numpy's integers, too.
                let options = PyDict::new(py);
                options.set_item("default", py.import("operator")?.getattr("index")?)?;
                let json = py.import("json")?;
                json.call_method("dumps", (document,), Some(&options))?
                    .extract()?
            }
        };
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| DocumentError::new_err(format!("the document is no JSON: {error}")))?;
        let inner = layout::Deployment::from_value(&value).map_err(raise!(DocumentError))?;
        Ok(Self {
            inner: Arc::new(inner),
            text: text.into(),
        })
    }

    /// The document that it was made from, as JSON text.
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

    /// How many ranks there are: `tp * pp`. Rank r is TP rank `r % tp` of stage `r // tp`.
    #[getter]
    fn ranks(&self) -> u32 {
        self.inner.tp() * self.inner.pp()
    }

    /// BLAKE3-256 of the canonical document, 32 bytes: what tickets name.
    #[getter]
    fn digest(&self) -> PyResult<[u8; 32]> {
        let digest = DeploymentDigest::of_deployment(&self.inner);
        Ok(digest.map_err(raise!(DocumentError))?.0)
    }

    /// The groups, in the order of the document: that of memories and block tables.
    #[getter]
    fn groups(&self) -> Vec<Group> {
        let count = self.inner.groups().len();
        let groups = (0..count).map(|index| Group {
            deployment: self.inner.clone(),
            index,
        });
        groups.collect()
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self
            .inner
            .groups()
            .iter()
            .map(|group| group.name())
            .collect();
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

    fn stage(&self, rank: u32) -> PyResult<u32> {
        let ranks = self.deployment.tp() * self.deployment.pp();
        if rank >= ranks {
            return Err(PyIndexError::new_err(format!(
                "there is no rank {rank}: the deployment's ranks are 0 to {}",
                ranks - 1
            )));
        }
        Ok(self.deployment.split_rank(Rank(rank)).1)
    }
}

#[pymethods]
impl Group {
    /// Its name, by which the groups of two sides are paired.
    #[getter]
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// Tokens of a block.
    #[getter]
    fn block_size(&self) -> u64 {
        self.inner().block_size()
    }

    /// Blocks of each rank.
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

    /// Whether it holds recurrent state.
    #[getter]
    fn is_recurrent(&self) -> bool {
        self.inner().is_recurrent()
    }

    /// Bytes of each allocation that a rank's memory of this group has.
    #[pyo3(signature = (rank = 0))]
    fn allocations(&self, rank: u32) -> PyResult<Vec<u64>> {
        let placement = self.inner().placement(self.stage(rank)?);
        Ok(vec![
            placement.allocation_bytes;
            placement.allocations as usize
        ])
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

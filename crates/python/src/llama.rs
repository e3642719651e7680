//! States of llama.cpp's sequences.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use transload::archive::llama::{Found, States};
use transload::archive::{ComputedBy, Model, Sharing};
use transload::store;

use crate::buffer::Buffer;
use crate::errors::{ArchiveError, StoreError, raise};
use crate::in_process::InProcess;
use crate::logs;
use crate::objects::usage;

/// The saved states of one llama.cpp model in a store: the bytes that `llama_state_seq_get_data` returns for a
/// sequence.
///
/// Methods wait for the store without the interpreter's lock. In a forked child they raise StoreError.
///
/// Args:
///     store: the store's URI, as for `Archive`.
///     model: the model's name.
///     weights: everything else that affects the numbers in its caches: digests of all files, adapters by content and
///         scale, rope settings, and types of the caches.
///     sample: any state of at least one token from the context that will restore, as a contiguous buffer. It shows the
///         layers, their types, and whether values are transposed. None if the model has sliding windows or recurrent
///         layers: then states are stored as a whole, each for exactly its tokens.
///     engine_version: the version of the program that runs llama.cpp. States of another minor version are not found.
///         Without it, only states saved without it are found.
///
/// Raises:
///     StoreError: the store cannot be opened.
///     ArchiveError: the sample cannot be read.
#[pyclass(frozen, module = "transload")]
pub(crate) struct LlamaStates {
    inner: InProcess<States>,
}

#[pymethods]
impl LlamaStates {
    #[new]
    #[pyo3(signature = (store, model, weights, sample, *, engine_version = None))]
    fn new(
        py: Python<'_>,
        store: &str,
        model: String,
        weights: String,
        sample: Option<&Bound<'_, PyAny>>,
        engine_version: Option<String>,
    ) -> PyResult<Self> {
        logs::start(py)?;
        let mut model = Model::new(model, weights);
        if let Some(version) = engine_version {
            model = model.with_engine(ComputedBy::new("llama.cpp", version), Sharing::Version);
        }
        let store = py.detach(|| store::open(store)).map_err(raise!(StoreError))?;
        let sample = sample.map(|sample| Buffer::new(sample, false));
        let inner = match sample.transpose()? {
            Some(sample) => py.detach(|| States::new(store, model, &sample.to_vec())),
            None => States::whole(store, model),
        };
        Ok(Self { inner: InProcess::new(inner.map_err(raise!(ArchiveError))?) })
    }

    /// Saves the state of a sequence of these tokens. Parts that are already saved are not written again.
    ///
    /// Args:
    ///     tokens: all tokens of the sequence.
    ///     state: its state, any contiguous buffer.
    ///     prompt: the number of tokens that were the prompt. If states are stored as a whole, the prompt's own state
    ///         is not replaced, since the next turn of a chat may not begin with the whole answer of this one.
    ///
    /// Returns:
    ///     The number of bytes that were new to the store.
    ///
    /// Raises:
    ///     ArchiveError: the state cannot be read, does not consist of these tokens at positions 0, 1, ..., once each
    ///         in one sequence, or has other layers than the sample; or the store failed.
    #[pyo3(signature = (tokens, state, *, prompt = 0))]
    fn save(&self, py: Python<'_>, tokens: Vec<u32>, state: &Bound<'_, PyAny>, prompt: usize) -> PyResult<u64> {
        let state = Buffer::new(state, false)?;
        let states = self.inner.get()?;
        let saved = py.detach(|| states.save_turn(prompt, &tokens, &state.to_vec()));
        Ok(saved.map_err(raise!(ArchiveError))?.bytes)
    }

    /// Returns the longest saved beginning of a prompt, or None.
    ///
    /// Raises:
    ///     ArchiveError: the store failed. Missing or unreadable entries count as not saved.
    fn find(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Option<LlamaFound>> {
        let states = self.inner.get()?;
        let found = py.detach(|| states.find(&tokens));
        let found = found.map_err(raise!(ArchiveError))?;
        Ok(found.map(|inner| LlamaFound { inner }))
    }

    /// Returns the state that was found, for `llama_state_seq_set_data`. Returns None if a part of it is missing or
    /// damaged by now; it is forgotten then, so call `find` again.
    ///
    /// Raises:
    ///     ArchiveError: the store failed.
    fn restore<'py>(&self, py: Python<'py>, found: &LlamaFound) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let states = self.inner.get()?;
        let state = py.detach(|| states.restore(&found.inner));
        let state = state.map_err(raise!(ArchiveError))?;
        Ok(state.map(|state| PyBytes::new(py, &state)))
    }

    /// Returns the size of the whole store, like `Objects.usage`.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        usage(py, &**self.inner.get()?.store())
    }
}

/// A saved beginning of a prompt.
#[pyclass(frozen, module = "transload")]
pub(crate) struct LlamaFound {
    inner: Found,
}

#[pymethods]
impl LlamaFound {
    /// The number of the prompt's tokens that it covers; never 0.
    #[getter]
    fn tokens(&self) -> usize {
        self.inner.tokens()
    }
}

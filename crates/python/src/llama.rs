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

/// The saved states of one model of llama.cpp in a store: what `llama_state_seq_get_data` says of a sequence.
///
/// Its methods wait for the store, without the interpreter's lock. In a forked child they raise StoreError.
///
/// Args:
///     store: the store's URI, as for `Archive`.
///     model: the model's name.
///     weights: everything else that decides the numbers in its caches: digests of all files, adapters by content and
///         scale, rope settings, and types of the caches.
///     sample: any state of the context that will restore, a contiguous buffer, of one token at least. It says which layers and types there
///         are, and whether values are transposed. None if the model has sliding windows or recurrent layers: then states
///         are kept whole, each for exactly its tokens.
///     engine_version: the version of what runs llama.cpp. States of another minor version are not found. Without it, only
///         states that were saved without it are found.
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

    /// Saves the state of a sequence of these tokens. What is saved already is not written again.
    ///
    /// Args:
    ///     tokens: all tokens of the sequence.
    ///     state: its state, any contiguous buffer.
    ///     prompt: how many of the tokens were the prompt. Where states are kept whole, the prompt's own is not replaced, since
    ///         the next turn of a chat may not begin with all of this one's answer.
    ///
    /// Returns:
    ///     How many bytes of it were not in the store before.
    ///
    /// Raises:
    ///     ArchiveError: the state cannot be read, is not one of these tokens at positions 0, 1, ..., once each in one
    ///         sequence, or has other layers than the sample; or the store failed.
    #[pyo3(signature = (tokens, state, *, prompt = 0))]
    fn save(&self, py: Python<'_>, tokens: Vec<u32>, state: &Bound<'_, PyAny>, prompt: usize) -> PyResult<u64> {
        let state = Buffer::new(state, false)?;
        let states = self.inner.get()?;
        let saved = py.detach(|| states.save_turn(prompt, &tokens, &state.to_vec()));
        Ok(saved.map_err(raise!(ArchiveError))?.bytes)
    }

    /// The longest saved beginning of a prompt, or None.
    ///
    /// Raises:
    ///     ArchiveError: the store failed. What is not there, or cannot be read, is not saved.
    fn find(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Option<LlamaFound>> {
        let states = self.inner.get()?;
        let found = py.detach(|| states.find(&tokens));
        let found = found.map_err(raise!(ArchiveError))?;
        Ok(found.map(|inner| LlamaFound { inner }))
    }

    /// The state that was found, for `llama_state_seq_set_data`; None if a part of it is gone or damaged by now: find again
    /// then, since that was forgotten.
    ///
    /// Raises:
    ///     ArchiveError: the store failed.
    fn restore<'py>(&self, py: Python<'py>, found: &LlamaFound) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let states = self.inner.get()?;
        let state = py.detach(|| states.restore(&found.inner));
        let state = state.map_err(raise!(ArchiveError))?;
        Ok(state.map(|state| PyBytes::new(py, &state)))
    }

    /// Tells how many bytes the whole store takes up, as `Objects.usage` does.
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
    /// How many tokens of the prompt it is; never 0.
    #[getter]
    fn tokens(&self) -> usize {
        self.inner.tokens()
    }
}

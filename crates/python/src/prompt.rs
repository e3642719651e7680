//! Prompts: everything that determines the content of a request's blocks.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use transload::archive;
use transload::transfer::Content;

/// Token ids, and everything else that determines the content of a request's blocks.
///
/// Args:
///     tokens: token ids, from the sequence's first one on.
///     adapter: the LoRA adapter that computes it.
///     multimodal: `(identifier, position, length)` of images and the like, positions and lengths in tokens.
///     salt: a text that separates a tenant's cache from others.
///     embeddings: a 32-byte digest of the prompt embeddings, if there are any.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Prompt {
    tokens: Vec<u32>,
    adapter: Option<String>,
    multimodal: Vec<(String, u64, u64)>,
    salt: Option<String>,
    embeddings: Option<[u8; 32]>,
}

#[pymethods]
impl Prompt {
    #[new]
    #[pyo3(signature = (tokens, *, adapter = None, multimodal = Vec::new(), salt = None, embeddings = None))]
    fn new(
        tokens: Vec<u32>,
        adapter: Option<String>,
        multimodal: Vec<(String, u64, u64)>,
        salt: Option<String>,
        embeddings: Option<[u8; 32]>,
    ) -> Self {
        Self { tokens, adapter, multimodal, salt, embeddings }
    }

    /// Returns the digest of the content of blocks with its first `valid` tokens (all if None), 32 bytes. A lease is
    /// bound to it, and a pull has to state it. Recurrent models stop one token short.
    ///
    /// Raises:
    ///     ValueError: the prompt has fewer tokens.
    #[pyo3(signature = (valid = None))]
    fn digest(&self, valid: Option<u64>) -> PyResult<[u8; 32]> {
        let valid = valid.unwrap_or(self.tokens.len() as u64);
        let mut content =
            Content::first(valid, &self.tokens).map_err(|error| PyValueError::new_err(error.to_string()))?;
        if let Some(adapter) = &self.adapter {
            content = content.adapter(adapter);
        }
        for (identifier, position, length) in &self.multimodal {
            content = content.multimodal(identifier, *position, *length);
        }
        if let Some(salt) = &self.salt {
            content = content.cache_salt(salt);
        }
        if let Some(digest) = self.embeddings {
            content = content.prompt_embeddings(digest);
        }
        Ok(content.digest().0)
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&[u32],), Bound<'py, PyDict>)> {
        let more = PyDict::new(py);
        more.set_item("adapter", &self.adapter)?;
        more.set_item("multimodal", &self.multimodal)?;
        more.set_item("salt", &self.salt)?;
        more.set_item("embeddings", self.embeddings)?;
        Ok(((&self.tokens,), more))
    }

    fn __len__(&self) -> usize {
        self.tokens.len()
    }

    fn __repr__(&self) -> String {
        format!("<transload.Prompt of {} tokens>", self.tokens.len())
    }
}

impl Prompt {
    pub(crate) fn saved(&self) -> archive::Prompt<'_> {
        let mut prompt = archive::Prompt::new(&self.tokens);
        if let Some(adapter) = &self.adapter {
            prompt = prompt.adapter(adapter);
        }
        for (identifier, position, length) in &self.multimodal {
            prompt = prompt.multimodal(identifier, *position, *length);
        }
        if let Some(salt) = &self.salt {
            prompt = prompt.salt(salt);
        }
        if let Some(digest) = self.embeddings {
            prompt = prompt.embeddings(digest);
        }
        prompt
    }
}

//! The archive: saved blocks that outlive their engine.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use serde::de::DeserializeOwned;
use transload::archive::{self, Cache, ComputedBy, Model, NoSharing, Part, RankArchive, SaveRequest, Sharing};
use transload::layout::Rank;
use transload::store;

use crate::cuda::{self, Kind};
use crate::deployment::Deployment;
use crate::errors::{ArchiveError, StoreError, raise};
use crate::in_process::InProcess;
use crate::logs;
use crate::mark::Mark;
use crate::memory::Memory;
use crate::objects::tiers;
use crate::prompt::Prompt;
use crate::tables;
use crate::transfer::named_codec;

/// The saved prefixes of one model in a store, saved from any deployment of it and restored into any other.
///
/// A prefix is saved in whole token chunks of `TOKENS` tokens. Methods wait for the store without the interpreter's
/// lock.
///
/// Args:
///     store: the store's URI: `file:///var/kv`, `redis://host/0`, `s3://bucket/prefix`, or that of another scheme
///         whose library is found through `KV_STORE_LIBRARY_PATH`. Secrets come from the environment.
///     model: the model's name.
///     weights: what distinguishes its weights from others of that name: a revision, or a digest of the files.
///     deployment: any deployment of the model.
///     engine: the name of the engine that computes what is saved, together with
///     engine_version: its exact version. Without both, only what was saved without them is found.
///     sharing: what two engines must have in common for one to find what the other saved: `any` (nothing), `engine`
///         (the name) or `version` (the name and the minor version). It has to be the same for all that share a store.
///     codec: the encoding of keys and values: `exact`, or for f32, f16 and bf16 `q8` or `q4`, which take less room and
///         are not exact. Each codec finds only what was saved with it. Blocks that contain anything restored from `q8`
///         or `q4`, or computed from that, may be saved with that codec only.
///
/// Raises:
///     ValueError: `sharing` or `codec` is unknown, or only one of `engine` and `engine_version` is given.
///     StoreError: the store cannot be opened. In a forked process, every method raises it.
///     ArchiveError: the cache cannot be divided into pieces.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Archive {
    inner: InProcess<archive::Archive>,
}

#[pymethods]
impl Archive {
    /// The number of tokens in a token chunk.
    #[classattr]
    const TOKENS: u64 = archive::TOKEN_CHUNK;

    #[new]
    #[pyo3(signature = (store, model, weights, deployment, *, engine = None, engine_version = None, sharing = "version",
        codec = "exact"))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        store: &str,
        model: String,
        weights: String,
        deployment: &Deployment,
        engine: Option<String>,
        engine_version: Option<String>,
        sharing: &str,
        codec: &str,
    ) -> PyResult<Self> {
        logs::start(py)?;
        let sharing: Sharing = sharing.parse().map_err(|error: NoSharing| PyValueError::new_err(error.to_string()))?;
        let codec = named_codec(codec)?;
        let model = Model::new(model, weights);
        let model = match (engine, engine_version) {
            (Some(engine), Some(version)) => model.with_engine(ComputedBy::new(engine, version), sharing),
            (None, None) => model,
            _ => {
                let wrong = "give both of engine and engine_version, or none of them";
                return Err(PyValueError::new_err(wrong));
            }
        };
        let store = py.detach(|| store::open(store)).map_err(raise!(StoreError))?;
        let inner = archive::Archive::new(store, model, &deployment.inner);
        Ok(Self { inner: InProcess::new(inner.map_err(raise!(ArchiveError))?.with_codec(codec)) })
    }

    /// The encoding of keys and values: `exact`, `q8` or `q4`.
    #[getter]
    fn codec(&self) -> PyResult<&'static str> {
        Ok(self.inner.get()?.codec().name())
    }

    /// Returns statistics of each tier of a `tier://` store since it was opened here.
    ///
    /// Returns:
    ///     A dict for each tier, the fastest first; empty if the store has no tiers. `tier` is its URI. For values,
    ///         which are chunks and manifests: `hits` were read from the tier, with `bytes` bytes in total, and
    ///         `misses` were missing or damaged. `failures` counts failed reads, after which the next tier was asked;
    ///         `promotions` were copied into it after a read from a lower tier; `skipped` are copies that it refused
    ///         because it was full or broken. `evictions` made room for others, over all handles of the store; None if
    ///         the tier does not count them.
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        tiers(py, &**self.inner.get()?.store())
    }

    /// Returns what of the first `tokens` tokens of a prompt is not saved yet. Pass it to every rank, so that all save
    /// the same.
    ///
    /// Args:
    ///     prompt: the prompt.
    ///     tokens: the number of its tokens in the blocks; all if None.
    ///     state: the number of tokens after which the recurrent state is, if the model has one.
    ///
    /// Raises:
    ///     ArchiveError: the store failed, or the prompt has fewer tokens.
    #[pyo3(signature = (prompt, tokens = None, *, state = None))]
    fn missing(&self, py: Python<'_>, prompt: &Prompt, tokens: Option<u64>, state: Option<u64>) -> PyResult<Missing> {
        let prompt = prompt.saved();
        let mut request = SaveRequest::tokens(tokens.unwrap_or(prompt.len()));
        if let Some(state) = state {
            request = request.with_state(state);
        }
        let inner = self.inner.get()?;
        let missing = py.detach(|| inner.missing(&prompt, &request));
        Ok(Missing { inner: missing.map_err(raise!(ArchiveError))? })
    }

    /// Saves one rank's share of what is missing. The blocks must not change before it returns.
    ///
    /// Args:
    ///     missing: what is missing.
    ///     deployment: the engine's deployment.
    ///     rank: its rank.
    ///     memories: the memory of each group.
    ///     tables: for each group, block numbers from the sequence's first token on (-1: the engine no longer has
    ///         it), or None for block i = entry i.
    ///     permit: the blocks may be read until it is revoked.
    ///     after: a `Mark` after the work that computes the blocks. It is waited for until the permit is revoked.
    ///
    /// Returns:
    ///     The part that this rank has saved, for `publish`, also in another process.
    ///
    /// Raises:
    ///     ArchiveError: the store failed, the permit is revoked, or memories or tables do not fit.
    #[pyo3(signature = (missing, deployment, rank, memories, tables, *, permit = None, after = None))]
    #[allow(clippy::too_many_arguments)]
    fn save<'py>(
        &self,
        py: Python<'py>,
        missing: &Missing,
        deployment: &Deployment,
        rank: u32,
        memories: Vec<PyRef<'py, Memory>>,
        tables: &Bound<'py, PyAny>,
        permit: Option<&Permit>,
        after: Option<&Mark>,
    ) -> PyResult<Vec<u8>> {
        let (memories, tables) = (caches(&memories), tables::read(tables)?);
        let permit = permit.map(|permit| permit.inner.clone());
        let inner = self.inner.get()?;
        let part = py.detach(|| {
            let rank = inner.rank(&deployment.inner, Rank(rank))?;
            touching(rank, permit, after).save(&missing.inner, &memories, &tables)
        });
        Ok(part.map_err(raise!(ArchiveError))?.encode())
    }

    /// Copies one rank's share of what is missing out of its blocks, which may be reused then; `put` saves it. This
    /// does not wait for a store.
    ///
    /// Args:
    ///     missing: what is missing.
    ///     deployment: the engine's deployment.
    ///     rank: its rank.
    ///     memories: the memory of each group.
    ///     tables: for each group, block numbers, as for `save`.
    ///     staging: the memory for the copy.
    ///     permit: the blocks may be read until it is revoked.
    ///     after: a `Mark` after the work that computes the blocks. It is waited for until the permit is revoked.
    ///
    /// Raises:
    ///     ArchiveError: the staging is full, the permit is revoked, or memories or tables do not fit.
    #[pyo3(signature = (missing, deployment, rank, memories, tables, staging, *, permit = None, after = None))]
    #[allow(clippy::too_many_arguments)]
    fn stage<'py>(
        &self,
        py: Python<'py>,
        missing: &Missing,
        deployment: &Deployment,
        rank: u32,
        memories: Vec<PyRef<'py, Memory>>,
        tables: &Bound<'py, PyAny>,
        staging: &Staging,
        permit: Option<&Permit>,
        after: Option<&Mark>,
    ) -> PyResult<Staged> {
        let (memories, tables) = (caches(&memories), tables::read(tables)?);
        let permit = permit.map(|permit| permit.inner.clone());
        let inner = self.inner.get()?;
        let staged = py.detach(|| {
            let rank = inner.rank(&deployment.inner, Rank(rank))?;
            let rank = touching(rank, permit, after);
            rank.stage(&missing.inner, &memories, &tables, &staging.inner)
        });
        Ok(Staged { inner: staged.map_err(raise!(ArchiveError))? })
    }

    /// Saves staged blocks like `save`, and returns the same. The memory is freed with the last reference to `staged`.
    ///
    /// Raises:
    ///     ArchiveError: the store failed.
    fn put(&self, py: Python<'_>, staged: &Staged) -> PyResult<Vec<u8>> {
        let inner = self.inner.get()?;
        let part = py.detach(|| inner.put(&staged.inner));
        Ok(part.map_err(raise!(ArchiveError))?.encode())
    }

    /// Publishes what all ranks have saved as saved prefixes. Returns the number of added token chunks.
    ///
    /// Raises:
    ///     ArchiveError: the parts are not those of every rank of one save (nothing is published then), or the store
    ///         failed.
    fn publish(&self, py: Python<'_>, missing: &Missing, parts: Vec<Vec<u8>>) -> PyResult<u64> {
        let inner = self.inner.get()?;
        let published = py.detach(|| {
            let parts: Result<Vec<Part>, _> = parts.iter().map(|part| Part::decode(part)).collect();
            inner.publish(&missing.inner, &parts?)
        });
        Ok(published.map_err(raise!(ArchiveError))?.roots)
    }

    /// Returns the longest prefix of a prompt that can be restored.
    ///
    /// Raises:
    ///     ArchiveError: the store failed. Missing or unreadable entries count as not saved.
    fn find(&self, py: Python<'_>, prompt: &Prompt) -> PyResult<Found> {
        let inner = self.inner.get()?;
        let found = py.detach(|| inner.find(&prompt.saved()));
        Ok(Found { inner: found.map_err(raise!(ArchiveError))? })
    }

    /// Restores one rank's share of a saved prefix into its blocks. Every byte is checked against its hash.
    ///
    /// Args:
    ///     found: the prefix.
    ///     deployment: the engine's deployment.
    ///     rank: its rank.
    ///     memories: the memory of each group.
    ///     tables: for each group, block numbers, as for `save`.
    ///     start: the first token to restore; earlier ones are in the blocks already.
    ///     permit: the blocks may be written until it is revoked.
    ///     after: a `Mark` after the work that still reads the blocks. It is waited for while the store is read, until
    ///         the permit is revoked.
    ///
    /// Returns:
    ///     A dict of `tokens` (after which every group can continue), and the `pieces` and `bytes` that were read.
    ///
    /// Raises:
    ///     ArchiveError: a piece is missing or damaged, the store failed, the permit is revoked, or memories or tables
    ///         do not fit.
    #[pyo3(signature = (found, deployment, rank, memories, tables, *, start = 0, permit = None,
        after = None))]
    #[allow(clippy::too_many_arguments)]
    fn restore<'py>(
        &self,
        py: Python<'py>,
        found: &Found,
        deployment: &Deployment,
        rank: u32,
        memories: Vec<PyRef<'py, Memory>>,
        tables: &Bound<'py, PyAny>,
        start: u64,
        permit: Option<&Permit>,
        after: Option<&Mark>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (memories, tables) = (caches(&memories), tables::read(tables)?);
        let permit = permit.map(|permit| permit.inner.clone());
        let inner = self.inner.get()?;
        let restored = py.detach(|| {
            let rank = inner.rank(&deployment.inner, Rank(rank))?;
            let rank = touching(rank, permit, after);
            rank.restore(&found.inner, start, &memories, &tables)
        });
        let restored = restored.map_err(raise!(ArchiveError))?;
        let report = PyDict::new(py);
        report.set_item("tokens", restored.tokens)?;
        report.set_item("pieces", restored.pieces)?;
        report.set_item("bytes", restored.bytes)?;
        Ok(report)
    }
}

/// The permission to read or write an engine's blocks during a save or restore.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Permit {
    inner: archive::Permit,
}

#[pymethods]
impl Permit {
    #[new]
    fn new() -> Self {
        Self { inner: archive::Permit::new() }
    }

    /// Revokes the permission: no further copy begins. It does not wait, not even for running copies: see `is_quiet`.
    fn revoke(&self) {
        self.inner.revoke();
    }

    /// True once the permission is revoked and its last copy is over, so that nothing touches the blocks any more. A
    /// copy on a GPU is over when the GPU has executed it.
    #[getter]
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }
}

/// Memory that holds blocks while a store saves them.
///
/// Args:
///     nbytes: the most bytes at a time. Memory is allocated when it is needed.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Staging {
    inner: archive::Staging,
}

#[pymethods]
impl Staging {
    #[new]
    fn new(nbytes: u64) -> Self {
        Self { inner: archive::Staging::new(nbytes) }
    }

    /// The number of bytes in use.
    #[getter]
    fn used(&self) -> u64 {
        self.inner.used()
    }
}

/// One rank's blocks to save, copied out of its memory. It uses memory of its `Staging`.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Staged {
    inner: archive::Staged,
}

#[pymethods]
impl Staged {
    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }
}

fn caches(memories: &[PyRef<'_, Memory>]) -> Vec<Cache> {
    let memories = memories.iter().map(|memory| match &memory.kind {
        Kind::Host(memory) => memory.clone().into(),
        Kind::Device(memory) => cuda::cache(memory),
    });
    memories.collect()
}

/// Returns a rank's archive that touches blocks only while the permit stands, and after the mark.
fn touching(rank: RankArchive, permit: Option<archive::Permit>, after: Option<&Mark>) -> RankArchive {
    let rank = rank.with_permit(permit.unwrap_or_default());
    match after {
        Some(mark) => mark.archive(rank),
        None => rank,
    }
}

/// The part of a prompt that is not saved yet. It is false if everything is saved.
///
/// Args:
///     encoded: the result of `encode`, from another process.
///
/// Raises:
///     ValueError: the bytes are not what `encode` returned.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Missing {
    inner: archive::Missing,
}

#[pymethods]
impl Missing {
    #[new]
    fn new(encoded: &[u8]) -> PyResult<Self> {
        let inner = decode(encoded)?;
        Ok(Self { inner })
    }

    /// Encodes it for other processes.
    fn encode(&self) -> PyResult<Vec<u8>> {
        encode(&self.inner)
    }

    fn __bool__(&self) -> bool {
        !self.inner.is_empty()
    }
}

/// A saved prefix.
///
/// Args:
///     encoded: the result of `encode`, from another process.
///
/// Raises:
///     ValueError: the bytes are not what `encode` returned.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Found {
    inner: archive::Found,
}

#[pymethods]
impl Found {
    #[new]
    fn new(encoded: &[u8]) -> PyResult<Self> {
        let inner = decode(encoded)?;
        Ok(Self { inner })
    }

    /// The number of tokens that can be restored; 0 if nothing is saved.
    #[getter]
    fn tokens(&self) -> u64 {
        self.inner.tokens()
    }

    /// The encoding of its keys and values. Blocks that it is restored into may be saved with this codec only.
    #[getter]
    fn codec(&self) -> &'static str {
        self.inner.codec().name()
    }

    /// Returns the prefix shortened to at most this many tokens.
    fn shorten(&self, tokens: u64) -> Self {
        Self { inner: self.inner.clone().shorten(tokens) }
    }

    /// Encodes it for other processes.
    fn encode(&self) -> PyResult<Vec<u8>> {
        encode(&self.inner)
    }

    fn __repr__(&self) -> String {
        format!("<transload.Found: {} tokens>", self.inner.tokens())
    }
}

fn encode(value: &impl Serialize) -> PyResult<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> PyResult<T> {
    postcard::from_bytes(bytes).map_err(|_| PyValueError::new_err("these bytes are not what `encode` returned"))
}

//! The archive: blocks that outlive their engine.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use serde::de::DeserializeOwned;
use transload::archive::{self, Cache, ComputedBy, Model, NoSharing, Part, RankArchive, SaveRequest, Sharing};
use transload::layout::Rank;
use transload::store;

use crate::cuda;
use crate::deployment::Deployment;
use crate::errors::{ArchiveError, StoreError, raise};
use crate::in_process::InProcess;
use crate::logs;
use crate::mark::Mark;
use crate::memory::{Kind, Memory};
use crate::objects::tiers;
use crate::prompt::Prompt;
use crate::tables;
use crate::transfer::named_codec;

/// The saved prefixes of one model in a store: saved out of any deployment of it, restored into any other.
///
/// A prefix is saved in whole token chunks of `TOKENS` tokens. Its methods wait for the store, without the
/// interpreter's lock.
///
/// Args:
///     store: the store's URI: `file:///var/kv`, `redis://host/0`, `s3://bucket/prefix`, or another scheme's, whose
///         library `KV_STORE_LIBRARY_PATH` finds. Secrets come from the environment.
///     model: the model's name.
///     weights: what tells its weights apart from others of that name: a revision, or a digest of the files.
///     deployment: any deployment of it.
///     engine: the name of the engine that computes what is saved, and
///     engine_version: its exact version. Without them, everything that is saved without them is found.
///     sharing: what of the engine another one has to have in common to find what this one saved: `any` (nothing),
///         `engine` (its name) or `version` (its name and minor version). The same for all that share a store.
///     codec: how keys and values are stored: `exact`, or, in f32, f16 and bf16, `q8` or `q4`, which take less room and are not
///         exact. Each finds what was saved with it alone. Blocks that hold anything restored from `q8` or `q4`, or computed on
///         that, may be saved with that codec only.
///
/// Raises:
///     ValueError: `sharing` or `codec` is another word, or only one of `engine` and `engine_version` is given.
///     StoreError: the store cannot be opened. In a process that was forked off, every method raises it.
///     ArchiveError: the cache cannot be cut into pieces.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Archive {
    inner: InProcess<archive::Archive>,
}

#[pymethods]
impl Archive {
    /// Tokens of a token chunk.
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

    /// How keys and values are stored: `exact`, `q8` or `q4`.
    #[getter]
    fn codec(&self) -> PyResult<&'static str> {
        Ok(self.inner.get()?.codec().name())
    }

    /// Tells what came of each tier of a `tier://` store since it was opened here.
    ///
    /// Returns:
    ///     A dict for each tier, the fastest first; none where the store has no tiers. `tier` is its URI. Of values, which are chunks
    ///     and manifests: `hits` were read from it, of `bytes` bytes, and `misses` were not there or damaged. `failures` is how
    ///     often it did not answer and the next one was asked; `promotions` were put into it since they were read below it;
    ///     `skipped` are copies that it refused, being full or broken. `evictions` went for others, by all handles of the store;
    ///     None where it does not count.
    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        tiers(py, &**self.inner.get()?.store())
    }

    /// What of the first `tokens` tokens of a prompt is not saved yet. It goes to every rank, so that all save the same.
    ///
    /// Args:
    ///     prompt: the prompt.
    ///     tokens: how many of its tokens the blocks hold; all if None.
    ///     state: after how many tokens the recurrent state is, where the model has one.
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
    ///     permit: as long as it stands the blocks may be read.
    ///     after: a `Mark` behind what computes the blocks. It is waited for, until the permit is revoked.
    ///
    /// Returns:
    ///     The part that this rank has saved, for `publish`, also in another process.
    ///
    /// Raises:
    ///     ArchiveError: the store failed, the permit is revoked, or memories or tables do not suit.
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

    /// Copies one rank's share of what is missing out of its blocks, which may be used again then; `put` saves it. No store
    /// is waited for.
    ///
    /// Args:
    ///     missing: what is missing.
    ///     deployment: the engine's deployment.
    ///     rank: its rank.
    ///     memories: the memory of each group.
    ///     tables: for each group, block numbers, as for `save`.
    ///     staging: the memory that it takes.
    ///     permit: as long as it stands the blocks may be read.
    ///     after: a `Mark` behind what computes the blocks. It is waited for, until the permit is revoked.
    ///
    /// Raises:
    ///     ArchiveError: the staging is full, the permit is revoked, or memories or tables do not suit.
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

    /// Saves what was staged, as `save` would have, and returns what it returns. The memory is given back when nobody has
    /// `staged` any more.
    ///
    /// Raises:
    ///     ArchiveError: the store failed.
    fn put(&self, py: Python<'_>, staged: &Staged) -> PyResult<Vec<u8>> {
        let inner = self.inner.get()?;
        let part = py.detach(|| inner.put(&staged.inner));
        Ok(part.map_err(raise!(ArchiveError))?.encode())
    }

    /// Makes what all ranks have saved visible as saved prefixes. How many token chunks were added.
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

    /// The longest prefix of a prompt that can be restored.
    ///
    /// Raises:
    ///     ArchiveError: the store failed. What is not there, or cannot be read, is not saved.
    fn find(&self, py: Python<'_>, prompt: &Prompt) -> PyResult<Found> {
        let inner = self.inner.get()?;
        let found = py.detach(|| inner.find(&prompt.saved()));
        Ok(Found { inner: found.map_err(raise!(ArchiveError))? })
    }

    /// Restores one rank's share of a saved prefix into its blocks; every byte is checked against its hash.
    ///
    /// Args:
    ///     found: the prefix.
    ///     deployment: the engine's deployment.
    ///     rank: its rank.
    ///     memories: the memory of each group.
    ///     tables: for each group, block numbers, as for `save`.
    ///     start: the first token that is wanted; those before are there already.
    ///     permit: as long as it stands the blocks may be written.
    ///     after: a `Mark` behind what still reads the blocks. It is waited for, until the permit is revoked, while the
    ///         store is read.
    ///
    /// Returns:
    ///     A dict of `tokens` (after which every group can go on), `pieces` and `bytes` that were read.
    ///
    /// Raises:
    ///     ArchiveError: a piece is gone or damaged, the store failed, the permit is revoked, or memories or tables do not
    ///         suit.
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

/// The permission to read or write an engine's blocks, while a store is waited for.
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

    /// Ends the permission: no copy begins any more. It waits for nothing, neither for copies under way: see `is_quiet`.
    fn revoke(&self) {
        self.inner.revoke();
    }

    /// Whether the permission was revoked and its last copy is over: nothing touches the blocks any more. A copy on a GPU is over
    /// when that has done it.
    #[getter]
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }
}

/// Memory for what is saved while its store takes it.
///
/// Args:
///     nbytes: how much it may be at a time. It is allocated when it is needed.
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

    /// Bytes in use.
    #[getter]
    fn used(&self) -> u64 {
        self.inner.used()
    }
}

/// What one rank has to save, out of its blocks. It holds memory of its `Staging`.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Staged {
    inner: archive::Staged,
}

#[pymethods]
impl Staged {
    /// Bytes of it.
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

/// A rank's archive that touches blocks as long as a permit stands, and after a mark.
fn touching(rank: RankArchive, permit: Option<archive::Permit>, after: Option<&Mark>) -> RankArchive {
    let rank = rank.with_permit(permit.unwrap_or_default());
    match after {
        Some(mark) => mark.archive(rank),
        None => rank,
    }
}

/// What of a prompt is not saved yet. False where everything is.
///
/// Args:
///     encoded: what `encode` returned, in another process.
///
/// Raises:
///     ValueError: it is not that.
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

    /// As bytes, for other processes.
    fn encode(&self) -> PyResult<Vec<u8>> {
        encode(&self.inner)
    }

    fn __bool__(&self) -> bool {
        !self.inner.is_empty()
    }
}

/// A prefix that is saved whole.
///
/// Args:
///     encoded: what `encode` returned, in another process.
///
/// Raises:
///     ValueError: it is not that.
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

    /// How many tokens can be restored; 0 if nothing is saved.
    #[getter]
    fn tokens(&self) -> u64 {
        self.inner.tokens()
    }

    /// How its keys and values are stored: `exact`, or a codec with which alone blocks that it is restored into may be saved.
    #[getter]
    fn codec(&self) -> &'static str {
        self.inner.codec().name()
    }

    /// The same prefix, at most so many tokens long.
    fn shorten(&self, tokens: u64) -> Self {
        Self { inner: self.inner.clone().shorten(tokens) }
    }

    /// As bytes, for other processes.
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

//! A request's blocks in one standard layout, saved out of any deployment and restored into any other.
//!
//! What an engine with TP 4, blocks of 16 tokens and NHD saved, one with TP 8, blocks of 64 and HND restores.
//! The unit is the *token chunk*, 256 tokens whatever the block size; a partial one at the end is not saved.
//! In each token chunk, each head (more exactly: each unit of what tensor parallelism shares out) of the layers
//! that one pipeline stage holds is a *piece*: a store chunk, keyed by the BLAKE3-256 of its bytes. What is
//! replicated over ranks is saved once, by the first of them.
//!
//! Names are made of tokens, contents are not: a chain of hashes over the prompt, and over everything else that
//! decides what a cache holds, [names](PrefixKey) a *root* manifest for each whole token chunk, and that lists
//! the pieces. So two engines that compute slightly different bytes for one prefix never mix them up: the
//! root that is there first stands, each root is whole, and data that no root names goes in a collection.
//!
//! # Saving
//! 1. The coordinator asks what is [missing](Archive::missing).
//! 2. Each rank [saves](RankArchive::save) its pieces, which ends with a *part* manifest of its own:
//!    `kv_store_v1` publishes only what the same handle put.
//! 3. The coordinator [publishes](Archive::publish) the roots, once it has every rank's [`Part`], and the parts go.
//!
//! # Restoring
//! 1. Anybody [finds](Archive::find) the longest saved prefix of a prompt.
//! 2. Each rank [restores](RankArchive::restore) its share of it; every byte is checked against its hash.
//!
//! # Windows and recurrent state
//! An engine keeps only the last tokens of a sliding window, and of a recurrent cache only the newest state. A
//! root holds what such a group needs to go on *there*, if the engine still had it: a snapshot. So a prefix can
//! be restored up to the largest position at which every group can go on.
//!
//! ```
//! # use std::sync::Arc;
//! use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
//! use transload_store::archive::{Archive, Model, Prompt, SaveRequest};
//! use transload_store::backend::MemoryStore;
//! use transload_transfer::memory::Memory;
//! use transload_transfer::plan::{BlockTable, Tables};
//!
//! let group = Group::builder("attn", "0-3", Spec::attention(4, 64, Dtype::Bf16));
//! let side = |tp, block, order| {
//!     let side = Deployment::builder().tp(tp).block_size(block).num_blocks(64).order(order);
//!     side.group(group.clone()).build().unwrap()
//! };
//! let cache = |side: &Deployment| {
//!     Memory::allocate(&[side.groups()[0].placement(0).allocation_bytes as usize])
//! };
//! let (prefill, decode) = (side(2, 16, "NHD"), side(1, 64, "HND"));
//! let archive = Archive::new(Arc::new(MemoryStore::new()), Model::new("demo", "r1"), &prefill)?;
//! let tokens: Vec<u32> = (0..600).collect();
//! let prompt = Prompt::new(&tokens);
//!
//! // Both ranks of the prefill side save; blocks 0 to 37 hold the prompt.
//! let missing = archive.missing(&prompt, &SaveRequest::tokens(600))?;
//! let tables = Tables(vec![BlockTable::Identity]);
//! let mut parts = Vec::new();
//! for rank in prefill.ranks() {
//!     let caches = [cache(&prefill)?];
//!     parts.push(archive.rank(&prefill, rank)?.save(&missing, &caches, &tables)?);
//! }
//! assert_eq!(archive.publish(&missing, &parts)?.roots, 2);
//!
//! // Later, and elsewhere: two whole token chunks of the prompt are there.
//! let found = archive.find(&prompt)?;
//! assert_eq!(found.tokens(), 512);
//! let caches = [cache(&decode)?];
//! archive.rank(&decode, Rank(0))?.restore(&found, 0, &caches, &tables)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cuda")]
mod before;
mod cache;
mod error;
mod find;
mod inspect;
mod key;
mod origin;
mod permit;
mod publish;
mod record;
mod restore;
mod save;
mod shape;
mod staged;
mod staging;
mod stored;

use std::sync::Arc;

use transload_layout::{Deployment, Rank};
#[cfg(feature = "cuda")]
use transload_transfer::device::Mark;
use transload_transfer::memory::Memory;
use transload_transfer::plan::{BlockTable, Tables};

pub use cache::Cache;
pub use error::ArchiveError;
pub use find::Found;
pub use inspect::{Held, Record};
pub use key::{Model, PrefixKey, Prompt, TOKEN_CHUNK};
pub use origin::{ComputedBy, NoSharing, Sharing};
pub use permit::Permit;
pub use publish::Published;
pub use restore::Restored;
pub use save::{Missing, Part, SaveRequest};
pub use staged::{Staged, Staging};
pub use transload_transfer::codec::{Codec, NoCodec};

use crate::backend::Backend;
use crate::name::ManifestName;
use crate::work;
#[cfg(feature = "cuda")]
use before::Before;
use shape::Shape;
use staging::RankGroup;

/// Begins the names of all manifests of an archive.
pub const NAMES: &str = "transload.archive/2/";

/// The saved prefixes of one model in a store.
///
/// Cheap to clone; to be used from any thread.
#[derive(Clone, Debug)]
pub struct Archive {
    store: Arc<dyn Backend>,
    model: Model,
    shape: Arc<Shape>,
    fingerprint: [u8; 32],
    codec: Codec,
    /// Of the cache and the model: what everything that is handed from process to process is bound to.
    cache: [u8; 32],
    /// A deployment of the model, to name what differs in another.
    reference: Arc<Deployment>,
    threads: usize,
}

/// One rank of a deployment, as the archive sees it.
#[derive(Debug)]
pub struct RankArchive {
    archive: Archive,
    permit: Permit,
    #[cfg(feature = "cuda")]
    before: Option<Before>,
    /// By group of the archive's shape: which group of the deployment's document, and what this rank holds.
    groups: Vec<(usize, Option<RankGroup>)>,
}

/// How many threads hash and copy for one rank, unless told otherwise: as many as the machine has cores, and at
/// most so many. BLAKE3 makes some 3 GB/s a thread, and the engine beside it needs its cores.
const DEFAULT_THREADS: usize = 4;

impl Archive {
    /// The archive of a model whose cache is that of `deployment`, in `store`.
    ///
    /// # Errors
    /// If the cache cannot be cut into pieces.
    pub fn new(
        store: Arc<dyn Backend>,
        model: Model,
        deployment: &Deployment,
    ) -> Result<Self, ArchiveError> {
        let shape = Shape::of(deployment)?;
        let codec = Codec::Exact;
        let fingerprint = shape.fingerprint(codec);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            store,
            cache: model.digest(&fingerprint),
            model,
            fingerprint,
            codec,
            shape: Arc::new(shape),
            reference: Arc::new(deployment.clone()),
            threads: cores.min(DEFAULT_THREADS),
        })
    }

    /// How many threads hash and copy for one rank (0 counts as 1).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Stores keys and values in a smaller form. What is saved so is another cache: an archive finds what one of its own codec
    /// saved.
    ///
    /// Blocks that hold anything restored from an archive of a codec that is not [exact](Codec::Exact), or computed on
    /// that, are not what their names say in others: save them in archives of that codec only.
    #[must_use]
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self.fingerprint = self.shape.fingerprint(codec);
        self.cache = self.model.digest(&self.fingerprint);
        self
    }

    /// How it stores keys and values.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The store that it is in.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.store
    }

    /// One rank of a deployment of the same model, whatever its TP, PP, block sizes and orders.
    ///
    /// # Errors
    /// If the deployment holds another cache, or has no such rank.
    pub fn rank(&self, deployment: &Deployment, rank: Rank) -> Result<RankArchive, ArchiveError> {
        transload_transfer::plan::pair_groups(&self.reference, deployment)?;
        let last = deployment.tp() * deployment.pp() - 1;
        if rank.0 > last {
            return Err(ArchiveError::NoSuchRank { rank: rank.0, last });
        }
        let groups = self.shape.groups.iter().map(|shape| {
            let position = deployment.group(&shape.name).map(|(position, _)| position);
            let position = position.ok_or_else(|| ArchiveError::NoGroup {
                group: shape.name.clone(),
            })?;
            Ok((position, RankGroup::new(shape, deployment, rank)?))
        });
        Ok(RankArchive {
            archive: self.clone(),
            permit: Permit::new(),
            #[cfg(feature = "cuda")]
            before: None,
            groups: groups.collect::<Result<_, ArchiveError>>()?,
        })
    }

    /// The keys of all whole token chunks of a prompt, the empty prefix first.
    pub fn keys(&self, prompt: &Prompt<'_>) -> Vec<PrefixKey> {
        prompt.chain(&self.fingerprint, &self.model)
    }
}

impl RankArchive {
    /// Touches the engine's blocks only as long as `permit` stands.
    #[must_use]
    pub fn with_permit(mut self, permit: Permit) -> Self {
        self.permit = permit;
        self
    }

    /// Touches the engine's blocks only once the GPU has come to `mark`: behind what computes them, for a save, or what reads them
    /// for the last time, for a restore. A restore reads the store meanwhile. Revoking the [permit](Self::with_permit)
    /// ends the wait.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.before = Some(Before::new(mark));
        self
    }

    /// Runs a copy from or to the engine's blocks, when it may.
    fn touch(&self, copy: impl FnOnce() -> Result<(), ArchiveError>) -> Result<(), ArchiveError> {
        #[cfg(feature = "cuda")]
        if let Some(before) = &self.before {
            before.wait(&self.permit)?;
        }
        self.permit.during(copy)
    }

    /// Runs `work` on the items of groups that this rank holds, each with the engine's memory and table of its group
    /// and a staging block that its thread uses again.
    fn on_groups<I: Sync, T: Default + Send>(
        &self,
        items: &[I],
        group: impl Fn(&I) -> usize + Sync,
        (caches, tables): (&[Cache], &Tables),
        work: impl Fn(&RankGroup, &I, (&Cache, &BlockTable), &Memory) -> Result<T, ArchiveError> + Sync,
    ) -> Result<Vec<T>, ArchiveError> {
        let begin = || Ok(vec![None; self.groups.len()]);
        work::on_threads(self.archive.threads, items, begin, |staging, item| {
            let group = group(item);
            let (position, held) = &self.groups[group];
            let Some(held) = held else {
                return Ok(T::default());
            };
            let block = match &mut staging[group] {
                Some(block) => block,
                none => none.insert(held.staging()?),
            };
            work(
                held,
                item,
                (&caches[*position], &tables.0[*position]),
                block,
            )
        })
    }

    fn count(&self, what: &'static str, given: usize) -> Result<(), ArchiveError> {
        let groups = self.groups.len();
        if given == groups {
            return Ok(());
        }
        Err(ArchiveError::Count {
            what,
            given,
            groups,
        })
    }
}

impl PrefixKey {
    /// The name of the root manifest of this prefix.
    pub fn root_name(&self) -> ManifestName {
        ManifestName::new(format!("{NAMES}{self}")).expect("84 characters of ASCII")
    }
}

//! A request's blocks in one standard layout, saved from any deployment and restored into any other.
//!
//! An engine with TP 8, blocks of 64 tokens and HND restores what one with TP 4, blocks of 16 and NHD has saved.
//! The unit is the *token chunk*, 256 tokens whatever the block size; an incomplete one at the end is not saved.
//! In each token chunk, each head (or other unit of tensor parallelism) of the layers that one pipeline stage holds is a
//! *piece*: a store chunk, keyed by the BLAKE3-256 of its bytes. Replicated pieces are saved once, by the first rank.
//!
//! Each whole token chunk of a prompt has a *root* manifest. Its [name](PrefixKey) is a hash chain over the
//! prompt, and over everything else that decides what a cache holds; the root lists its pieces by the hash of
//! their bytes. Two engines may compute slightly different bytes for one prefix. They are never mixed in one
//! token chunk of a group: the root that is there first stands, and what no root names is collected.
//!
//! # Saving
//! 1. The coordinator asks what is [missing](Archive::missing).
//! 2. Each rank [saves](RankArchive::save) its pieces, and then writes a *part* manifest, which keeps them until
//!    the roots name them: in `kv_store_v1`, a manifest may only name what the same handle has put.
//! 3. The coordinator [publishes](Archive::publish) the roots, once it has every rank's [`Part`], and the parts go.
//!
//! # Restoring
//! 1. Any process [finds](Archive::find) the longest saved prefix of a prompt.
//! 2. Each rank [restores](RankArchive::restore) its share of it; every byte is checked against its hash.
//!
//! # Windows and recurrent state
//! An engine keeps only the last tokens of a sliding window, and of a recurrent cache only the newest state. For
//! such a group a root may hold a *snapshot*: what the group needs to continue at that position. It has none if
//! the engine had dropped that. A prefix can be restored up to the largest position at which every group can continue.
//!
//! ```
//! # use std::sync::Arc;
//! use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
//! use transload_archive::{Archive, Model, Prompt, SaveRequest};
//! use transload_store::backend::MemoryStore;
//! use transload_memory::Memory;
//! use transload_plan::{BlockTable, Tables};
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

mod archive;
#[cfg(feature = "cuda")]
mod before;
mod cache;
mod convert;
mod error;
mod find;
mod inspect;
mod key;
pub mod kvc;
pub mod llama;
mod manifest;
pub mod objects;
mod origin;
mod permit;
mod publish;
mod rank;
mod reading;
mod record;
mod restore;
mod save;
mod shape;
mod staged;
mod stored;

pub use archive::Archive;
pub use cache::Cache;
pub use error::ArchiveError;
pub use find::Found;
pub use inspect::{Held, Record};
pub use key::{Model, NAMES, PrefixKey, Prompt, TOKEN_CHUNK};
pub use origin::{ComputedBy, NoSharing, Sharing};
pub use permit::Permit;
pub use publish::Published;
pub use rank::RankArchive;
pub use restore::Restored;
pub use save::{Missing, Part, SaveRequest};
pub use staged::{Staged, Staging};
pub use transload_plan::codec::{Codec, NoCodec};

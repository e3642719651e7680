//! The block sizes that vLLM uses for hybrids of attention and recurrent state.
//!
//! All groups share one pool of pages of one size. So vLLM raises the block size of attention until its page can hold a
//! recurrent state, and pads the state to the page (`_align_hybrid_block_size` in vLLM 0.32's
//! `platforms/interface.py`).

use super::serve::{Engine, Serving};
use super::{Model, ModelGroup};
use crate::footprint::Footprint;
use crate::spec::Spec;

/// The tokens of the smallest block that vLLM's attention kernels on GPUs support, and its default block size.
const KERNEL_BLOCK: u64 = 16;

/// The tokens of the smallest block for MLA, whose decode kernels need multiples of 128.
const MLA_BLOCK: u64 = 128;

/// The states of the smallest page that the kernels of sparse indexers support.
const INDEXER_PAGE: u64 = 32;

/// A page that attention and recurrent state share, on each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HybridPage {
    /// The tokens of an attention block that fills the page.
    pub block_size: u64,
    /// The bytes of a page, for one layer.
    pub bytes: u64,
    /// The bytes of the largest state.
    pub state_bytes: u64,
}

impl Model {
    /// Returns the page that an engine uses for a hybrid. `None` for other models, without an engine, or if a size
    /// overflows.
    pub fn hybrid_page(&self, serving: &Serving) -> Option<HybridPage> {
        let Some(Engine::Vllm) = serving.engine else {
            return None;
        };
        let tp = u32::try_from(serving.tp).ok()?;
        let is_recurrent = |group: &&ModelGroup| group.specs.iter().all(Spec::is_recurrent);
        // The bytes of a block of one token, or of a state, in one layer.
        let bytes = |group: &ModelGroup| {
            let footprint = Footprint::of(&group.specs, tp).ok()?;
            u64::try_from(footprint.block_bytes(1)).ok()
        };
        let states = self.groups.iter().filter(is_recurrent).map(bytes);
        let state_bytes = states.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        let attention = self.groups.iter().find(|group| !is_recurrent(group))?;
        let token = bytes(attention).filter(|bytes| *bytes > 0)?;
        let latent = attention.specs.iter().any(|spec| matches!(spec, Spec::Mla(_)));
        let specs = self.groups.iter().flat_map(|group| &group.specs);
        let indexers = specs.filter_map(|spec| match spec {
            Spec::Indexer(spec) => spec.tokens_per_state.checked_mul(INDEXER_PAGE),
            _ => None,
        });
        let kernel_block = indexers.fold(KERNEL_BLOCK, u64::max);
        let requested = serving.block_size.unwrap_or(kernel_block).max(1);
        let step = requested.max(if latent { MLA_BLOCK } else { KERNEL_BLOCK });
        let needed = state_bytes.div_ceil(step.checked_mul(token)?).checked_mul(step)?;
        let needed = needed.checked_next_multiple_of(kernel_block)?;
        let block_size = requested.max(needed);
        Some(HybridPage { block_size, bytes: block_size.checked_mul(token)?, state_bytes })
    }
}

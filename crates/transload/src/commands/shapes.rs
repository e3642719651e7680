//! Deployments of well-known shapes, for the demo and the benches.

use transload::layout::{Deployment, Dtype, Group, Spec};

use super::engines::broken;
use crate::failure::Failure;

/// A side that serves a Llama-like model: one group of attention with a head size of 128, in bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Llama {
    pub(crate) name: &'static str,
    pub(crate) model: &'static str,
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) tp: u32,
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) order: &'static str,
}

pub(crate) const CANONICAL_TOKENS: u64 = 2048;

/// The canonical case, Llama-3-70B: prefill with TP 4 and blocks of 16 tokens.
pub(crate) const CANONICAL_PREFILL: Llama = Llama {
    name: "prefill",
    model: "llama-3-70b",
    layers: 80,
    heads: 8,
    tp: 4,
    block_size: 16,
    num_blocks: 512,
    order: "LBSHC",
};

/// The canonical case: decode with TP 8 and blocks of 64 tokens.
pub(crate) const CANONICAL_DECODE: Llama =
    Llama { name: "decode", tp: 8, block_size: 64, num_blocks: 128, ..CANONICAL_PREFILL };

impl Llama {
    pub(crate) fn deployment(self) -> Result<Deployment, Failure> {
        let layers = format!("0-{}", self.layers - 1);
        let spec = Spec::attention(self.heads.into(), 128, Dtype::Bf16);
        Deployment::builder()
            .name(self.name)
            .model(self.model)
            .tp(self.tp.into())
            .block_size(self.block_size.into())
            .num_blocks(self.num_blocks.into())
            .order(self.order)
            .group(Group::builder("attn", &layers, spec))
            .build()
            .map_err(broken)
    }
}

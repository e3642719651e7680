//! Deployments of well-known shapes, for the demo and the benches.

use transload::document::{self, Syntax};
use transload::layout::Deployment;

use crate::failure::Failure;

/// A side that serves a model of Llama's kind: one group of attention, 128 wide, in bf16.
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

/// Tokens of the canonical case.
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
pub(crate) const CANONICAL_DECODE: Llama = Llama {
    name: "decode",
    tp: 8,
    block_size: 64,
    num_blocks: 128,
    ..CANONICAL_PREFILL
};

impl Llama {
    pub(crate) fn deployment(self) -> Result<Deployment, Failure> {
        Ok(document::parse(self.name, &self.document(), Syntax::Toml)?)
    }

    /// As a deployment document in TOML.
    pub(crate) fn document(self) -> String {
        let Self {
            name,
            model,
            layers,
            heads,
            tp,
            block_size,
            num_blocks,
            order,
        } = self;
        let last = layers - 1;
        format!(
            r#"
            schema = "transload.deployment/1"
            name = "{name}"
            model = "{model}"
            tp = {tp}
            block_size = {block_size}
            num_blocks = {num_blocks}
            order = "{order}"

            [[group]]
            name = "attn"
            layers = "0-{last}"

            [[group.spec]]
            kind = "attention"
            heads = {heads}
            head_dim = 128
            dtype = "bf16"
            "#
        )
    }
}

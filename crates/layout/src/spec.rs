//! Specs: what a model's cache *is*, independent of ranks and memory layout.
//!
//! Every kind of spec lowers to one form, its [`Geometry`]: components, each with its own partition over TP ranks and
//! its own content axes. Placement, slicing and plans use only that form.
//!
//! A spec's fields are public, and may have any values until it is part of a [`Deployment`](crate::Deployment). So
//! every method here returns a result or an error for any values and never panics.

mod attention;
mod field;
mod geometry;
mod latent;
mod recurrent;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use attention::Attention;
pub use field::FieldValue;
pub use geometry::{Arrangement, Component, Geometry, States};
pub use latent::{Mla, Opaque, ScaledLatent};
pub use recurrent::{ConvLayout, GdnConv, GdnSsm, Linear, Mamba1Conv, Mamba1Ssm, Mamba2Conv, Mamba2Ssm};

use crate::dtype::Dtype;
use crate::partition::PartitionError;

/// A spec of a group: the cache of the whole model, without TP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Spec {
    /// Multi-head, grouped-query or multi-query attention.
    Attention(Attention),
    /// Multi-head latent attention: one latent vector per token.
    Mla(Mla),
    /// Compressed attention (DeepSeek V4): one state for several tokens. In a block all data precede all scales.
    Compressed(ScaledLatent),
    /// Index keys of sparse attention (DeepSeek V3.2 and V4): values, then scales.
    Indexer(ScaledLatent),
    /// A packed format with separate states, whose content is opaque.
    Opaque(Opaque),
    /// Convolution state of Mamba2: `x`, `B`, `C`.
    Mamba2Conv(Mamba2Conv),
    /// State-space state of Mamba2.
    Mamba2Ssm(Mamba2Ssm),
    /// Convolution state of a gated delta net: `q`, `k`, `v`.
    GdnConv(GdnConv),
    /// Recurrent state of a gated delta net.
    GdnSsm(GdnSsm),
    /// Convolution state of Mamba1.
    Mamba1Conv(Mamba1Conv),
    /// State-space state of Mamba1.
    Mamba1Ssm(Mamba1Ssm),
    /// State of linear attention.
    Linear(Linear),
}

impl Spec {
    /// Returns keys and values of `head_dim` elements for each of the whole model's `heads`, without a window.
    pub fn attention(heads: u64, head_dim: u64, dtype: Dtype) -> Self {
        Self::Attention(Attention {
            heads,
            head_dim,
            v_head_dim: head_dim,
            dtype,
            sliding_window: None,
            chunk_size: None,
        })
    }

    /// Returns one vector of `latent` elements for each token, without a window.
    pub fn mla(latent: u64, dtype: Dtype) -> Self {
        Self::Mla(Mla { latent, dtype, sliding_window: None })
    }

    /// Returns the kind's name in a deployment document.
    pub fn kind(&self) -> &'static str {
        match self {
            Spec::Attention(_) => "attention",
            Spec::Mla(_) => "mla",
            Spec::Compressed(_) => "compressed",
            Spec::Indexer(_) => "indexer",
            Spec::Opaque(_) => "opaque",
            Spec::Mamba2Conv(_) => "mamba2_conv",
            Spec::Mamba2Ssm(_) => "mamba2_ssm",
            Spec::GdnConv(_) => "gdn_conv",
            Spec::GdnSsm(_) => "gdn_ssm",
            Spec::Mamba1Conv(_) => "mamba1_conv",
            Spec::Mamba1Ssm(_) => "mamba1_ssm",
            Spec::Linear(_) => "linear",
        }
    }

    /// Returns the common form that placement and slicing use.
    pub fn geometry(&self) -> Geometry {
        match self {
            Spec::Attention(spec) => spec.geometry(),
            Spec::Mla(spec) => spec.geometry(),
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.geometry(),
            Spec::Opaque(spec) => spec.geometry(),
            Spec::Mamba2Conv(spec) => spec.geometry(),
            Spec::Mamba2Ssm(spec) => spec.geometry(),
            Spec::GdnConv(spec) => spec.geometry(),
            Spec::GdnSsm(spec) => spec.geometry(),
            Spec::Mamba1Conv(spec) => spec.geometry(),
            Spec::Mamba1Ssm(spec) => spec.geometry(),
            Spec::Linear(spec) => spec.geometry(),
        }
    }

    /// Returns what the two sides of a transfer must agree on, as (field, value) pairs in document order.
    ///
    /// The layout of each side (`conv_layout`) is not included, since plans convert it.
    pub fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        match self {
            Spec::Attention(spec) => spec.identity(),
            Spec::Mla(spec) => spec.identity(),
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.identity(),
            Spec::Opaque(spec) => spec.identity(),
            Spec::Mamba2Conv(spec) => spec.identity(),
            Spec::Mamba2Ssm(spec) => spec.identity(),
            Spec::GdnConv(spec) => spec.identity(),
            Spec::GdnSsm(spec) => spec.identity(),
            Spec::Mamba1Conv(spec) => spec.identity(),
            Spec::Mamba1Ssm(spec) => spec.identity(),
            Spec::Linear(spec) => spec.identity(),
        }
    }

    /// Returns the `H` extent of `[L, B, S, H, C]` on each of `tp` ranks.
    ///
    /// # Errors
    /// Returns an error if `tp` does not divide the heads.
    pub fn num_heads(&self, tp: u32) -> Result<u64, PartitionError> {
        let geometry = self.geometry();
        match (&geometry.arrangement, geometry.components.first()) {
            (Arrangement::HeadsFirst, Some(first)) => first.partition.per_rank(tp),
            _ => Ok(1),
        }
    }

    /// Returns how many tokens one state stands for; `None` for a recurrent spec, whose single state stands for the
    /// whole sequence.
    pub fn tokens_per_state(&self) -> Option<u64> {
        match self {
            Spec::Attention(_) | Spec::Mla(_) => Some(1),
            Spec::Compressed(spec) | Spec::Indexer(spec) => Some(spec.tokens_per_state),
            Spec::Opaque(spec) => Some(spec.tokens_per_state),
            Spec::Mamba2Conv(_)
            | Spec::Mamba2Ssm(_)
            | Spec::GdnConv(_)
            | Spec::GdnSsm(_)
            | Spec::Mamba1Conv(_)
            | Spec::Mamba1Ssm(_)
            | Spec::Linear(_) => None,
        }
    }

    /// Tells whether one state stands for the whole sequence.
    pub fn is_recurrent(&self) -> bool {
        self.tokens_per_state().is_none()
    }

    /// Returns the `C` extent of `[L, B, S, H, C]` on each of `tp` ranks, in bytes: the content of one state of one
    /// head, with all components.
    ///
    /// # Errors
    /// Returns an error if `tp` does not divide a component's units, or if the bytes do not fit into 64 bits.
    pub fn state_content_size(&self, tp: u32) -> Result<u64, ContentSizeError> {
        let geometry = self.geometry();
        let heads = self.num_heads(tp)?;
        let mut bytes = 0u64;
        for component in &geometry.components {
            let units = component.partition.per_rank(tp)?;
            let factors = [units / heads.min(units), geometry.element_bytes];
            let size = factors.iter().chain(&component.content);
            let size = size.copied().try_fold(1u64, u64::checked_mul);
            bytes = size.and_then(|size| bytes.checked_add(size)).ok_or(ContentSizeError::TooLarge)?;
        }
        Ok(bytes)
    }

    /// Returns the first token that a request of tokens `[start, end)` still needs. A sliding window W needs t >=
    /// end-W+1, and attention chunks of c tokens need t >= floor(end/c)*c.
    pub fn first_token_needed(&self, start: u64, end: u64) -> u64 {
        let window = match self {
            Spec::Attention(spec) => return start.max(spec.first_token_needed(end)),
            Spec::Mla(spec) => spec.sliding_window,
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.sliding_window,
            _ => None,
        };
        window.map_or(start, |w| start.max(attention::first_in_window(w, end)))
    }

    /// Returns the spec of the same cache without a window. The content of its blocks is the same; only which blocks a
    /// request needs differs.
    #[must_use]
    pub fn without_window(&self) -> Self {
        let mut spec = self.clone();
        match &mut spec {
            Spec::Attention(spec) => (spec.sliding_window, spec.chunk_size) = (None, None),
            Spec::Mla(spec) => spec.sliding_window = None,
            Spec::Compressed(spec) | Spec::Indexer(spec) => spec.sliding_window = None,
            _ => {}
        }
        spec
    }
}

impl Spec {
    /// Returns the layout of a convolution, or `None` for any other kind.
    pub fn conv_layout(&self) -> Option<ConvLayout> {
        self.clone().conv_layout_mut().copied()
    }

    /// Returns the layout of a convolution for changing it, or `None` for any other kind.
    pub fn conv_layout_mut(&mut self) -> Option<&mut ConvLayout> {
        match self {
            Spec::Mamba2Conv(spec) => Some(&mut spec.conv_layout),
            Spec::GdnConv(spec) => Some(&mut spec.conv_layout),
            Spec::Mamba1Conv(spec) => Some(&mut spec.conv_layout),
            _ => None,
        }
    }
}

/// Describes why the size of a state's content cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContentSizeError {
    /// The TP size does not divide a component's units.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The bytes do not fit into 64 bits.
    #[error("the content of a state exceeds 2^64 bytes")]
    TooLarge,
}

#[cfg(test)]
mod tests;

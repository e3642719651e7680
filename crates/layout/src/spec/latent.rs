//! Caches with one vector per state: `mla`, `compressed`, `indexer`, and `opaque` entries.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Arrangement, Component, FieldValue, Geometry, States};
use crate::dtype::Dtype;

/// `mla`: `[L, B, block_size, 1, [latent]]`, complete on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mla {
    /// Elements of one latent vector (512 + 64 in DeepSeek V3).
    pub latent: u64,
    /// Their type.
    pub dtype: Dtype,
    /// Only the last `sliding_window` tokens are attended to, including the newest (DeepSeek V4).
    pub sliding_window: Option<u64>,
}

/// `compressed` and `indexer`: `[L, B, block_size/tokens_per_state, 1, [data], [scale]]`, complete on every rank. By
/// default all data of a block precede all its scales.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScaledLatent {
    /// Bytes of one state's data.
    pub data_bytes: u64,
    /// Bytes of one state's scales.
    pub scale_bytes: u64,
    /// The tokens of one state (4 or 128 in DeepSeek V4; 1 for an indexer).
    pub tokens_per_state: u64,
    /// Only states of the last `sliding_window` tokens are attended to, including the newest (DeepSeek V4).
    pub sliding_window: Option<u64>,
}

/// `opaque`: `[L, B, states, heads/tp, [entry]]`, bytes that only the engine understands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opaque {
    /// The heads of the whole model that have separate entries.
    pub heads: u64,
    /// The bytes of the entry of one state and head.
    pub entry_bytes: u64,
    /// The tokens of one state.
    pub tokens_per_state: u64,
    /// The heads of the rank *inside* an entry, which a change of TP cannot separate.
    pub packed_heads: Option<u64>,
}

fn vectors(tokens_per_state: u64, element_bytes: u64, components: SmallVec<[Component; 4]>) -> Geometry {
    Geometry {
        states: States::PerTokens(tokens_per_state),
        element_bytes,
        components_apart: components.len() > 1,
        components,
        arrangement: Arrangement::HeadsFirst,
    }
}

impl Mla {
    pub(super) fn geometry(&self) -> Geometry {
        let latent = Component::new("latent", ("latent", 1), &[self.latent]);
        vectors(1, self.dtype.bytes(), smallvec![latent])
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("latent", self.latent.into()),
            ("dtype", self.dtype.into()),
            ("sliding_window", self.sliding_window.into()),
        ]
    }
}

impl ScaledLatent {
    pub(super) fn geometry(&self) -> Geometry {
        let data = Component::new("data", ("data_bytes", 1), &[self.data_bytes]);
        let scale = Component::new("scale", ("scale_bytes", 1), &[self.scale_bytes]);
        vectors(self.tokens_per_state, 1, smallvec![data, scale])
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("data_bytes", self.data_bytes.into()),
            ("scale_bytes", self.scale_bytes.into()),
            ("tokens_per_state", self.tokens_per_state.into()),
            ("sliding_window", self.sliding_window.into()),
        ]
    }
}

impl Opaque {
    pub(super) fn geometry(&self) -> Geometry {
        let entry = Component::new("entry", ("heads", self.heads), &[self.entry_bytes]);
        vectors(self.tokens_per_state, 1, smallvec![entry])
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("heads", self.heads.into()),
            ("entry_bytes", self.entry_bytes.into()),
            ("tokens_per_state", self.tokens_per_state.into()),
            ("packed_heads", self.packed_heads.into()),
        ]
    }
}

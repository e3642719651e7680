//! `attention`: semantic shape per rank `[L, B, block_size, heads/tp, [K, V]]`.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Arrangement, Component, FieldValue, Geometry, States};
use crate::dtype::Dtype;

/// Keys and values of every token, for every KV head (MHA, GQA, MQA).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// KV heads of the whole model.
    pub heads: u64,
    /// Elements of one key.
    pub head_dim: u64,
    /// Elements of one value.
    pub v_head_dim: u64,
    /// Type of both.
    pub dtype: Dtype,
    /// The attention window: only the last `sliding_window` tokens are attended to, including the newest.
    pub sliding_window: Option<u64>,
    /// The chunk size: only tokens of the same chunk of `chunk_size` positions are attended to.
    pub chunk_size: Option<u64>,
}

impl Attention {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            states: States::PerTokens(1),
            element_bytes: self.dtype.bytes(),
            components: smallvec![
                Component::new("k", ("heads", self.heads), &[self.head_dim]),
                Component::new("v", ("heads", self.heads), &[self.v_head_dim]),
            ],
            arrangement: Arrangement::HeadsFirst,
            components_apart: false,
        }
    }

    pub(super) fn identity(&self) -> Vec<(&'static str, FieldValue)> {
        vec![
            ("heads", self.heads.into()),
            ("head_dim", self.head_dim.into()),
            ("v_head_dim", self.v_head_dim.into()),
            ("dtype", self.dtype.into()),
            ("sliding_window", self.sliding_window.into()),
            ("chunk_size", self.chunk_size.into()),
        ]
    }

    pub(super) fn first_token_needed(&self, end: u64) -> u64 {
        // A size of 0 is refused when a deployment is checked. Here any result is fine as long as nothing panics.
        let window = self.sliding_window.map_or(0, |w| first_in_window(w, end));
        let chunk = self.chunk_size.map_or(0, |c| end - end.checked_rem(c).unwrap_or(end));
        window.max(chunk)
    }
}

/// Returns the first token in a window that ends with the token at position `end`.
pub(super) fn first_in_window(window: u64, end: u64) -> u64 {
    end.saturating_add(1).saturating_sub(window)
}

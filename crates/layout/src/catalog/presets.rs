//! Presets of config classes, written short.

use super::config::Preset::{self, Number};

/// The presets of a class that has layers with heads, put together in a constant.
pub(super) struct Class {
    /// Places that are not taken have no name, so nobody asks for them.
    pub(super) presets: [(&'static str, Preset); 11],
    taken: usize,
}

/// A class with these numbers of layers, elements of a hidden state, and heads.
pub(super) const fn class(layers: u64, hidden: u64, heads: u64) -> Class {
    let class = Class { presets: [("", Number(0)); 11], taken: 0 };
    class.and("num_hidden_layers", layers).and("hidden_size", hidden).and("num_attention_heads", heads)
}

impl Class {
    /// Heads with keys and values; a class without has them in all heads.
    pub(super) const fn kv(self, heads: u64) -> Self {
        self.and("num_key_value_heads", heads)
    }

    /// Elements of a head; a class without shares out the hidden state.
    pub(super) const fn dim(self, head_dim: u64) -> Self {
        self.and("head_dim", head_dim)
    }

    /// Tokens of a window.
    pub(super) const fn window(self, tokens: u64) -> Self {
        self.and("sliding_window", tokens)
    }

    /// Any other number.
    pub(super) const fn and(mut self, key: &'static str, number: u64) -> Self {
        self.presets[self.taken] = (key, Number(number));
        self.taken += 1;
        self
    }
}

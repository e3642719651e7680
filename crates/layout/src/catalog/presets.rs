//! Shorthand for the presets of config classes.

use super::config::Preset::{self, Number};

/// The presets of a class whose layers have heads, built in a constant.
pub(super) struct Class {
    /// Unused entries have an empty name, which is never looked up.
    pub(super) presets: [(&'static str, Preset); 11],
    taken: usize,
}

/// Returns a class with these numbers of layers, elements of a hidden state, and heads.
pub(super) const fn class(layers: u64, hidden: u64, heads: u64) -> Class {
    let class = Class { presets: [("", Number(0)); 11], taken: 0 };
    class.and("num_hidden_layers", layers).and("hidden_size", hidden).and("num_attention_heads", heads)
}

impl Class {
    /// Sets the number of heads with keys and values. By default all heads have them.
    pub(super) const fn kv(self, heads: u64) -> Self {
        self.and("num_key_value_heads", heads)
    }

    /// Sets the elements of a head. By default the hidden state is divided among the heads.
    pub(super) const fn dim(self, head_dim: u64) -> Self {
        self.and("head_dim", head_dim)
    }

    pub(super) const fn window(self, tokens: u64) -> Self {
        self.and("sliding_window", tokens)
    }

    pub(super) const fn and(mut self, key: &'static str, number: u64) -> Self {
        self.presets[self.taken] = (key, Number(number));
        self.taken += 1;
        self
    }
}

//! A model as the catalog describes it.

use super::config::{Assumption, CacheDtype};
use super::format::Packed;
use crate::deployment::LayerSet;
use crate::spec::Spec;

/// The caches of a model in total, independent of the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The `model_type` of its text part.
    pub family: String,
    /// The number of layers, including those without a cache.
    pub num_layers: u32,
    /// The caches of the layers. A layer may be in several groups, or in none.
    pub groups: Vec<ModelGroup>,
    /// Values that were assumed because the config lacks their keys.
    pub assumed: Vec<Assumption>,
    /// The `model_type` around its text part, if that is no known wrapper.
    pub wrapper: Option<String>,
    /// Paths of keys that were not read and may change what is cached: no known config class has such a key without
    /// influence on the cache.
    pub unread: Vec<String>,
    /// The packed format of its keys, values or latents, if any. Their sizes are then those of rows, in bytes.
    pub packed: Option<Packed>,
}

/// Layers that cache the same and share block tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelGroup {
    /// The name: `attn`, `window`, `mamba`, …
    pub name: String,
    /// Global layer ids, counted from 0.
    pub layers: LayerSet,
    /// The cache of each layer: one spec, or those of one page.
    pub specs: Vec<Spec>,
}

/// Choices of an operator that a config does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The type of cached keys, values and latents, if it is not the model's own.
    pub cache_dtype: Option<CacheDtype>,
}

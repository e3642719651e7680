//! The model catalog: derives what a model caches from its Hugging Face `config.json`.
//!
//! A family is the `model_type` of a config. The catalog knows the keys of each family's config class and their
//! presets, and derives [specs](crate::spec) layer by layer. Layers that cache the same form one [group](ModelGroup).
//! Families that cache in the same way share a file, which starts with the shape of their caches.
//!
//! Families and presets are those of the config classes in `transformers` 5.24.0. How engines cache them (which layers
//! have a cache, types of recurrent state, sizes of packed entries) is taken from vLLM.
//!
//! ```
//! use transload_layout::catalog::{Model, Options};
//! use transload_layout::document::Value;
//!
//! let config: Value = serde_json::from_str(r#"{
//!     "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
//!     "num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"
//! }"#).unwrap();
//! let model = Model::from_config(&config, &Options::default())?;
//! let attention = &model.groups[0];
//! assert_eq!((attention.name.as_str(), attention.layers.to_string()), ("attn", "0-31".to_owned()));
//! # Ok::<(), transload_layout::catalog::ConfigError>(())
//! ```

mod attention;
mod bailing;
mod bamba;
mod chunk;
mod config;
mod deepseek_v4;
mod dots3_note;
mod falcon_h1;
mod gdn;
mod gemma;
mod glm5_next;
mod granite_hybrid;
mod indexer;
mod jamba;
mod kimi_linear;
mod layers;
mod lfm2;
mod mamba1;
mod mamba2;
mod minimax;
mod minimax_m3;
mod mla;
mod nemotron_h;
mod packed;
mod presets;
mod recurrent;
mod refused;
mod renamed;
mod serve;
mod unread;
mod vllm;
mod window;
mod window_heads;
mod wrapper;
mod zamba2;

use thiserror::Error;

pub use self::config::{Assumption, CacheDtype, ConfigError};
use self::config::{Config, Presets};
use self::layers::Layers;
pub use self::packed::Packed;
pub use self::serve::{Engine, Serving};
pub use self::vllm::HybridPage;
use self::wrapper::TextPart;
use crate::deployment::LayerSet;
use crate::document::{Value, nearest};
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

impl Model {
    /// Reads the config of a text model, or of a model that contains one.
    ///
    /// # Errors
    /// The first key that is missing or invalid, with its path; or a family that is not in the catalog.
    pub fn from_config(config: &Value, options: &Options) -> Result<Self, ConfigError> {
        let part = TextPart::of(config)?;
        let known = kins().find_map(|kin| kin.member(part.family));
        let (caches, presets) = known.ok_or_else(|| UnknownFamily::of(part.family))?;
        let table = part.config(presets, options.cache_dtype);
        let layers = caches(&table)?;
        let (packed, layers) = match table.wanted_cache()? {
            Some(CacheDtype::Packed(packed)) => (Some(packed), packed.applied(layers)?),
            _ => (None, layers),
        };
        Ok(Self {
            assumed: table.assumed.take(),
            wrapper: part.stranger.map(str::to_owned),
            unread: unread::keys(&part, &table),
            packed,
            ..layers.model(part.family)
        })
    }

    /// Returns every `model_type` of the catalog.
    pub fn families() -> impl Iterator<Item = &'static str> {
        let members = kins().flat_map(|kin| kin.members);
        members.map(|(family, _)| *family)
    }
}

type Caches = fn(&Config<'_>) -> Result<Layers, ConfigError>;

struct Kin {
    members: &'static [(&'static str, Presets)],
    caches: Caches,
}

impl Kin {
    fn member(&self, family: &str) -> Option<(Caches, Presets)> {
        let member = self.members.iter().find(|(name, _)| *name == family);
        member.map(|(_, presets)| (self.caches, *presets))
    }
}

const CATALOG: &[&[Kin]] = &[
    attention::KINS,
    window::KINS,
    window_heads::KINS,
    gemma::KINS,
    chunk::KINS,
    renamed::KINS,
    mla::KINS,
    indexer::KINS,
    deepseek_v4::KINS,
    &[
        bailing::KIN,
        bamba::KIN,
        dots3_note::KIN,
        falcon_h1::KIN,
        gdn::OLMO_HYBRID_KIN,
        gdn::QWEN3_5_KIN,
        gdn::QWEN3_NEXT_KIN,
        glm5_next::KIN,
        granite_hybrid::KIN,
        jamba::KIN,
        kimi_linear::KIN,
        lfm2::LFM2_KIN,
        lfm2::LFM2_MOE_KIN,
        mamba1::KIN,
        mamba2::KIN,
        minimax::KIN,
        minimax::ORIGINAL_KIN,
        minimax_m3::KIN,
        nemotron_h::KIN,
        zamba2::KIN,
    ],
];

fn kins() -> impl Iterator<Item = &'static Kin> {
    CATALOG.iter().copied().flatten()
}

/// The error for a family that is not in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct UnknownFamily {
    /// The `model_type`.
    pub family: String,
    /// The known families with the most similar names, the nearest first.
    pub nearest: Vec<&'static str>,
    /// The data that no kind of spec describes, if that is the reason why the family is not in the catalog.
    pub why: Option<&'static str>,
}

impl UnknownFamily {
    const NEAREST: usize = 5;

    fn of(family: &str) -> Self {
        let known: Vec<&str> = Model::families().collect();
        // Prefer names with the same stem: a new release of a family usually differs in what follows its name.
        fn stem(name: &str) -> &str {
            let end = name.find(|letter: char| !letter.is_ascii_alphabetic());
            name.get(..end.unwrap_or(name.len())).unwrap_or(name)
        }
        let mut nearest: Vec<&str> = nearest(family, &known).collect();
        nearest.sort_by_key(|known| stem(family).is_empty() || stem(known) != stem(family));
        nearest.truncate(Self::NEAREST);
        Self { family: family.to_owned(), nearest, why: refused::why(family) }
    }

    fn text(&self) -> String {
        let family = Value::Text(self.family.clone()).describe();
        match self.why {
            Some(why) => {
                format!("model_type: {family} is refused: {why}; no kind of spec says that")
            }
            None => {
                format!(
                    "model_type: {family} is not a model family of the catalog; the nearest are {}",
                    self.nearest.join(", ")
                )
            }
        }
    }
}

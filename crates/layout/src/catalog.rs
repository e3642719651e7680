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
mod family;
mod format;
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
mod model;
mod nemotron_h;
mod packed;
mod presets;
mod recurrent;
mod refused;
mod renamed;
mod serve;
mod unknown;
mod unread;
mod vllm;
mod window;
mod window_heads;
mod wrapper;
mod zamba2;

pub use self::config::{Assumption, CacheDtype, ConfigError};
use self::family::Kin;
pub use self::format::Packed;
pub use self::model::{Model, ModelGroup, Options};
pub use self::serve::{Engine, Serving};
pub use self::unknown::UnknownFamily;
pub use self::vllm::HybridPage;
use self::wrapper::TextPart;
use crate::document::Value;

impl Model {
    /// Reads the config of a text model, or of a model that contains one.
    ///
    /// # Errors
    /// The first key that is missing or invalid, with its path; or a family that is not in the catalog.
    pub fn from_config(config: &Value, options: &Options) -> Result<Self, ConfigError> {
        let part = TextPart::of(config)?;
        let known = kins().find_map(|kin| kin.member(part.family));
        let (caches, presets) = known.ok_or_else(|| UnknownFamily::of(part.family, Self::families().collect()))?;
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

//! Finds the text model in the config of a model with images, speech or anything else around it.

use super::config::{CacheDtype, Config, ConfigError, Presets};
use crate::document::Value;

/// Where a config keeps its text model: the keys that wrappers (with images, speech, …) have for it.
const TEXT_KEYS: [&str; 4] = [
    "text_config",
    "thinker_config",
    "llm_config",
    "language_config",
];

/// What the text model of a wrapper is where it does not say. Some published configs of these have no
/// table of its own for it at all.
const WRAPPED: &[(&str, &str)] = &[
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("llama4", "llama4_text"),
    ("llava", "llama"),
    ("llava_next", "llama"),
    ("mistral3", "mistral"),
    ("qwen2_vl", "qwen2_vl_text"),
    ("qwen2_5_vl", "qwen2_5_vl_text"),
    ("qwen3_vl", "qwen3_vl_text"),
    ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
];

/// The text model of a config.
pub(super) struct TextPart<'a> {
    path: String,
    table: &'a Value,
    /// The table around it.
    outer: Option<&'a Value>,
    /// Its `model_type`.
    pub(super) family: &'a str,
}

impl<'a> TextPart<'a> {
    pub(super) fn of(config: &'a Value) -> Result<Self, ConfigError> {
        if !matches!(config, Value::Table(_)) {
            let found = config.describe();
            return Err(ConfigError::NoConfig(format!(
                "a config is a table, not {found}"
            )));
        }
        let mut part = Self {
            path: String::new(),
            table: config,
            outer: None,
            family: "",
        };
        // A config has finitely many tables, so this ends.
        loop {
            let here = part.config(&[], None);
            if let Some(family) = here.text("model_type")? {
                part.family = family;
            }
            if let Some((_, text)) = WRAPPED.iter().find(|(family, _)| *family == part.family) {
                part.family = text;
            }
            let inner = TEXT_KEYS
                .iter()
                .map(|key| here.inside(key))
                .find_map(Result::transpose);
            let Some(inner) = inner.transpose()? else {
                break;
            };
            (part.path, part.table, part.outer) = (inner.path, inner.table, inner.outer);
        }
        match part.family {
            "" => Err(ConfigError::Key {
                path: "model_type".to_owned(),
                problem: "is missing: it has to name the model's family, as \"llama\"".to_owned(),
            }),
            _ => Ok(part),
        }
    }

    /// Its keys, with the presets of its class.
    pub(super) fn config(&self, presets: Presets, cache_dtype: Option<CacheDtype>) -> Config<'a> {
        Config {
            path: self.path.clone(),
            table: self.table,
            outer: self.outer,
            presets,
            cache_dtype,
        }
    }
}

//! Reads models from files: the text of a `config.json` becomes a [`Model`].
//!
//! ```
//! use transload::config;
//! use transload::layout::catalog::Options;
//!
//! let text = r#"{"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32,
//!     "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16"}"#;
//! let model = config::parse("config.json", text, &Options::default())?;
//! assert_eq!(model.num_layers, 36);
//! # Ok::<(), config::ModelError>(())
//! ```

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use thiserror::Error;

use crate::document::{Syntax, TextError, read_text};
use crate::layout::catalog::{ConfigError, Model, Options};
use crate::layout::document::{SyntaxError, Value};

/// The most bytes of a config. Configs with a table of every quantised tensor have a tenth of this.
pub const MAX_BYTES: u64 = 16 << 20;

/// A reason why a config could not be read as a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The config could not be read.
    #[error("{name} cannot be read")]
    Read {
        /// The config's name in messages.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file exceeds [`MAX_BYTES`].
    #[error("{name} is larger than {MAX_BYTES} bytes, so it is not a model's config")]
    TooLarge {
        /// The config's name in messages.
        name: String,
    },
    /// The file is not text.
    #[error("{name} is not UTF-8 text, so it is not a model's config")]
    NotText {
        /// The config's name in messages.
        name: String,
    },
    /// The file is empty.
    #[error("{name} is empty")]
    Empty {
        /// The config's name in messages.
        name: String,
    },
    /// The file is a deployment document.
    #[error("{name} is a deployment document, not a model's config")]
    Deployment {
        /// The config's name in messages.
        name: String,
    },
    /// The text is not JSON.
    #[error("{name} is not valid JSON: {problem}")]
    Syntax {
        /// The config's name in messages.
        name: String,
        /// The text, without a byte order mark.
        text: String,
        /// The fault.
        problem: String,
        /// The position of the fault in bytes, if known.
        span: Option<Range<usize>>,
    },
    /// The keys do not determine what the model caches.
    #[error("{name}: {source}")]
    Config {
        /// The config's name in messages.
        name: String,
        /// The key and its fault.
        source: ConfigError,
    },
}

/// Reads a config from a file. If the config lacks its quantisation and there is a `hf_quant_config.json` next to it,
/// as in checkpoints of ModelOpt, that is read as well.
///
/// # Errors
/// [`ModelError`] about either file.
pub fn read(path: &Path, options: &Options) -> Result<Model, ModelError> {
    let name = path.display().to_string();
    let mut config = value(&name, &contents(path)?)?;
    let beside = path.with_file_name("hf_quant_config.json");
    let says = |key| config.get(key).is_some_and(|value| *value != Value::Null);
    if !says("quantization_config") && !says("compression_config") && beside.is_file() {
        let quantization = value(&beside.display().to_string(), &contents(&beside)?)?;
        if let Value::Table(keys) = &mut config {
            keys.retain(|(key, _)| key != "quantization_config");
            keys.push(("quantization_config".to_owned(), quantization));
        }
    }
    model(&name, &config, options)
}

fn contents(path: &Path) -> Result<String, ModelError> {
    let name = path.display().to_string();
    let failed = |source| ModelError::Read { name: name.clone(), source };
    text_of(&name, File::open(path).map_err(failed)?)
}

/// Reads a config from a reader. Errors call it `name`.
///
/// # Errors
/// [`ModelError`].
pub fn read_from(name: &str, config: impl Read, options: &Options) -> Result<Model, ModelError> {
    parse(name, &text_of(name, config)?, options)
}

fn text_of(name: &str, config: impl Read) -> Result<String, ModelError> {
    let name = name.to_owned();
    match read_text(config, MAX_BYTES) {
        Ok(text) => Ok(text),
        Err(TextError::Read(source)) => Err(ModelError::Read { name, source }),
        Err(TextError::TooLarge) => Err(ModelError::TooLarge { name }),
        Err(TextError::NotText) => Err(ModelError::NotText { name }),
    }
}

/// Parses a config. Errors call it `name`. Numbers that Python writes and JSON does not have (`NaN`, `Infinity`) count
/// as null.
///
/// # Errors
/// [`ModelError::Syntax`] or [`ModelError::Config`].
pub fn parse(name: &str, text: &str, options: &Options) -> Result<Model, ModelError> {
    model(name, &value(name, text)?, options)
}

fn model(name: &str, config: &Value, options: &Options) -> Result<Model, ModelError> {
    Model::from_config(config, options).map_err(|source| ModelError::Config { name: name.to_owned(), source })
}

fn value(name: &str, text: &str) -> Result<Value, ModelError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        let name = name.to_owned();
        return Err(ModelError::Empty { name });
    }
    if text.contains("\"transload.deployment/") {
        let name = name.to_owned();
        return Err(ModelError::Deployment { name });
    }
    let value = Value::from_text(&without_infinities(text), Syntax::Json);
    value.map_err(|SyntaxError { problem, span }| ModelError::Syntax {
        name: name.to_owned(),
        text: text.to_owned(),
        problem,
        span,
    })
}

/// Replaces Python's numbers that JSON does not have by `null`.
fn without_infinities(text: &str) -> Cow<'_, str> {
    const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !NUMBERS.iter().any(|number| text.contains(number)) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(next) = rest.chars().next() {
        let number = NUMBERS.iter().find(|number| rest.starts_with(**number));
        let taken = match (number, next) {
            (Some(number), _) if !quoted => {
                plain.push_str("null");
                number.len()
            }
            // An escaped quote does not end the string.
            (_, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (_, '"') => {
                quoted = !quoted;
                1
            }
            _ => next.len_utf8(),
        };
        if quoted || number.is_none() {
            plain.push_str(&rest[..taken]);
        }
        rest = &rest[taken..];
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_become_null_outside_of_texts() {
        let text = r#"{"a": [0.0, Infinity], "NaN \" Infinity": -Infinity, "b": NaN}"#;
        let plain = r#"{"a": [0.0, null], "NaN \" Infinity": null, "b": null}"#;
        assert_eq!(without_infinities(text), plain);
    }
}

//! Parsing of documents in TOML or JSON into a [`Value`], and on to a checked [`Deployment`].

mod locate;
mod syntax;

use std::ops::Range;

use thiserror::Error;

pub use self::locate::Located;
pub use self::syntax::Syntax;
use self::syntax::unmarked;
use super::{Faults, Value};
use crate::deployment::Deployment;

/// Describes why a text could not become a deployment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text is empty.
    #[error("{name} is empty")]
    Empty {
        /// The document's name.
        name: String,
    },
    /// The text is a model's `config.json`.
    #[error("{name} is a model's config, not a deployment document")]
    ModelConfig {
        /// The document's name.
        name: String,
    },
    /// The text is not valid TOML or JSON.
    #[error("{name} is not valid {syntax}: {problem}{}", locate::place(text, span))]
    Syntax {
        /// The document's name.
        name: String,
        /// The text, without a byte order mark.
        text: String,
        /// The expected syntax.
        syntax: Syntax,
        /// The error.
        problem: String,
        /// The position, in bytes of the text, if known.
        span: Option<Range<usize>>,
    },
    /// The fields do not describe a valid deployment.
    #[error("{name} describes no deployment:\n{}", all(faults))]
    Faults {
        /// The document's name.
        name: String,
        /// The text, without a byte order mark.
        text: String,
        /// All faults with their positions.
        faults: Vec<Located>,
    },
}

fn all(faults: &[Located]) -> Faults {
    Faults(faults.iter().map(|located| located.fault.clone()).collect())
}

/// The error for a text that is not valid TOML or JSON.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct SyntaxError {
    /// The error.
    pub problem: String,
    /// The position, in bytes of the text, if known.
    pub span: Option<Range<usize>>,
}

impl Value {
    /// Parses a text without a byte order mark.
    ///
    /// # Errors
    /// [`SyntaxError`].
    pub fn from_text(text: &str, syntax: Syntax) -> Result<Self, SyntaxError> {
        match syntax {
            Syntax::Toml => toml::from_str(text)
                .map_err(|error| SyntaxError { problem: error.message().to_owned(), span: error.span() }),
            Syntax::Json => serde_json::from_str(text).map_err(|error| {
                let (line, column) = (error.line(), error.column());
                let message = error.to_string();
                // Remove the position, which is in the span.
                let place = format!(" at line {line} column {column}");
                SyntaxError {
                    problem: message.strip_suffix(&place).unwrap_or(&message).to_owned(),
                    span: locate::offset(text, line, column).map(|at| at..at),
                }
            }),
        }
    }
}

/// Reads a deployment from text. `name` identifies it in errors.
///
/// ```
/// use transload_layout::document::{ParseError, Syntax, parse};
///
/// let text = r#"
///     schema = "transload.deployment/1"
///     name = "prefill"
///     tp = 2
///     block_size = 16
///     num_blocks = 512
///
///     [[group]]
///     name = "attn"
///     layers = "0-31"
///
///     [[group.spec]]
///     kind = "attention"
///     heads = 8
///     head_dim = 128
///     dtype = "bf16"
/// "#;
/// let prefill = parse("prefill.toml", text, Syntax::Toml)?;
/// assert_eq!(prefill.ranks().count(), 2);
/// # Ok::<(), ParseError>(())
/// ```
///
/// # Errors
/// [`ParseError`].
pub fn parse(name: &str, text: &str, syntax: Syntax) -> Result<Deployment, ParseError> {
    let text = unmarked(text);
    if text.trim().is_empty() {
        let name = name.to_owned();
        return Err(ParseError::Empty { name });
    }
    let value = Value::from_text(text, syntax);
    let value = value.map_err(|SyntaxError { problem, span }| ParseError::Syntax {
        name: name.to_owned(),
        text: text.to_owned(),
        syntax,
        problem,
        span,
    })?;
    let has = |key| value.get(key).is_some();
    if !has("schema") && !has("group") && (has("model_type") || has("architectures")) {
        let name = name.to_owned();
        return Err(ParseError::ModelConfig { name });
    }
    Deployment::from_value(&value).map_err(|faults| ParseError::Faults {
        name: name.to_owned(),
        text: text.to_owned(),
        faults: locate::all(faults, text, syntax),
    })
}

#[cfg(test)]
mod tests;

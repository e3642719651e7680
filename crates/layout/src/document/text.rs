//! Documents as text: TOML or JSON becomes a [`Value`], and that a checked [`Deployment`].

mod locate;

use std::fmt;
use std::ops::Range;
use std::path::Path;

use thiserror::Error;

use super::{Fault, Faults, Value};
use crate::deployment::Deployment;

/// The syntax of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Syntax {
    /// Tells the syntax by the file's extension. Without a known one it is JSON if the text starts with a brace (after a byte
    /// order mark, if there is one), and TOML otherwise.
    pub fn of(name: &Path, text: &str) -> Self {
        match name.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if unmarked(text).trim_start().starts_with('{') => Self::Json,
            _ => Self::Toml,
        }
    }
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Toml => "TOML",
            Self::Json => "JSON",
        })
    }
}

/// Why a text did not become a deployment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text has nothing in it.
    #[error("{name} is empty")]
    Empty {
        /// What the document is called.
        name: String,
    },
    /// It is a model's `config.json`.
    #[error("{name} is a model's config, and no deployment document")]
    ModelConfig {
        /// What the document is called.
        name: String,
    },
    /// The text is no TOML, or no JSON.
    #[error("{name} is no {syntax}: {problem}{}", locate::place(text, span))]
    Syntax {
        /// What the document is called.
        name: String,
        /// Its text, without a byte order mark.
        text: String,
        /// What it should have been.
        syntax: Syntax,
        /// What is wrong.
        problem: String,
        /// Where, in bytes of the text, if known.
        span: Option<Range<usize>>,
    },
    /// The fields do not make a deployment; all that is wrong with them.
    #[error("{name} describes no deployment:\n{}", all(faults))]
    Faults {
        /// What the document is called.
        name: String,
        /// Its text, without a byte order mark.
        text: String,
        /// Each fault and where it stands.
        faults: Vec<Located>,
    },
}

/// A fault and where in the text it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// What is wrong, with its key path.
    pub fault: Fault,
    /// Bytes of the text, if known (never in JSON).
    pub span: Option<Range<usize>>,
}

fn all(faults: &[Located]) -> Faults {
    Faults(faults.iter().map(|located| located.fault.clone()).collect())
}

/// The text without the byte order mark that some editors begin it with.
fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// What is wrong with a text that is no TOML, or no JSON.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct SyntaxError {
    /// What is wrong.
    pub problem: String,
    /// Where, in bytes of the text, if known.
    pub span: Option<Range<usize>>,
}

impl Value {
    /// Reads a text that has no byte order mark.
    ///
    /// # Errors
    /// [`SyntaxError`].
    pub fn from_text(text: &str, syntax: Syntax) -> Result<Self, SyntaxError> {
        match syntax {
            Syntax::Toml => toml::from_str(text)
                .map_err(|error| SyntaxError { problem: error.message().to_owned(), span: error.span() }),
            Syntax::Json => serde_json::from_str(text).map_err(|error| {
                let (line, column) = (error.line(), error.column());
                let told = error.to_string();
                // The span says where.
                let place = format!(" at line {line} column {column}");
                SyntaxError {
                    problem: told.strip_suffix(&place).unwrap_or(&told).to_owned(),
                    span: locate::offset(text, line, column).map(|at| at..at),
                }
            }),
        }
    }
}

/// Reads a deployment from text; `name` is what errors call it.
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

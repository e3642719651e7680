//! Deployments from files: TOML or JSON text becomes a checked [`Deployment`].
//!
//! ```
//! use transload::document::{self, Syntax};
//!
//! let text = r#"
//!     schema = "transload.deployment/1"
//!     name = "prefill"
//!     tp = 2
//!     block_size = 16
//!     num_blocks = 512
//!
//!     [[group]]
//!     name = "attn"
//!     layers = "0-31"
//!
//!     [[group.spec]]
//!     kind = "attention"
//!     heads = 8
//!     head_dim = 128
//!     dtype = "bf16"
//! "#;
//! let prefill = document::parse("prefill.toml", text, Syntax::Toml)?;
//! assert_eq!(prefill.ranks().count(), 2);
//! # Ok::<(), document::DocumentError>(())
//! ```

mod locate;
pub(crate) mod text;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use self::text::TextError;
use crate::layout::deployment::Deployment;
use crate::layout::document::{Fault, Faults};

/// The largest document that is read, in bytes. One with a thousand groups is a tenth of this.
pub const MAX_BYTES: u64 = 4 << 20;

/// What a document is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Syntax {
    /// As the file's name says; if it does not, JSON where the text starts with a brace (after a byte
    /// order mark, if there is one), and TOML elsewhere.
    pub fn of(name: &Path, text: &str) -> Self {
        match name.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if text::unmarked(text).trim_start().starts_with('{') => Self::Json,
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

/// Why a document did not become a deployment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file could not be read.
    #[error("{path} cannot be read", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is larger than any document.
    #[error(
        "{path} is larger than {MAX_BYTES} bytes, so it is no deployment document",
        path = .path.display()
    )]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// The file holds bytes that are no text.
    #[error("{path} is not UTF-8 text, so it is no deployment document", path = .path.display())]
    NotText {
        /// Which file.
        path: PathBuf,
    },
    /// The file has nothing in it.
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

/// Reads a deployment from a file.
///
/// # Errors
/// [`DocumentError`].
pub fn read(path: impl AsRef<Path>) -> Result<Deployment, DocumentError> {
    let path = path.as_ref();
    let failed = |source| DocumentError::Read {
        path: path.to_owned(),
        source,
    };
    read_from(path, File::open(path).map_err(failed)?)
}

/// Reads a deployment from anything that can be read to its end; `name` is what errors call it, and
/// says the [syntax](Syntax::of).
///
/// # Errors
/// [`DocumentError`].
pub fn read_from(name: impl AsRef<Path>, document: impl Read) -> Result<Deployment, DocumentError> {
    let path = name.as_ref();
    let text = text::read(document, MAX_BYTES).map_err(|error| match error {
        TextError::Read(source) => DocumentError::Read {
            path: path.to_owned(),
            source,
        },
        TextError::TooLarge => DocumentError::TooLarge {
            path: path.to_owned(),
        },
        TextError::NotText => DocumentError::NotText {
            path: path.to_owned(),
        },
    })?;
    let syntax = Syntax::of(path, &text);
    parse(&path.display().to_string(), &text, syntax)
}

/// Reads a deployment from text; `name` is what errors call it.
///
/// # Errors
/// [`DocumentError::Syntax`] or [`DocumentError::Faults`].
pub fn parse(name: &str, text: &str, syntax: Syntax) -> Result<Deployment, DocumentError> {
    let text = text::unmarked(text);
    if text.trim().is_empty() {
        let name = name.to_owned();
        return Err(DocumentError::Empty { name });
    }
    let value = text::value(text, syntax).map_err(|(problem, span)| DocumentError::Syntax {
        name: name.to_owned(),
        text: text.to_owned(),
        syntax,
        problem,
        span,
    })?;
    let has = |key| value.get(key).is_some();
    if !has("schema") && !has("group") && (has("model_type") || has("architectures")) {
        let name = name.to_owned();
        return Err(DocumentError::ModelConfig { name });
    }
    Deployment::from_value(&value).map_err(|faults| DocumentError::Faults {
        name: name.to_owned(),
        text: text.to_owned(),
        faults: locate::all(faults, text, syntax),
    })
}

#[cfg(test)]
mod tests;

//! The syntaxes of documents.

use std::fmt;
use std::path::Path;

/// The syntax of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Syntax {
    /// Determines the syntax from the file's extension. Without a known one it is JSON if the text starts with a brace
    /// (after an optional byte order mark), and TOML otherwise.
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

/// Removes the byte order mark with which some editors start a text.
pub(super) fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

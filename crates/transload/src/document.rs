//! Reads deployments from files: a file of TOML or JSON becomes a checked [`Deployment`].
//!
//! [`parse`] and its types come from `transload_layout` with its feature `text`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
pub use transload_layout::document::{Located, ParseError, Syntax, parse};

use crate::layout::Deployment;

/// The most bytes of a document. A document with a thousand groups has a tenth of this.
pub const MAX_BYTES: u64 = 4 << 20;

/// A reason why a file could not be read as a deployment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file could not be read.
    #[error("{path} cannot be read", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file exceeds [`MAX_BYTES`].
    #[error(
        "{path} is larger than {MAX_BYTES} bytes, so it is not a deployment document",
        path = .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not text.
    #[error("{path} is not UTF-8 text, so it is not a deployment document", path = .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The contents do not describe a deployment.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

/// Reads a deployment from a file.
///
/// # Errors
/// [`DocumentError`].
pub fn read(path: impl AsRef<Path>) -> Result<Deployment, DocumentError> {
    let path = path.as_ref();
    let failed = |source| DocumentError::Read { path: path.to_owned(), source };
    read_from(path, File::open(path).map_err(failed)?)
}

/// Reads a deployment from a reader. Errors call it `name`, whose ending also decides the [syntax](Syntax::of).
///
/// # Errors
/// [`DocumentError`].
pub fn read_from(name: impl AsRef<Path>, document: impl Read) -> Result<Deployment, DocumentError> {
    let path = name.as_ref();
    let text = read_text(document, MAX_BYTES).map_err(|error| match error {
        TextError::Read(source) => DocumentError::Read { path: path.to_owned(), source },
        TextError::TooLarge => DocumentError::TooLarge { path: path.to_owned() },
        TextError::NotText => DocumentError::NotText { path: path.to_owned() },
    })?;
    let syntax = Syntax::of(path, &text);
    Ok(parse(&path.display().to_string(), &text, syntax)?)
}

/// A reason why something could not be read as text.
#[derive(Debug)]
pub(crate) enum TextError {
    Read(io::Error),
    TooLarge,
    NotText,
}

/// Reads at most `most` bytes of UTF-8.
pub(crate) fn read_text(from: impl Read, most: u64) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    let read = from.take(most + 1).read_to_end(&mut bytes);
    read.map_err(TextError::Read)?;
    if bytes.len() as u64 > most {
        return Err(TextError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| TextError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_documents_are_told_apart() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.toml");
        assert!(matches!(read(&path), Err(DocumentError::Read { .. })));
        std::fs::write(&path, [0xff, 0xfe]).expect("a file");
        assert!(matches!(read(&path), Err(DocumentError::NotText { .. })));
        std::fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).expect("a file");
        assert!(matches!(read(&path), Err(DocumentError::TooLarge { .. })));
        let good = include_str!("../../../docs/examples/prefill.toml");
        std::fs::write(&path, good).expect("a file");
        assert_eq!(read(&path).expect("a deployment").name(), "prefill");
    }
}

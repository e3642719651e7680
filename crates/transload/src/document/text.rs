//! Text that people wrote: read no further than any document goes, and taken apart.

use std::io::{self, Read};
use std::ops::Range;

use super::{Syntax, locate};
use crate::layout::document::Value;

/// Why something could not be read as text.
#[derive(Debug)]
pub(crate) enum TextError {
    Read(io::Error),
    TooLarge,
    NotText,
}

/// All of it, if it is no more than `most` bytes of UTF-8.
pub(crate) fn read(from: impl Read, most: u64) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    let read = from.take(most + 1).read_to_end(&mut bytes);
    read.map_err(TextError::Read)?;
    if bytes.len() as u64 > most {
        return Err(TextError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| TextError::NotText)
}

/// The text without the byte order mark that some editors begin it with.
pub(crate) fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// What is wrong with a text that is not what it should be, and where.
pub(crate) type Problem = (String, Option<Range<usize>>);

/// The values that a text holds.
pub(crate) fn value(text: &str, syntax: Syntax) -> Result<Value, Problem> {
    match syntax {
        Syntax::Toml => {
            toml::from_str(text).map_err(|error| (error.message().to_owned(), error.span()))
        }
        Syntax::Json => serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let span = locate::offset(text, line, column).map(|at| at..at);
            let told = error.to_string();
            // The span says where.
            let place = format!(" at line {line} column {column}");
            let problem = told.strip_suffix(&place).unwrap_or(&told);
            (problem.to_owned(), span)
        }),
    }
}

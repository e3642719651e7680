//! The positions of faults in a document's text.

use std::ops::Range;

use toml::de::DeTable;

use super::syntax::Syntax;
use crate::document::{Fault, Faults};

/// A fault with its position in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The fault, with its key path.
    pub fault: Fault,
    /// The position in bytes of the text, if known (never in JSON).
    pub span: Option<Range<usize>>,
}

/// Finds the position of each fault. JSON has no spans, so its faults have only key paths.
pub(super) fn all(faults: Faults, text: &str, syntax: Syntax) -> Vec<Located> {
    let root = match syntax {
        Syntax::Toml => DeTable::parse(text).ok(),
        Syntax::Json => None,
    };
    let faults = faults.0.into_iter().map(|fault| {
        let span = root.as_ref().and_then(|root| find(root.get_ref(), &fault.path, text));
        Located { fault, span }
    });
    faults.collect()
}

/// Returns the byte offset of a line and column, both counted from 1.
pub(super) fn offset(text: &str, line: usize, column: usize) -> Option<usize> {
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let offset = (start + column.saturating_sub(1)).min(text.len());
    Some(text.floor_char_boundary(offset))
}

/// Returns the start of a span for the end of a message: line and column (in characters), both counted from 1.
pub(super) fn place(text: &str, span: &Option<Range<usize>>) -> String {
    let Some(before) = span.as_ref().and_then(|span| text.get(..span.start)) else {
        return String::new();
    };
    let row = before.matches('\n').count() + 1;
    let line = before.rsplit('\n').next().unwrap_or(before);
    format!(" at line {row} column {}", line.chars().count() + 1)
}

/// Returns the span of the field at `path` (`group[0].spec[1].heads`) or, if that is missing, of the innermost table
/// around it. Either is cut to its first line.
fn find(root: &DeTable<'_>, path: &str, text: &str) -> Option<Range<usize>> {
    let mut found = None;
    let mut table = Some(root);
    for step in path.split('.') {
        let (key, indices) = step.split_once('[').unwrap_or((step, ""));
        let Some((name, value)) = table.and_then(|t| t.get_key_value(key)) else {
            break;
        };
        let mut value = value;
        let mut span = name.span().start..value.span().end;
        for index in indices.split('[').filter_map(|i| i.strip_suffix(']')) {
            let items = value.get_ref().as_array();
            let Some(item) = index.parse().ok().and_then(|i: usize| items?.get(i)) else {
                break;
            };
            value = item;
            span = value.span();
        }
        found = Some(span);
        table = value.get_ref().as_table();
    }
    found.map(|span| first_line(span, text))
}

fn first_line(span: Range<usize>, text: &str) -> Range<usize> {
    match text.get(span.clone()).and_then(|part| part.find('\n')) {
        Some(end) => span.start..span.start + end,
        None => span,
    }
}

//! The capabilities of the user's terminal.

use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};

pub(crate) fn colours_on_stderr() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the number of columns: that of `COLUMNS`, or of the terminal. `None` for a file or pipe, where lines may
/// have any length.
pub(crate) fn width(of: impl AsFd) -> Option<u16> {
    let wanted = std::env::var("COLUMNS").ok();
    let wanted = wanted.and_then(|columns| columns.parse().ok());
    let width = wanted.or_else(|| terminal_size_of(of).map(|(Width(width), _)| width));
    width.filter(|width| *width > 0)
}

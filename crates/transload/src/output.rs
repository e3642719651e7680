//! Where results go: stdout, as tables for people or as JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables, for people.
    #[default]
    Table,
    /// One JSON object, for programs.
    Json,
}

/// Stdout, with what the user wants to see there. Colours are dropped where it is no terminal.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
    stdout: anstream::Stdout,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            stdout: anstream::stdout(),
        }
    }

    /// Whether a program reads the results.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints a result: `json` gives it as a value, `table` as text that ends with a line end.
    pub(crate) fn show<T: Serialize>(
        &mut self,
        json: impl FnOnce() -> T,
        table: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let text = match self.format {
            Format::Table => table(),
            Format::Json => serde_json::to_string_pretty(&json())? + "\n",
        };
        self.stdout.write_all(text.as_bytes())?;
        self.stdout.flush()
    }
}

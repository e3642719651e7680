//! The output of results to stdout, as tables for people or as JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::show::json;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people.
    #[default]
    Table,
    /// One JSON object for programs.
    Json,
    /// Rows for spreadsheets; only `plan` has them.
    Csv,
}

/// Stdout in the format that the user chose. Colours are dropped outside a terminal.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
    stdout: anstream::Stdout,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, stdout: anstream::stdout() }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    pub(crate) fn is_csv(&self) -> bool {
        self.format == Format::Csv
    }

    /// Prints JSON in every format.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        json::write(&mut self.stdout, value)?;
        self.stdout.flush()
    }

    /// Prints text in every format.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())?;
        self.stdout.flush()
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Prints a result: `value` as JSON, or the text of `table`, which ends with a line end.
    pub(crate) fn show<T: Serialize>(
        &mut self,
        value: impl FnOnce() -> T,
        table: impl FnOnce() -> String,
    ) -> io::Result<()> {
        match self.format {
            Format::Table | Format::Csv => self.stdout.write_all(table().as_bytes())?,
            Format::Json => json::write(&mut self.stdout, &value())?,
        }
        self.stdout.flush()
    }
}

//! The presentation of results (tables, histograms, numbers with units) and of progress.

pub(crate) mod deployment;
pub(crate) mod histogram;
pub(crate) mod json;
mod memory;
pub(crate) mod number;
pub(crate) mod picture;
pub(crate) mod progress;
pub(crate) mod sketch;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod text;
pub(crate) mod time;

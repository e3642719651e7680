//! How results look: tables, histograms, numbers with their units.

pub(crate) mod deployment;
pub(crate) mod histogram;
pub(crate) mod json;
pub(crate) mod number;
pub(crate) mod table;

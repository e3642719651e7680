//! The model catalog, read as a user of the crate reads it: configs with published values, and bad ones.

mod attention;
mod bad;
mod classes;
mod common;
mod defaults;
mod footprint;
mod fuzz;
mod recurrent;
mod reported;
mod traps;

//! KVC files, against those that erllama wrote and what it said of damaged ones.
//!
//! `vectors/` holds files made by erllama, and for each what erllama read from it: `base` is what it read
//! from the first, and each file's `info` is where it differs from that.

mod corrupt;
mod folder;
mod fuzz;
mod golden;
mod on_disk;
mod properties;
mod vectors;

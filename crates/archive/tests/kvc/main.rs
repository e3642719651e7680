//! Tests of KVC files against files that erllama wrote, and against its errors for damaged ones.
//!
//! `vectors/` contains files made by erllama, each with what erllama read from it. `base` is what it read from the
//! first file, and each file's `info` lists the differences from that.

mod corrupt;
mod fuzz;
mod golden;
mod on_disk;
mod properties;
mod vectors;

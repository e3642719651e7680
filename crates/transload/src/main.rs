//! The `transload` command.
fn main() {}

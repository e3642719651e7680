//! Cross-crate benches.

//! Cross-crate examples.

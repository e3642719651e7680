//! The cache files of erllama (`*.kvc`), byte for byte.

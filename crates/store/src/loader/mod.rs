//! Backends that are somebody's shared object: finding one, judging it, calling it safely.

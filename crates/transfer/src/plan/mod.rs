//! Plans: who sends what to whom, as loop nests.

pub mod program;

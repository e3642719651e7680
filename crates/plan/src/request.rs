//! What is asked of a plan.

use serde::{Deserialize, Serialize};

use crate::codec::Codec;

/// What is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Position of the first token.
    pub start: u64,
    /// How many tokens.
    pub tokens: u64,
    /// Whether streams carry one layer after another, so that a layer can leave as soon as it is
    /// computed; otherwise they carry one segment of tokens after another.
    pub by_layer: bool,
    /// How keys and values travel. With a codec that is not exact, streams carry those of one head after another, 256
    /// tokens at a time.
    pub codec: Codec,
}

impl Request {
    /// The first `tokens` tokens of a sequence.
    pub const fn tokens(tokens: u64) -> Self {
        Self { start: 0, tokens, by_layer: false, codec: Codec::Exact }
    }

    /// One past the last token's position.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.tokens)
    }
}

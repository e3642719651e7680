//! The request that a plan is made for.

use serde::{Deserialize, Serialize};

use crate::codec::Codec;

/// The tokens to move, and the order of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// The position of the first token.
    pub start: u64,
    /// The number of tokens.
    pub tokens: u64,
    /// Whether streams are ordered by layer, so that a layer can leave as soon as it is computed. Otherwise they are
    /// ordered by segment of tokens.
    pub by_layer: bool,
    /// The codec of keys and values. With a codec that is not exact, streams are ordered by head, 256 tokens at a time.
    pub codec: Codec,
}

impl Request {
    /// Requests the first `tokens` tokens of a sequence.
    pub const fn tokens(tokens: u64) -> Self {
        Self { start: 0, tokens, by_layer: false, codec: Codec::Exact }
    }

    /// Returns the position after the last token.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.tokens)
    }
}

//! What the two processes tell each other: JSON, one message on a line.
//!
//! Everything that an engine's scheduler would carry from one engine to the other goes this way:
//! which request, and the ticket for it. The blocks go between the agents.

use serde::{Deserialize, Serialize};
use transload::layout::document::Document;

use super::credentials::Credentials;

/// To the source, through its stdin. When that ends, so does the process.
#[derive(Deserialize, Serialize)]
pub(super) enum Order {
    /// Comes first: be this agent of this deployment, with a request of so many tokens computed.
    Prefill {
        credentials: Box<Credentials>,
        document: Box<Document>,
        tokens: u64,
        seed: u64,
        /// The GPU to have them on.
        gpu: Option<u32>,
    },
    /// Lease the request's blocks under this set.
    Lease { set: [u8; 16] },
}

/// From the source, through its stdout.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Answer {
    /// The request is computed, and an agent holds it.
    Ready,
    /// Its blocks are leased; whoever holds this ticket may pull them.
    Leased { ticket: String },
    /// How the leases of all ranks ended.
    Ended { ends: Vec<String> },
}

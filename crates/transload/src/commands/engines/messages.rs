//! The messages between the two processes: JSON, one message a line.
//!
//! They replace what the schedulers of engines would exchange: the request and its ticket. The blocks travel between
//! the agents.

use serde::{Deserialize, Serialize};
use transload::layout::document::Document;

use super::credentials::Credentials;

/// A message to the source, through its stdin. The source ends at the end of stdin.
#[derive(Deserialize, Serialize)]
pub(super) enum Order {
    /// The first message: compute a request of `tokens` tokens and start the agent of this deployment.
    Prefill { credentials: Box<Credentials>, document: Box<Document>, tokens: u64, seed: u64, gpu: Option<u32> },
    /// Lease the request's blocks under this lease set.
    Lease { set: [u8; 16] },
}

/// A message from the source, through its stdout.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Answer {
    /// The request is computed and the agent is running.
    Ready,
    /// The blocks are leased; the ticket allows pulling them.
    Leased { ticket: String },
    /// The leases of all ranks have ended in these ways.
    Ended { ends: Vec<String> },
}

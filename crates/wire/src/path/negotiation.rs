//! The pure half of a path: the messages that two agents exchange until streams can take it.
//!
//! There is one [`Negotiation`] for each path and connection. It learns which transfers of the connection take the
//! path, receives the peer's words and its own carrier's reports, and answers each with [`Steps`]. It never blocks or
//! touches a socket, so it can run in virtual time like the rest of this crate.

use std::collections::VecDeque;
use std::fmt;

use serde::{Serialize, de::DeserializeOwned};
use transload_plan::ids::TransferId;

use super::Path;

/// The longest word of a path in bytes. A longer word from a peer ends the connection.
pub(crate) const MAX_WORD: usize = 1024;

/// Encodes a word of a path.
#[doc(hidden)]
pub fn encode(word: &impl Serialize) -> Vec<u8> {
    // Only writing to I/O could fail.
    postcard::to_allocvec(word).unwrap_or_default()
}

/// Decodes a word of a path. Returns `None` unless all of it is valid.
#[doc(hidden)]
pub fn decode<W: DeserializeOwned>(word: &[u8]) -> Option<W> {
    match postcard::take_from_bytes(word) {
        Ok((word, [])) => Some(word),
        _ => None,
    }
}

/// The direction in which the bytes of a transfer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The message goes to the peer.
    Out,
    /// The bytes come from the peer.
    In,
}

/// A transfer that takes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traveller {
    /// The transfer.
    pub transfer: TransferId,
    /// The direction of its bytes.
    pub way: Way,
    /// The number of lanes that it would like to use.
    pub lanes: u16,
}

/// An order to the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Prepare for the peer to connect, and answer with [`Report::Offered`].
    Offer {
        /// The number of lanes that are wanted, if the path has lanes.
        lanes: u16,
    },
    /// Connect to the peer where its word says.
    Meet {
        /// The word, which the negotiation has checked.
        word: Vec<u8>,
    },
}

/// A report of the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The carrier is prepared.
    Offered {
        /// The word that tells the peer where to connect.
        word: Vec<u8>,
    },
    /// An offer, an attempt to connect, or an established ring or set of lanes has ended.
    Ended {
        /// The direction of bytes for which it was.
        way: Way,
        /// The reason.
        ending: Ending,
    },
}

/// The reason why an offer, an attempt to connect, or its result ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer did not come in time, or this agent came too late.
    Lapsed,
    /// A thread of this agent has panicked.
    Panicked,
    /// Another failure.
    Failed(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Lapsed => f.write_str("the offer has lapsed"),
            Ending::Panicked => f.write_str("a thread of the path has panicked"),
            Ending::Failed(why) => f.write_str(why),
        }
    }
}

/// A step that a negotiation wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this word to the peer.
    Say(Vec<u8>),
    /// Give the carrier this order.
    Order(Order),
    /// Give the path up in this direction until the connection ends. Transfers on it fail, and are repeated on another
    /// path.
    Lose(Way, String),
    /// Close the connection, which cannot be used further.
    HangUp(String),
}

/// The steps that a negotiation wants, in order.
#[derive(Debug, Default)]
pub struct Steps(VecDeque<Step>);

impl Steps {
    /// Adds a step.
    pub fn push(&mut self, step: Step) {
        self.0.push_back(step);
    }

    /// Takes the next step.
    pub fn pop(&mut self) -> Option<Step> {
        self.0.pop_front()
    }
}

/// The negotiation of one path on one connection.
///
/// Nothing that comes from the peer can be trusted; it may be repeated or out of order.
pub trait Negotiation: fmt::Debug + Send {
    /// Returns the path that is negotiated.
    fn path(&self) -> Path;

    /// A transfer takes the path from now on.
    fn begin(&mut self, traveller: Traveller, steps: &mut Steps);

    /// Ends a transfer that is over or cancelled.
    fn end(&mut self, transfer: TransferId);

    /// The peer has sent a word, of at most 1024 bytes.
    fn hear(&mut self, word: &[u8], steps: &mut Steps);

    /// The carrier has reported something.
    fn report(&mut self, report: Report, steps: &mut Steps);
}

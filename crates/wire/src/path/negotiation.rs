//! The pure half of a path: what two agents say to each other so that streams can take it.
//!
//! One [`Negotiation`] for each path and connection. It is told which transfers of the connection take the path, hears
//! the peer's words and its own carrier's reports, and answers each with [`Steps`]. Nothing in it waits, and nothing
//! touches a socket, so it lives in virtual time as the rest of this crate does.

use std::collections::VecDeque;
use std::fmt;

use serde::{Serialize, de::DeserializeOwned};
use transload_plan::ids::TransferId;

use super::Path;

/// Longest word of a path, in bytes. A longer one of a peer ends the connection.
pub(crate) const MAX_WORD: usize = 1024;

/// Encodes a word of a path as it travels.
#[doc(hidden)]
pub fn encode(word: &impl Serialize) -> Vec<u8> {
    // Only writers fail.
    postcard::to_allocvec(word).unwrap_or_default()
}

/// Decodes a word of a path as it arrived, if all of it makes sense.
#[doc(hidden)]
pub fn decode<W: DeserializeOwned>(word: &[u8]) -> Option<W> {
    match postcard::take_from_bytes(word) {
        Ok((word, [])) => Some(word),
        _ => None,
    }
}

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

/// A transfer that takes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traveller {
    /// The transfer.
    pub transfer: TransferId,
    /// Which way its bytes go.
    pub way: Way,
    /// How many lanes it would like.
    pub lanes: u16,
}

/// What the carrier is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make ready to be met by the peer, and report [`Report::Offered`].
    Offer {
        /// How many lanes are wanted, where the path has such.
        lanes: u16,
    },
    /// Meet the peer where its words say.
    Meet {
        /// The words, which the negotiation has found to make sense.
        word: Vec<u8>,
    },
}

/// What the carrier has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// What the peer has to know to meet us.
    Offered {
        /// In words of the path.
        word: Vec<u8>,
    },
    /// Nothing has come of an offer or a meeting, or what there was has ended: for bytes that go this way.
    Ended {
        /// Which way.
        way: Way,
        /// How.
        ending: Ending,
    },
}

/// How an offer, a meeting, or what came of it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nobody came in time, or we came too late.
    Lapsed,
    /// A thread of ours has panicked over it.
    Panicked,
    /// Anything else.
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

/// One thing that a negotiation wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say this to the peer.
    Say(Vec<u8>),
    /// Have the carrier do this.
    Order(Order),
    /// The path is lost this way for as long as the connection lives: what takes it fails, and is tried again over another.
    Lose(Way, String),
    /// The connection is of no use any more.
    HangUp(String),
}

/// What a negotiation wants, in order.
#[derive(Debug, Default)]
pub struct Steps(VecDeque<Step>);

impl Steps {
    /// Adds a step.
    pub fn push(&mut self, step: Step) {
        self.0.push_back(step);
    }

    /// Takes the next.
    pub fn pop(&mut self) -> Option<Step> {
        self.0.pop_front()
    }
}

/// What one path negotiates on one connection.
///
/// Everything that comes from the peer may be a lie, repeated, or out of order.
pub trait Negotiation: fmt::Debug + Send {
    /// Which path.
    fn path(&self) -> Path;

    /// A transfer takes the path from now on.
    fn begin(&mut self, traveller: Traveller, steps: &mut Steps);

    /// A transfer is over, or given up.
    fn end(&mut self, transfer: TransferId);

    /// The peer has said something, of at most 1,024 bytes.
    fn hear(&mut self, word: &[u8], steps: &mut Steps);

    /// The carrier has something to tell.
    fn report(&mut self, report: Report, steps: &mut Steps);
}

//! What is said over the socket before it becomes a doorbell: one packet each.
//!
//! ```text
//! hello    connecting -> listening   magic (8 bytes), proof (32)
//! welcome  listening -> connecting   magic, proof
//! offer    either -> other           postcard of `Offer`, and its descriptor
//! answer   the other way             postcard of `Answer`
//! ```

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::HandoverError;
use super::token::Proof;
use crate::path::negotiation;

/// Most bytes of a packet; the longest is a greeting of 40.
pub(super) const MAX_PACKET: usize = 256;
/// Most descriptors that are let in with a packet. One is right; a few more are told by their number.
pub(super) const MAX_DESCRIPTORS: usize = 16;

const MAGIC: [u8; 8] = *b"tl-loc/2";

pub(super) fn encode_greeting(proof: &Proof) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[..8].copy_from_slice(&MAGIC);
    packet[8..].copy_from_slice(&proof.0);
    packet
}

pub(super) fn decode_greeting(packet: &[u8]) -> Result<[u8; 32], HandoverError> {
    let proof = packet.strip_prefix(&MAGIC);
    proof
        .and_then(|p| p.try_into().ok())
        .ok_or(HandoverError::Malformed { packet: "greeting" })
}

/// A ring that is to be received from, whose memory comes as the descriptor of the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
}

/// The receiver's word on an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Mapped.
    Taken,
    /// Not what was expected, over a limit, or not as announced.
    Refused,
}

pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, HandoverError> {
    let packet = postcard::to_allocvec(message).ok();
    let packet = packet.filter(|packet| packet.len() <= MAX_PACKET);
    packet.ok_or(HandoverError::TooMuch {
        what: "bytes in a packet",
        limit: MAX_PACKET as u64,
    })
}

pub(super) fn decode<T: DeserializeOwned>(
    packet: &[u8],
    name: &'static str,
) -> Result<T, HandoverError> {
    negotiation::decode(packet).ok_or(HandoverError::Malformed { packet: name })
}

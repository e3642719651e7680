//! What is said over the socket before it becomes a doorbell: one packet each.
//!
//! ```text
//! hello    connecting -> listening   magic (8 bytes), proof (32)
//! welcome  listening -> connecting   magic, proof
//! offer    either -> other           postcard of `Offer`, and its descriptors
//! answer   the other way             postcard of `Answer`
//! ```

use blake3::{Hash, keyed_hash};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Caches, HandoverError, Token};
use transload_wire::internal::negotiation;

/// Most bytes of a packet; the longest is a greeting of 40.
pub(super) const MAX_PACKET: usize = 256;
/// Most descriptors that are let in with a packet. A ring has one, a ring in device memory two; more are let in so that an error can say
/// how many came.
pub(super) const MAX_DESCRIPTORS: usize = 16;

const MAGIC: [u8; 8] = *b"tl-loc/2";

/// Makes what the connecting side sends first: a proof that it holds the token, which says where its caches are, too. Comparing
/// proofs takes the same time whether they are nearly right or not.
pub(super) fn hello(token: &Token, caches: Caches) -> Hash {
    let text: &[u8] = match caches {
        Caches::OnHost => b"transload local hello",
        Caches::OnDevice => b"transload local hello of a device",
    };
    keyed_hash(&token.0, text)
}

/// Makes what the listening side answers, to prove the same.
pub(super) fn welcome(token: &Token) -> Hash {
    keyed_hash(&token.0, b"transload local welcome")
}

pub(super) fn encode_greeting(proof: Hash) -> Vec<u8> {
    [&MAGIC[..], proof.as_bytes()].concat()
}

pub(super) fn decode_greeting(packet: &[u8]) -> Result<Hash, HandoverError> {
    let proof = packet.strip_prefix(&MAGIC);
    proof.and_then(|proof| Hash::from_slice(proof).ok()).ok_or(HandoverError::Malformed { packet: "greeting" })
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

pub(super) fn decode<T: DeserializeOwned>(packet: &[u8], name: &'static str) -> Result<T, HandoverError> {
    negotiation::decode(packet).ok_or(HandoverError::Malformed { packet: name })
}

//! Messages on the socket before it becomes a doorbell, one packet each.
//!
//! ```text
//! hello    connecting -> listening   magic (8 bytes), proof (32)
//! welcome  listening -> connecting   magic, proof
//! offer    either -> other           postcard of `Offer`, and its descriptors
//! answer   the other way             postcard of `Answer`
//! ```

use blake3::{Hash, keyed_hash};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::error::HandoverError;
use transload_wire::internal::negotiation;
use transload_wire::internal::ring::Token;

/// The most bytes of a packet. The longest one is a greeting of 40.
pub(super) const MAX_PACKET: usize = 256;
/// The most descriptors that are accepted with a packet. A ring has one, a ring in device memory two; more are accepted
/// so that an error can tell how many there were.
pub(super) const MAX_DESCRIPTORS: usize = 16;

const MAGIC: [u8; 8] = *b"tl-loc/2";

/// The location of the caches of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// All caches are in host memory.
    OnHost,
    /// Some or all caches are in device memory.
    OnDevice,
}

/// Makes the first message of the connecting side: a proof that it holds the token, which also tells where its caches
/// are. Comparing proofs takes constant time.
pub(super) fn hello(token: &Token, caches: Caches) -> Hash {
    let text: &[u8] = match caches {
        Caches::OnHost => b"transload local hello",
        Caches::OnDevice => b"transload local hello of a device",
    };
    keyed_hash(&token.0, text)
}

/// Makes the answer of the listening side, a proof of the same kind.
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

/// The offer of a ring to receive from. The packet's descriptor is its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
}

/// The receiver's answer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The memory is mapped.
    Taken,
    /// The offer is not the expected one, exceeds a limit, or differs from its announcement.
    Refused,
}

pub(super) fn decode<T: DeserializeOwned>(packet: &[u8], name: &'static str) -> Result<T, HandoverError> {
    negotiation::decode(packet).ok_or(HandoverError::Malformed { packet: name })
}

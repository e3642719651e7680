//! Tickets: opaque, unguessable texts that let one destination use one lease set.
//!
//! A ticket is made in an engine's scheduler, which has no memory of caches. That takes only the cluster's
//! [`TicketKey`] and the addresses of the owner's ranks. The ticket then travels through proxies that need not
//! understand it, and any rank can verify it.
//!
//! **A ticket is a bearer secret.** A process that has it, and a certificate that the owner trusts, can use the lease
//! set. [`Ticket`] therefore prints only a fingerprint; [`Ticket::expose`] is the only way to its text.
//!
//! **Form.** `tl1.` and base64url, without padding, of the claims in postcard and a MAC of 32
//! bytes: BLAKE3 keyed with a key derived from the cluster's. At most [`MAX_TICKET`] bytes.

mod claims;
mod text;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use claims::MAX_RANKS;
pub use claims::{Audience, Claims, ClaimsError, RankAddress};
pub use text::TextError;

/// The longest ticket, in bytes of its text.
pub(crate) const MAX_TICKET: usize = 4096;

const PREFIX: &str = "tl1.";
const MAC: usize = 32;
const KEY_CONTEXT: &str = "transload 1 ticket key";

/// The key that seals the tickets of a cluster. Every agent and every scheduler has it.
#[derive(Clone)]
pub struct TicketKey([u8; 32]);

impl TicketKey {
    /// Derives the key from 32 secret random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(blake3::derive_key(KEY_CONTEXT, secret))
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

/// The reason why a ticket cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum MintError {
    /// The claims contradict themselves.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
    /// The text would be longer than 4,096 bytes.
    #[error(
        "a ticket of {ranks} ranks takes {bytes} bytes, and may take {MAX_TICKET}: use shorter host names or agent ids"
    )]
    TooLong { bytes: usize, ranks: usize },
}

/// The reason why a text is not a ticket of this cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum TicketError {
    /// It is longer than 4,096 bytes.
    #[error("a ticket has at most {MAX_TICKET} bytes, this one has {bytes}")]
    TooLong { bytes: usize },
    /// It does not begin like a ticket of this version.
    #[error("a ticket of this version begins with {PREFIX:?}")]
    Version,
    /// The rest is not base64url.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The MAC does not match the key: the ticket was made elsewhere, or changed on its way.
    #[error("the ticket was not sealed with this cluster's key, or was changed since")]
    Forged,
    /// The ticket is authentic, but does not contain claims of this version.
    #[error("the ticket is authentic, but its claims cannot be read")]
    Encoding,
    /// The ticket is authentic, but its claims contradict themselves.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
}

/// The text of a ticket, which may not be authentic.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Ticket(Box<str>);

impl Ticket {
    /// Seals `claims` into a ticket.
    pub fn mint(key: &TicketKey, claims: &Claims) -> Result<Self, MintError> {
        let mut bytes = claims.encode()?;
        bytes.extend_from_slice(mac(key, &bytes).as_bytes());
        let text = format!("{PREFIX}{}", text::encode(&bytes));
        if text.len() > MAX_TICKET {
            return Err(MintError::TooLong { bytes: text.len(), ranks: claims.ranks.len() });
        }
        Ok(Self(text.into()))
    }

    /// Takes the text of a ticket from elsewhere. Only its length and its beginning are checked.
    pub fn from_text(text: &str) -> Result<Self, TicketError> {
        if text.len() > MAX_TICKET {
            return Err(TicketError::TooLong { bytes: text.len() });
        }
        if !text.starts_with(PREFIX) {
            return Err(TicketError::Version);
        }
        Ok(Self(text.into()))
    }

    /// Checks that the ticket is authentic, and returns its claims.
    pub fn open(&self, key: &TicketKey) -> Result<Claims, TicketError> {
        let body = self.0.strip_prefix(PREFIX).ok_or(TicketError::Version)?;
        let bytes = text::decode(body)?;
        let (claims, sealed) = bytes.split_last_chunk::<MAC>().ok_or(TicketError::Forged)?;
        // `blake3::Hash` compares in constant time.
        if mac(key, claims) != blake3::Hash::from_bytes(*sealed) {
            return Err(TicketError::Forged);
        }
        Claims::decode(claims)?.ok_or(TicketError::Encoding)
    }

    /// Returns the text, for the process that is to use the lease set. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

fn mac(key: &TicketKey, claims: &[u8]) -> blake3::Hash {
    blake3::keyed_hash(&key.0, claims)
}

impl fmt::Display for Ticket {
    /// Writes a fingerprint, which helps to find the ticket in another log and is useless otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = blake3::hash(self.0.as_bytes());
        write!(f, "ticket#")?;
        digest.as_bytes()[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({self})")
    }
}

impl TryFrom<String> for Ticket {
    type Error = TicketError;

    fn try_from(text: String) -> Result<Self, TicketError> {
        Self::from_text(&text)
    }
}

#[cfg(test)]
mod tests;

//! Reasons for refusals and failures. Both are sent to peers, so they are data.

use std::fmt;
use std::mem::swap;

use serde::{Deserialize, Serialize};
use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, PlanDigest, Rank};

use crate::lease::{LeaseEnd, UseError};
use crate::path::PathSet;
use crate::roles::Role;
use crate::waiting::Awaited;

/// The longest text that is kept of a peer, in bytes.
const MAX_TEXT: usize = 1024;

/// A text in a message: cut to 1 KiB, so that no message outgrows its frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Text(String);

impl From<String> for Text {
    fn from(mut text: String) -> Self {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        Self(text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text[..text.floor_char_boundary(MAX_TEXT)].to_owned())
    }
}

impl fmt::Display for Text {
    /// Escapes control characters, so that a peer cannot control the terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c.is_control() {
                true => write!(f, "{}", c.escape_default())?,
                false => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// The first field in which two deployments differ in a way that cannot be bridged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{field} cannot be bridged: {ours} here, {theirs} there")]
pub struct Difference {
    /// The field, as a deployment document names it.
    pub field: Text,
    /// Its value at the side that reports it.
    pub ours: Text,
    /// Its value at the other side.
    pub theirs: Text,
}

/// The reason why two agents do not talk to each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum HelloRefusal {
    /// The two have no protocol version in common.
    #[error("protocol versions {ours:?} here, {theirs:?} there")]
    Version {
        /// The lowest and the highest version here.
        ours: (u16, u16),
        theirs: (u16, u16),
    },
    #[error("cluster {ours} here, {theirs} there")]
    Cluster { ours: ClusterName, theirs: ClusterName },
    #[error("the agent's service is not the one in its certificate")]
    Agent,
    /// The agent claims ranks that its deployment does not have.
    #[error("rank {rank} of a deployment of {ranks}")]
    Rank { rank: Rank, ranks: u32 },
    /// Another life of the same agent is connected, and started later.
    #[error(
        "a later life of this agent is connected ({later}): either this process is left from before a restart, or \
         two instances of a service have one name; give each an `instance` of its own"
    )]
    Superseded { later: Incarnation },
    /// The document is longer than allowed, or is not the one whose digest was announced.
    #[error("the deployment document is not good: {why}")]
    Document { why: Text },
    /// The deployments cannot be bridged.
    #[error(transparent)]
    Specs(Difference),
    #[error("the agent is shutting down")]
    ShuttingDown,
    /// Another instance than the dialled one answers at the address, so the dialled one is gone.
    #[error("another instance, {found}, is at that address by now")]
    OtherInstance { found: AgentId },
    /// The peer has the same name as the agent that refuses it.
    #[error(
        "both have one name: two instances of a service are started with the same name; give each an \
         `instance` of its own"
    )]
    OwnName,
    /// The agent, or its service, has opened as many connections as it may. Only this refusal is transient.
    #[error("too many connections of one agent or service: {limit} are allowed, and as many are open")]
    Crowded { limit: u32 },
}

impl HelloRefusal {
    pub(crate) fn crowded(limit: usize) -> Self {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        HelloRefusal::Crowded { limit }
    }

    /// Returns whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, HelloRefusal::Crowded { .. })
    }

    /// Returns whether the two agents can never talk to each other in their current configuration: they cache different
    /// things, or speak no common version.
    pub fn is_misfit(&self) -> bool {
        matches!(self, HelloRefusal::Specs(_) | HelloRefusal::Version { .. })
    }

    /// Returns the refusal from the other side's point of view: "here" and "there" are swapped.
    #[must_use]
    pub fn mirrored(mut self) -> Self {
        match &mut self {
            HelloRefusal::Version { ours, theirs } => swap(ours, theirs),
            HelloRefusal::Cluster { ours, theirs } => swap(ours, theirs),
            HelloRefusal::Specs(differ) => swap(&mut differ.ours, &mut differ.theirs),
            _ => {}
        }
        self
    }
}

/// The reason why a pull, a push, a notice or an invitation is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum Refusal {
    #[error("the ticket is forged or damaged")]
    Forged,
    #[error("the ticket is of another cluster, this is {ours}")]
    WrongCluster { ours: ClusterName },
    #[error("the ticket is of another deployment, this is {ours}")]
    WrongDeployment { ours: DeploymentDigest },
    #[error("the ticket is of another life of its owner, this is {ours}")]
    WrongIncarnation { ours: Incarnation },
    #[error("the ticket is for a {ticket}")]
    WrongDirection { ticket: Direction },
    #[error("the ticket is for another peer, or has been used by another")]
    WrongPeer,
    #[error("the certificate does not have the role {role}")]
    RoleMissing { role: Role },
    #[error("rank {rank} is not at this agent")]
    RankNotHere { rank: Rank },
    #[error("rank {rank} is not the asker's")]
    RankNotYours { rank: Rank },
    /// The lease was not opened in time.
    #[error("no such lease is known")]
    UnknownLease,
    #[error("the lease has expired")]
    Expired,
    #[error("the lease was cancelled")]
    Cancelled,
    #[error("the lease ended when its holder was lost")]
    PeerLost,
    /// This rank, or every rank, has used the lease.
    #[error("the lease was used up")]
    Consumed,
    #[error("attempt {latest} is known already")]
    Superseded { latest: u32 },
    /// The blocks hold other content than the asker states. The refusal does not say which, because the digest is the
    /// asker's proof that it knows the content.
    #[error("the blocks hold other content than was asked for")]
    DigestMismatch,
    #[error("the plans differ: {ours} here, {theirs} there")]
    PlanDigestMismatch { ours: PlanDigest, theirs: PlanDigest },
    /// The request is for more tokens than there are. A push must be for exactly the opened tokens.
    #[error("tokens {start}..{valid} are there, and {asked} was asked for as the end")]
    NotEnoughTokens { start: u64, valid: u64, asked: u64 },
    #[error("nothing moves between rank {owner} here and rank {asker} there")]
    NoRoute { owner: Rank, asker: Rank },
    #[error("it cannot be planned here: {why}")]
    Unplannable { why: Text },
    /// Pushes are exact only; pulls may use the codecs in the hello.
    #[error("nothing moves here as {codec}")]
    Codec { codec: Codec },
    #[error("wanted {wanted}, there is {offered}")]
    PathUnavailable { wanted: PathSet, offered: PathSet },
    /// Too much is in progress. Only this refusal is transient.
    #[error("too much of this peer is under way: the limit is {limit}")]
    Busy {
        /// The limit that was reached: of transfers, of waiting requests, or of places.
        limit: u32,
    },
    #[error("the agent is shutting down")]
    ShuttingDown,
    /// The invitation is for blocks of another agent than its sender.
    #[error("the blocks to be written are not the asker's")]
    NotYourBlocks,
    #[error("the device that had the blocks is lost")]
    DeviceLost,
    #[error("the device that has the blocks did not finish its work on them in time")]
    DeviceStalled,
}

pub(crate) fn room(limit: usize, under_way: usize) -> Result<(), Refusal> {
    match under_way < limit {
        true => Ok(()),
        false => Err(Refusal::busy(limit as u64)),
    }
}

impl Refusal {
    pub(crate) fn busy(limit: u64) -> Self {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        Refusal::Busy { limit }
    }

    /// Returns whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Refusal::Busy { .. })
    }
}

impl From<LeaseEnd> for Refusal {
    fn from(end: LeaseEnd) -> Self {
        match end {
            LeaseEnd::Completed => Refusal::Consumed,
            LeaseEnd::Cancelled => Refusal::Cancelled,
            LeaseEnd::Expired => Refusal::Expired,
            LeaseEnd::PeerLost => Refusal::PeerLost,
            LeaseEnd::DeviceLost => Refusal::DeviceLost,
            LeaseEnd::DeviceStalled => Refusal::DeviceStalled,
        }
    }
}

impl From<UseError> for Refusal {
    fn from(error: UseError) -> Self {
        match error {
            UseError::Unknown => Refusal::UnknownLease,
            UseError::Ended { end } => end.into(),
            UseError::Direction { leased } => Refusal::WrongDirection { ticket: leased },
            UseError::Content => Refusal::DigestMismatch,
            UseError::Tokens { start, valid_tokens: valid, asked } => Refusal::NotEnoughTokens { start, valid, asked },
            UseError::Holder => Refusal::WrongPeer,
            UseError::Rank { rank } => Refusal::RankNotYours { rank },
            UseError::Consumed { .. } | UseError::Pushed => Refusal::Consumed,
            UseError::Superseded { latest } => Refusal::Superseded { latest },
        }
    }
}

/// The reason why a transfer failed after it was accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum Failure {
    #[error("the lease ended ({end}) before the transfer was complete")]
    LeaseEnded { end: LeaseEnd },
    #[error("a stream broke off: {why}")]
    StreamBroken { why: Text },
    #[error("stream {stream} has CRC32C {seen:08x}, {sent:08x} was sent")]
    Checksum {
        stream: u32,
        /// The checksum of the bytes sent, from the trailer.
        sent: u32,
        seen: u32,
    },
    /// A stream, or all of them together, had another length than planned.
    #[error("{found} bytes where {planned} were planned")]
    Length { planned: u64, found: u64 },
    /// A peer's streams overlap, lie outside the plan, or are too many.
    #[error("the streams do not divide what was planned")]
    Streams,
    #[error("nothing moved for too long: it waited for {on}")]
    Stalled {
        /// The event that the side that noticed the stall was waiting for.
        on: Awaited,
    },
    #[error("the connection to the peer was lost")]
    Disconnected,
    #[error("given up")]
    Cancelled,
    #[error("a later attempt took its place")]
    Superseded,
    #[error("it could not be carried out: {why}")]
    Local { why: Text },
    #[error("a device that has the blocks is lost")]
    DeviceLost,
    #[error("a device that has the blocks did not finish its work on them in time")]
    DeviceStalled,
}

impl Failure {
    /// Returns whether trying again is pointless.
    pub fn is_final(&self) -> bool {
        let final_ = matches!(self, Failure::LeaseEnded { .. } | Failure::Cancelled);
        final_ || self.is_of_device()
    }

    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self, Failure::DeviceLost | Failure::DeviceStalled)
    }
}

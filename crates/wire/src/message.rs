//! Control messages.

use serde::{Deserialize, Serialize};
use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Nonce, PlanDigest, Rank, TransferId};

use crate::path::{Path, PathSet};
use crate::refusal::{Failure, HelloRefusal, Refusal};
use crate::ticket::Ticket;
use crate::waiting::Awaited;

/// The lowest and the highest version of the protocol that this agent speaks.
pub const VERSIONS: (u16, u16) = (5, 5);

/// The longest deployment document in bytes: it must fit into a frame.
pub const MAX_DOCUMENT: usize = 60 * 1024;

/// A message with its number on its connection, counted from 1. A repeated number is a duplicate and is dropped; a gap
/// is a fault of the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The number.
    pub sequence: u64,
    /// The message.
    pub message: Message,
}

/// A message between agents on a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum Message {
    /// The first message on each connection, from both sides.
    Hello(Hello),
    /// The sender does not know the receiver's deployment yet.
    DocumentWanted,
    /// The sender's complete deployment.
    Document {
        /// The canonical document. Its BLAKE3 hash is the digest in the hello.
        document: Vec<u8>,
    },
    /// The sender accepts the receiver's hello. Other messages may follow once both sides have sent this.
    Welcome,
    /// The sender refuses the receiver's hello, and the connection ends.
    Unwelcome(HelloRefusal),
    /// An ask to read leased blocks.
    Pull(Ask),
    /// An ask to write into opened blocks.
    Push(Ask),
    /// An ask is refused.
    Refused { transfer: TransferId, refusal: Refusal },
    /// An ask is accepted, and the bytes take this path.
    Accepted { transfer: TransferId, path: Path },
    /// The receiver must wait, for this reason, and should go on waiting.
    Waiting { transfer: TransferId, on: Awaited },
    /// The data source has read its last byte, and the lease was alive then. States the number of streams and bytes.
    Commit { transfer: TransferId, streams: u32, bytes: u64 },
    /// The data destination has all bytes and the commit: the transfer has succeeded.
    Landed { transfer: TransferId },
    /// The transfer has failed. Its bytes that still arrive are dropped.
    Abort { transfer: TransferId, failure: Failure },
    /// A notice from the holder of a ticket to the owner of the lease set.
    Notice(Notice),
    /// The answer to a notice.
    NoticeHeard {
        id: u64,
        /// The remaining milliseconds after a renewal.
        outcome: Result<u64, Refusal>,
    },
    /// A message of the negotiation of a path, in the path's own encoding.
    Path {
        path: Path,
        /// The encoded message, of at most 1024 bytes.
        word: Vec<u8>,
    },
    /// An invitation from the holder of a ticket to the owner of the lease set, to push.
    Invite(Invitation),
    /// The answer to an invitation, once every local rank knows of its lease: the sender pushes, or says why not.
    Invited { id: u64, outcome: Result<(), Refusal> },
}

impl Message {
    /// Returns whether the message belongs to the time before both sides are welcome.
    pub(crate) fn is_greeting(&self) -> bool {
        matches!(
            self,
            Message::Hello(_)
                | Message::DocumentWanted
                | Message::Document { .. }
                | Message::Welcome
                | Message::Unwelcome(_)
        )
    }
}

/// The sender's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The lowest and the highest version of the protocol.
    pub versions: (u16, u16),
    /// The cluster.
    pub cluster: ClusterName,
    /// The agent, whose service the certificate must prove.
    pub agent: AgentId,
    /// The current life of its deployment.
    pub incarnation: Incarnation,
    /// The digest of its deployment.
    pub deployment: DeploymentDigest,
    /// The ranks whose memory it holds; empty for a scheduler's agent.
    pub ranks: Vec<Rank>,
    /// The codecs in which it can send blocks.
    pub codecs: Vec<Codec>,
}

/// The request for one route of a pull or a push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The id of this attempt.
    pub transfer: TransferId,
    /// The secret that its data streams must contain.
    pub nonce: Nonce,
    /// The ticket that authorises it.
    pub ticket: Ticket,
    /// The rank that sends.
    pub source: Rank,
    /// The rank that receives.
    pub destination: Rank,
    /// The tokens that move, and their order.
    pub request: Request,
    /// The content that the asker expects.
    pub content: ContentDigest,
    /// The digest of the asker's plan for this route.
    pub plan: PlanDigest,
    /// The number of lanes that the asker would like to use.
    pub lanes: u16,
    /// The paths that the asker accepts.
    pub paths: PathSet,
    /// The number of the attempt at this route, from 1.
    pub attempt: u32,
}

/// A notice of a ticket's holder to the owner of the lease set, about all ranks at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The id of the notice until it is answered.
    pub id: u64,
    /// The ticket.
    pub ticket: Ticket,
    /// The content of the notice.
    pub says: NoticeKind,
}

/// The content of a notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeKind {
    /// These ranks of the holder are done, and have everything that they wanted.
    Done {
        /// The ranks.
        ranks: Vec<Rank>,
        /// The content that they expect.
        content: ContentDigest,
    },
    /// The request is cancelled.
    Cancel {
        /// The expected content, if it is known. Leases of other content are not cancelled then.
        content: Option<ContentDigest>,
    },
    /// The leases are to be extended.
    Renew {
        /// The least remaining time from now, in milliseconds.
        ttl_ms: u64,
    },
}

/// An invitation from the holder of a ticket to the owner of the leases. The holder has opened blocks of its own, for
/// the owner to push into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// The id of the invitation until it is answered.
    pub id: u64,
    /// The ticket of the leases.
    pub ticket: Ticket,
    /// The ticket of the opened blocks, with all ranks of the holder and the tokens.
    pub into: Ticket,
    /// The content that the holder expects.
    pub content: ContentDigest,
    /// The number of lanes that the holder would like to be used.
    pub lanes: u16,
    /// Whether bytes may move before the prefill is over.
    pub by_layer: bool,
    /// The paths that the holder accepts.
    pub paths: PathSet,
}

//! Control messages.

use serde::{Deserialize, Serialize};
use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Nonce, PlanDigest, Rank, TransferId};

use crate::awaited::Awaited;
use crate::path::{Path, PathSet};
use crate::refusal::{Failure, HelloRefusal, Refusal};
use crate::ticket::Ticket;

/// Lowest and highest version of the protocol that is spoken here.
pub const VERSIONS: (u16, u16) = (4, 4);

/// Longest deployment document that can be handed over, in bytes: it must fit a frame.
pub const MAX_DOCUMENT: usize = 60 * 1024;

/// A message and its number on its connection, from 1. A number that was seen before is a
/// duplicate and is dropped; one that skips is a fault of the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The number.
    pub sequence: u64,
    /// The message.
    pub message: Message,
}

/// What agents say to each other on a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names of the fields say what they are")]
pub enum Message {
    /// First on each connection, from both sides.
    Hello(Hello),
    /// The receiver does not know that deployment yet.
    DocumentWanted,
    /// The sender's deployment, in full.
    Document {
        /// The canonical document; its BLAKE3 is the digest in the hello.
        document: Vec<u8>,
    },
    /// The other's hello is accepted. Once both have said so, anything else may be said.
    Welcome,
    /// The other's hello is refused, and the connection ends.
    Unwelcome(HelloRefusal),
    /// Asks to read leased blocks.
    Pull(Ask),
    /// Asks to write into opened blocks.
    Push(Ask),
    /// Answers an ask: no.
    Refused { transfer: TransferId, refusal: Refusal },
    /// Answers an ask: the bytes take this path.
    Accepted { transfer: TransferId, path: Path },
    /// Nothing to do but wait: says that it is still worth it.
    Waiting { transfer: TransferId, on: Awaited },
    /// The data source has read its last byte, and the lease was alive then. So many streams carry so many bytes.
    Commit { transfer: TransferId, streams: u32, bytes: u64 },
    /// The data destination has everything and the commit: the transfer has succeeded.
    Landed { transfer: TransferId },
    /// The transfer has failed. What arrives of it from now on is dropped.
    Abort { transfer: TransferId, failure: Failure },
    /// To the owner of a lease set, from the holder of its ticket.
    Notice(Notice),
    /// The answer.
    NoticeHeard {
        id: u64,
        /// For a renewal, how many milliseconds are left.
        outcome: Result<u64, Refusal>,
    },
    /// What the negotiation of a path has to say, in words of its own.
    Path {
        path: Path,
        /// What it says, 1,024 bytes at most.
        word: Vec<u8>,
    },
    /// To the owner of a lease set, from the holder of its ticket: shall push.
    Invite(Invitation),
    /// The answer, once every rank here knows of its lease: pushes, or why not.
    Invited { id: u64, outcome: Result<(), Refusal> },
}

impl Message {
    /// Whether it is said before both sides are welcome.
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

/// Who one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest and highest version of the protocol.
    pub versions: (u16, u16),
    /// The cluster.
    pub cluster: ClusterName,
    /// The agent, of the service in the certificate.
    pub agent: AgentId,
    /// The life of its deployment.
    pub incarnation: Incarnation,
    /// Its deployment.
    pub deployment: DeploymentDigest,
    /// The ranks whose memory it holds. A scheduler's agent holds none.
    pub ranks: Vec<Rank>,
    /// The codecs in which it sends what is pulled.
    pub codecs: Vec<Codec>,
}

/// What a pull or a push asks for: one route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Names this attempt.
    pub transfer: TransferId,
    /// What its data streams have to show.
    pub nonce: Nonce,
    /// What allows it.
    pub ticket: Ticket,
    /// The rank that bytes leave.
    pub source: Rank,
    /// The rank that bytes reach.
    pub destination: Rank,
    /// Which tokens, and in which order.
    pub request: Request,
    /// What the asker takes the content to be.
    pub content: ContentDigest,
    /// The plan that the asker has compiled for this route.
    pub plan: PlanDigest,
    /// How many lanes it would like to use.
    pub lanes: u16,
    /// The paths it would take.
    pub paths: PathSet,
    /// Counts the attempts for this route, from 1.
    pub attempt: u32,
}

/// What the holder of a ticket tells the owner of the lease set, about all ranks at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Names it until it is answered.
    pub id: u64,
    /// The ticket.
    pub ticket: Ticket,
    /// What the notice says.
    pub says: NoticeKind,
}

/// What a notice says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeKind {
    /// These ranks of the holder are done, and have what they wanted.
    Done {
        /// The ranks.
        ranks: Vec<Rank>,
        /// What they take the content to be.
        content: ContentDigest,
    },
    /// The request is given up.
    Cancel {
        /// What the content was taken to be, where that is known. Cancels nothing else then.
        content: Option<ContentDigest>,
    },
    /// The leases shall live on.
    Renew {
        /// For so many milliseconds from now at least.
        ttl_ms: u64,
    },
}

/// From the holder of a ticket to the owner of the leases: it has opened blocks of its own, and the owner
/// shall push into them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Names it until it is answered.
    pub id: u64,
    /// The ticket for the leases.
    pub ticket: Ticket,
    /// The ticket that opens them, all ranks of the holder's; it says which tokens.
    pub into: Ticket,
    /// What the holder takes the content to be.
    pub content: ContentDigest,
    /// How many lanes it would like to be used.
    pub lanes: u16,
    /// Whether bytes may move before the prefill is over.
    pub by_layer: bool,
    /// The paths it would take.
    pub paths: PathSet,
}

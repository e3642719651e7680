//! Actions: what the machine asks the agent to do.

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Nonce, Rank, TransferId};

use crate::ids::{ConnId, JobId, NoticeId};
use crate::lease::{LeaseEnd, LeaseKey};
use crate::message::Envelope;
use crate::outcome::{JobError, JobReport, NoticeOutcome};
use crate::path::Path;
use crate::path::negotiation::Order;
use crate::plans::PlanAsk;
use crate::refusal::{HelloRefusal, Text};
use crate::ticket::RankAddress;

/// Something that the agent has to do. Actions are carried out in order: an action of a transfer that comes before a
/// message about it must have taken effect before the message leaves.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Action<B> {
    /// Connect to an agent, whose certificate must name its service. Answer with `connected`, `connect_unanswered`,
    /// `connect_refused` or `connect_failed`.
    Connect(RankAddress),
    /// Close a connection, after everything that was sent before has left. The machine has forgotten it already.
    Close(ConnId, CloseReason),
    /// Send a message on the control stream of a connection.
    Send(ConnId, Envelope),
    /// Pass an order to the carrier of a path. It reports back with
    /// [`Machine::path_reported`](crate::Machine::path_reported).
    Path(ConnId, Path, Order),
    /// Compile a plan for the routes of all local ranks. Answer with `compiled`.
    Compile(PlanAsk),
    /// Read a route's blocks and send them, in at most [`MAX_STREAMS`](crate::MAX_STREAMS) streams of disjoint ranges.
    /// Answer with `stream_sent` for each stream that is written completely, or with `stream_failed`; meanwhile report
    /// `moved`.
    Read(Flow),
    /// More of a route that is read layer by layer may be read: the first `tokens` tokens of a layer.
    Readable { transfer: TransferId, layer: u32, tokens: u64 },
    /// All bytes of a transfer may be read.
    AllReadable(TransferId),
    /// Prepare to receive a route's streams. Answer with `admit` for each before its first byte is placed, then with
    /// `stream_arrived` or `stream_failed`; meanwhile report `moved`. Never place a byte outside of the range in a
    /// stream's header.
    Receive(Flow),
    /// The peer has accepted the transfer, and chosen this path.
    Flowing(TransferId, Path),
    /// Stop a transfer, and answer `fenced` once none of its bytes is read or written any more. Answer always, even for
    /// an unknown transfer.
    Fence(TransferId),
    /// Forget a transfer, which has succeeded.
    Finished(TransferId),
    /// Log that a peer was refused because it stated other content than the lease holds. Do not log the digests.
    OtherContent { key: LeaseKey, held: ContentDigest, stated: ContentDigest },
    /// The holder of a ticket has used a lease, or has renewed it, for the first time.
    LeaseClaimed(LeaseKey),
    /// A lease has ended, and nothing touches its blocks any more.
    LeaseEnded { key: LeaseKey, end: LeaseEnd, blocks: B },
    /// A pull or a push is over, and nothing touches its blocks any more.
    JobDone { job: JobId, result: Result<JobReport, JobError>, blocks: B },
    /// A lease has failed, but memory is still in use by its transfers: the blocks must not be used. If the transfers
    /// end after all, `LeaseEnded` follows.
    LeaseStalled(LeaseKey),
    /// A pull or a push has failed, but memory of this rank is still in use by it: the blocks must not be used. If that
    /// ends after all, `JobDone` follows.
    JobStalled(JobId, Rank),
    /// A push on a holder's invitation is over. Its lease ends next.
    Pushed(LeaseKey, Result<JobReport, JobError>),
    /// All agents have answered a notice, or its time is over.
    NoticeDone(NoticeId, NoticeOutcome),
}

/// A route to be read or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transfer.
    pub transfer: TransferId,
    /// The secret that precedes its streams.
    pub nonce: Nonce,
    /// The control connection that it belongs to.
    pub conn: ConnId,
    /// The peer.
    pub agent: AgentId,
    /// The local rank.
    pub rank: Rank,
    /// The peer's rank.
    pub peer_rank: Rank,
    /// The tokens that move, and their order.
    pub request: Request,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of lanes to use.
    pub lanes: u16,
    /// The path. `None` until the peer chooses it, which [`Action::Flowing`] reports.
    pub path: Option<Path>,
    /// The owner of the blocks.
    pub blocks: BlocksOf,
    /// Whether everything may be read. Otherwise only what is `ready` may be, until the machine allows more.
    pub all_readable: bool,
    /// Layers, each with the number of its first tokens that are ready.
    pub ready: Vec<(u32, u64)>,
}

/// The owner of the blocks that a transfer reads or writes. [`Machine::blocks`](crate::Machine::blocks) returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksOf {
    /// A lease.
    Lease(LeaseKey),
    /// A pull or a push.
    Job(JobId),
}

/// The blocks of a lease or a job: either its own, which it returns at its end, or those of another lease or job.
/// A write lease that a pull opens for an invited push uses the pull's blocks. A push on invitation uses the lease's.
#[derive(Debug)]
pub(crate) enum Held<B> {
    Own(B),
    Of(BlocksOf),
}

/// The reason for closing a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This agent refused the peer's hello.
    #[error("the peer was refused: {0}")]
    Refused(HelloRefusal),
    /// The peer refused this agent's hello.
    #[error("refused by the peer: {0}")]
    Unwelcome(HelloRefusal),
    /// The peer did not say hello in time.
    #[error("no hello in time")]
    HelloLate,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(&'static str),
    /// A path failed in such a way that the connection cannot be used further.
    #[error("{0}")]
    PathFailed(Text),
    /// A connection of another life of the same agent replaces this one.
    #[error("another life of this agent is connected")]
    Replaced,
}

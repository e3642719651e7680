//! What the machine wants done.

use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, Nonce, Rank, TransferId};

use crate::ids::{ConnId, JobId, NoticeId};
use crate::lease::{LeaseEnd, LeaseKey};
use crate::message::Envelope;
use crate::outcome::{JobError, JobReport, NoticeOutcome};
use crate::path::Path;
use crate::path::negotiation::Order;
use crate::planner::PlanAsk;
use crate::refusal::{HelloRefusal, Text};
use crate::ticket::RankAddress;

/// What the agent has to do. In order: an action of a transfer that comes before a message about
/// it must have taken effect before the message leaves.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Action<B> {
    /// Connect to an agent, whose certificate must be of its service. Answer with `connected`, `connect_unanswered`,
    /// `connect_refused` or `connect_failed`.
    Connect(RankAddress),
    /// Close a connection, after what was sent before has left. It is over for the machine already.
    Close(ConnId, CloseReason),
    /// Send a message on the control stream of a connection.
    Send(ConnId, Envelope),
    /// Have the carrier of a path do something. What comes of it, [`Machine::path_reported`](crate::Machine::path_reported)
    /// is told.
    Path(ConnId, Path, Order),
    /// Compile a plan: routes of all local ranks. Answer with `compiled`.
    Compile(PlanAsk),
    /// Read a route's blocks and send them, in streams of disjoint ranges, at most
    /// [`MAX_STREAMS`](crate::MAX_STREAMS). Answer with `stream_sent` for each that is written whole, or `stream_failed`;
    /// and `moved` while it goes on.
    Read(Flow),
    /// More may be read, of a route that is read layer by layer: so many tokens of a layer, counted from position 0.
    Readable { transfer: TransferId, layer: u32, tokens: u64 },
    /// Everything may be read.
    AllReadable(TransferId),
    /// Be ready for a route's streams. Answer with `admit` for each before its first byte is placed, then with
    /// `stream_arrived` or `stream_failed`; and `moved` while it goes on. Nothing is placed outside of what a header says.
    Receive(Flow),
    /// The peer has accepted, and this is the path.
    Flowing(TransferId, Path),
    /// Stop, and answer `fenced` once no byte of the transfer is read or written any more, and none will be: always, also
    /// for a transfer that is not known.
    Fence(TransferId),
    /// A transfer has succeeded; forget it.
    Finished(TransferId),
    /// A peer was refused since it stated other content than a lease holds. Say so in the log, and show neither.
    OtherContent { key: LeaseKey, held: ContentDigest, stated: ContentDigest },
    /// Somebody with a ticket has asked for a lease for the first time, or has renewed it.
    LeaseClaimed(LeaseKey),
    /// A lease has ended, and nothing touches its blocks any more.
    LeaseEnded { key: LeaseKey, end: LeaseEnd, blocks: B },
    /// A pull or a push is over, and nothing touches its blocks any more.
    JobDone { job: JobId, result: Result<JobReport, JobError>, blocks: B },
    /// A lease has failed, and memory is not done with its blocks: they must not be used. If it is done after all,
    /// `LeaseEnded` says so.
    LeaseStalled(LeaseKey),
    /// A pull or a push has failed, and memory of this rank is not done with its blocks: they must not be used. If it is
    /// done after all, `JobDone` says so.
    JobStalled(JobId, Rank),
    /// A push that a holder has invited is over, and with it its lease, which ends next.
    Pushed(LeaseKey, Result<JobReport, JobError>),
    /// A notice was heard by all, or has waited long enough.
    NoticeDone(NoticeId, NoticeOutcome),
}

/// One route to be read or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transfer.
    pub transfer: TransferId,
    /// The secret that goes before its streams.
    pub nonce: Nonce,
    /// The control connection it belongs to.
    pub conn: ConnId,
    /// The peer.
    pub agent: AgentId,
    /// The rank here.
    pub rank: Rank,
    /// The rank there.
    pub peer_rank: Rank,
    /// Which tokens, and in which order.
    pub request: Request,
    /// How many bytes.
    pub bytes: u64,
    /// How many lanes are wanted.
    pub lanes: u16,
    /// The path; where the peer has still to choose it, [`Action::Flowing`] tells later.
    pub path: Option<Path>,
    /// Whose blocks they are.
    pub blocks: BlocksOf,
    /// Whether everything may be read; else only what is `ready`, until told otherwise.
    pub all_readable: bool,
    /// Layers, and how many tokens of each are ready.
    pub ready: Vec<(u32, u64)>,
}

/// Whose blocks a transfer reads or writes. [`Machine::blocks`](crate::Machine::blocks) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksOf {
    /// A lease's.
    Lease(LeaseKey),
    /// A pull's or push's.
    Job(JobId),
}

/// The blocks of a lease or a job: its own, to be given back when it ends; or those of the other that it
/// works for, which gives them back.
///
/// A write lease that a pull has made so that its owner pushes has the pull's, and a push that a holder has
/// invited has the lease's.
#[derive(Debug)]
pub(crate) enum Held<B> {
    Own(B),
    Of(BlocksOf),
}

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer's hello was refused.
    #[error("the peer was refused: {0}")]
    Refused(HelloRefusal),
    /// The peer has refused ours.
    #[error("refused by the peer: {0}")]
    Unwelcome(HelloRefusal),
    /// The peer did not say hello in time.
    #[error("no hello in time")]
    HelloLate,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(&'static str),
    /// One of its paths has failed, without which it is of no use.
    #[error("{0}")]
    PathFailed(Text),
    /// Another life of the same agent took its place.
    #[error("another life of this agent is connected")]
    Replaced,
}

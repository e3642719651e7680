//! The protocol between agents, as machines without sockets or clock.
//!
//! A [`Machine`] is everything that one agent knows of its leases, its peers, its transfers and its own pulls and pushes.
//! Each event ([`Machine::on_message`], [`Machine::stream_sent`], [`Machine::on_deadline`], …) comes with the current
//! time, and the machine answers with what to do ([`Action`]). It opens no socket, starts no thread, touches no block and
//! looks into no plan: the agent around it does, and a [`KnownDeployments`] knows the deployments of peers.
//!
//! # Roles
//!
//! - **owner** and **holder**: the owner opens leases and answers; the holder has the ticket and asks. The holder
//!   *begins*, in whichever direction bytes move.
//! - **data source** and **data destination**: where the bytes come from and where they go.
//!
//! | | owner | holder |
//! |---|---|---|
//! | pull | data source, of leased blocks | data destination |
//! | push | data destination, of opened blocks | data source |
//!
//! There is one set of rules for data sources (`flows/source.rs`) and one for data destinations
//! (`flows/destination.rs`), for pulls and pushes alike.
//!
//! # One transfer
//!
//! A *transfer* is one attempt to move one route, a pair of ranks. A pull, with time going down:
//!
//! ```text
//!  holder, data destination                      owner, data source
//!
//!  Receive the route (be ready for streams)
//!  Pull{ticket, ranks, tokens, content, plan} ──►
//!                                                authentic? ours? allowed? alive? same content?
//!                                                same plan? then: bind and pin the lease
//!                                            ◄── Accepted{path}      (or Refused{why})
//!                                                Read the route
//!  ◄═══════ streams: header, bytes in plan order, trailer ═══════
//!  admit each; place; compare length and CRC
//!                                                last byte read, prefill over
//!                                                is the lease alive at this moment?
//!                                            ◄── Commit{streams, bytes}, and unpin
//!  every byte once, and the commit?
//!  Landed                                    ──► this rank has consumed the lease
//!  … all routes of all local ranks landed: success
//!  Done{ranks} to every agent of the ticket  ──► all ranks of the holder done: lease completed
//! ```
//!
//! A push is the same with `Push` instead of `Pull`, the streams and `Commit` from holder to owner,
//! `Landed` from owner to holder, and a write lease that completes only if every route that the owner's
//! own plan needs has landed.
//!
//! A holder that wants a push instead opens its own blocks and [invites](message::Invitation) the owner. The two then
//! exchange these roles (`owner/invitations.rs`).
//!
//! Variations: an ask for a lease that is not known yet *waits* for [`Options::early_wait`]; one
//! whose prefill goes on waits too, or reads layer by layer.
//!
//! # Rules
//!
//! 1. **Commit late.** The source commits after its last read. If it owns the lease (a pull, or an invited
//!    push), the lease must be alive at that moment by its monotonic clock. A plain push reads blocks that
//!    its own job holds, and the owner checks its write lease when they land. Nothing else makes bytes good.
//! 2. **Believe only a commit.** The destination succeeds with the source's commit *and* all bytes,
//!    each exactly once, with matching lengths and checksums.
//! 3. **Fence first.** Whatever fails is fenced on both sides: [`Action::Fence`] goes out, and until
//!    [`Machine::fenced`] comes back no block is given back, no lease ends, and no later attempt of
//!    the same pair of ranks begins. After [`Options::device_stall`] the lease or the job is reported
//!    as failed, and still keeps its blocks.
//! 4. **Once.** A lease and a job each end once, with a reason, and give their blocks back then, by
//!    value.
//! 5. **Try again while it lives.** A failed route may be tried again, under a new name and a new
//!    nonce; a landed one never. If `Landed` is lost, the next attempt is refused as consumed, which after
//!    a commit means that the route has landed. Without another attempt the job fails.
//! 6. **Tell everybody.** Done or cancel goes to every agent that the ticket names, with or without
//!    a route, until each has heard or [`Options::notice_wait`] is over.
//! 7. **One life.** A transfer lives and dies with its control connection. A peer that shows another
//!    incarnation has lost everything it held here in the earlier one, at once.
//! 8. **Every message is idempotent.** Messages are numbered in each connection, and a repeated number is
//!    dropped; asks are known by their transfer; the attempts of a pair of ranks only count up; notices
//!    state how things are, not what changes.
//!
//! # What an agent does
//!
//! It has one machine, which it calls and then drains of its actions, never across an `.await`. Calls take
//! microseconds. Each [`Action`] says what the agent does and which call answers it. Besides:
//!
//! - It says `connected`, also of an inbound connection, once mutual TLS has shown the peer's service, and
//!   `disconnected` for every connection that is gone. [`Machine::wants`] says whether an idle one is still needed.
//! - Where the control stream of a connection is blocked, it stops *reading* from it: so a peer that does not listen
//!   cannot make it remember answers.
//! - While bytes move it says `moved`, at most once a second for each transfer; and it keeps a timer at
//!   [`Machine::next_deadline`].
//! - On the way down: [`Machine::drain`], then [`Machine::give_up`] if [`Machine::is_idle`] takes too long, then close.
//!
//! Streams go over lanes, connections of their own, and may overtake control messages; that is why
//! `Receive` comes before the ask is sent. A lane belongs to an agent, not to a transfer: a stream is
//! let in by its transfer's name, its nonce *and* the agent that its lane was authenticated for.
//!
//! # Memory
//!
//! Nothing here is per chunk: a route of a million chunks is one transfer, and meets back-pressure in
//! its streams, not a limit. What there is, is bounded by [`Options`]:
//!
//! - A lease takes 500 bytes, and 150 for each rank of its holder; there are at most
//!   [`LeaseLimits::leases`](crate::lease::LeaseLimits::leases).
//! - A transfer takes 500 bytes, and 48 for each stream (100 KiB at most);
//!   [`Options::transfers_per_agent`] for each agent that asks; and the routes of our own jobs.
//! - A plan takes half a KiB for each slice. There is one for each of our own jobs, one for each transfer until its
//!   route is bound, and one for each lease set in use while there is room, of which one service has half at most.
//! - An ask that waits takes 4.5 KiB (its ticket), an invitation 9 KiB: for its lease [`Options::early`],
//!   [`Options::early_per_agent`]; for a plan as many as transfers, and of all services twice what one may have.
//! - A job or an invited push takes 5 KiB, and 100 bytes for each route; 9 KiB with a second ticket;
//!   [`Options::jobs`].
//! - A notice takes 5 KiB, and 200 bytes for each agent; [`Options::notices`].
//! - A connection takes 1 KiB, and a frame of 64 KiB being read; their number is the transport's to bound.

#![forbid(unsafe_code)]

mod action;
mod context;
mod deployments;
mod event;
mod flows;
mod frame;
mod ids;
mod job;
mod lease;
mod lower;
mod machine;
pub mod message;
mod moment;
mod notice;
mod options;
mod outcome;
mod owner;
mod path;
mod paths;
mod peers;
mod plans;
mod refusal;
mod roles;
mod stream;
mod ticket;
mod waiting;

pub use action::{Action, BlocksOf, CloseReason, Flow};
pub use context::{Identity, Secret};
pub use deployments::{KnownDeployments, Unpaired};
pub use flows::{MAX_STREAMS, StreamRefusal};
pub use ids::{ConnId, JobId, NoticeId};
pub use job::{JobRefused, JobSpec};
pub use lease::{LeaseEnd, LeaseError, LeaseKey, LeaseLimits, LeaseSpec, OpenError, OpenFault};
pub use machine::{DocumentTooLong, Gauges, Machine};
pub use moment::Moment;
pub use options::Options;
pub use outcome::{JobError, JobReport, NoticeOutcome, RouteReport};
pub use path::{Path, PathSet};
pub use plans::{PlanAsk, Planned, Route};
pub use refusal::{Difference, Failure, HelloRefusal, Refusal, Text};
pub use roles::{Role, Roles, UnknownRole};
pub use ticket::{Audience, Claims, ClaimsError, MintError, RankAddress, TextError, Ticket, TicketError, TicketKey};
pub use waiting::{Awaited, Waiting};

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub mod device_ring {
        pub use crate::path::device_ring::{DeviceRings, GpuId, Offer, Word};
    }
    pub mod frame {
        pub use crate::frame::{FrameError, FrameReader, MAX_FRAME, decode, encode};
    }
    pub mod negotiation {
        pub use crate::path::negotiation::{
            Ending, Negotiation, Order, Report, Step, Steps, Traveller, Way, decode, encode,
        };
    }
    pub mod quic {
        pub use crate::path::quic::{Lanes, Word};
    }
    pub mod ring {
        pub use crate::path::ring::{Rings, SocketName, SocketNameError, Token, Word};
    }
    pub mod stream {
        pub use crate::stream::{HEADER, NotAStream, StreamHeader, StreamTrailer, TRAILER};
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

//! Agents: processes that hold KV memory and move it.
//!
//! An [`Agent`] acts for some ranks of one deployment. It is used like this:
//!
//! 1. [`Agent::builder`] takes its identity and deployment. [`register`](Builder::register) the memory of each rank,
//!    then [`bind`](Builder::bind).
//! 2. An owner of blocks [`lease`](Agent::lease)s them, under a lease set that the request has on all ranks, and with a
//!    digest of their content. The scheduler mints a [`Ticket`](crate::ticket::Ticket) for the set, which needs no
//!    memory, only the cluster's key.
//! 3. The holder of the ticket [`pull`](Agent::pull)s into its own blocks. With a ticket for opened blocks it
//!    [`push`](Agent::push)es instead. Or it has the owner of the leases push, for which the application there has
//!    nothing to do ([`PullRequest::into`]). A transfer succeeds only when every route of every rank has landed after
//!    the source's commit. Then all source ranks are notified, and the leases end as completed.
//! 4. [`Lease::ended`] returns the blocks, with the reason for which the lease ended. A [`Keeper`] in the request
//!    replaces waiting for that, or for the end of a pull.
//!
//! All rules of the protocol are in [`crate::wire`], as machines without sockets or clock; this module surrounds them.
//! One task, the driver, owns the machine. Everything that happens becomes an event in one of its queues, and the parts
//! of the driver carry out the machine's actions.
//!
//! # Threads
//!
//! Work that waits for a peer, or that takes long, never runs on a thread where it would delay others.
//!
//! | thread | what runs there |
//! |---|---|
//! | control, one | the driver with the machine, all control connections, the listening sockets, handovers of rings; never blocks |
//! | a lane, one each | its socket and QUIC, and the gathers and scatters of its streams |
//! | a ring, one for each end | the gathers or scatters of its streams; waits for the peer |
//! | besides control, some when needed | plans that are compiled, routes that are bound, mappings of rings, names of hosts that are asked for, certificates that are read again |
//!
//! Users call from their own runtimes. A call is a message to the driver, and waits for its answer.
//!
//! # Memory
//!
//! A transfer takes its part of the plan (24 bytes for each segment and nest), a few hundred bytes in the machine, and
//! buffers of the lanes that it uses ([`DataOptions`](crate::data::DataOptions)), which all transfers share. A request
//! of a million chunks waits for buffers; it is never refused for its size.

mod after;
mod builder;
mod client;
mod deployments;
mod driver;
mod error;
mod handle;
mod lease;
mod metrics;
mod options;
mod outcome;
mod promise;
mod renewal;
mod request;
#[cfg(test)]
mod tests;
mod transfer;

pub use after::After;
pub use builder::{BindAgentError, Builder, RegisterError};
pub use error::{AgentGone, LeaseEndError, LeaseOpenError, LeaseUseError, NoticeError, TransferError};
pub use handle::Agent;
pub use lease::{Lease, LeaseControl};
pub use metrics::{AgentMetrics, LeaseMetrics, PathBytes, RouteMetrics, TransferMetrics};
pub use options::AgentOptions;
pub use outcome::{LeaseOutcome, PullReport};
pub use request::{Keeper, LeaseRequest, PullRequest, PushRequest};
pub use transfer::{Transfer, TransferControl};

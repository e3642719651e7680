//! Agents: processes that hold KV memory, and move it.
//!
//! An [`Agent`] speaks for some ranks of one deployment. Its life:
//!
//! 1. [`Agent::builder`] with its identity and deployment; [`register`](Builder::register) the memory of
//!    each rank; [`bind`](Builder::bind).
//! 2. An owner of blocks [`lease`](Agent::lease)s them: under a lease set that the request has on all
//!    ranks, and bound to a digest of what they hold. Whoever made the request mints a
//!    [`Ticket`](transload_wire::Ticket) for the set, which needs no memory, only the cluster's key.
//! 3. The holder of the ticket [`pull`](Agent::pull)s into its own blocks; or, with a ticket for blocks
//!    that were opened, [`push`](Agent::push)es; or has the owner of the leases push, which takes nothing of
//!    the application there ([`PullRequest::into`]). It has succeeded only when every route of every rank has
//!    landed after the source's commit. All source ranks are told, and the leases end as completed.
//! 4. [`Lease::ended`] gives the blocks back, with the one reason for which the lease ended. Who cannot
//!    wait for that, or for the end of a pull, gives the request a [`Keeper`].
//!
//! All rules are in [`transload_wire`], as machines without sockets or clock; this is the coat around
//! them. One task, the driver, owns the machine: whatever happens becomes an event in one of its queues, and
//! what the machine wants done is done by the parts of the driver.
//!
//! # Threads
//!
//! Nothing that waits for a peer, and nothing that takes long, runs where somebody else would wait for it.
//!
//! | thread | what runs there |
//! |---|---|
//! | control, one | the driver with the machine, all control connections, the listening sockets, handovers of rings; never blocks |
//! | a lane, one each | its socket and QUIC, and the gathers and scatters of its streams |
//! | a ring, one for each end | the gathers or scatters of its streams; waits for the peer |
//! | besides control, some when needed | plans that are compiled, routes that are bound, mappings of rings, names of hosts that are asked for, certificates that are read again |
//!
//! Users call from runtimes of their own: a call is a message to the driver, and waits for its answer.
//!
//! # Memory
//!
//! Per transfer: its part of the plan (24 bytes for each segment and nest), a few hundred bytes
//! in the machine, and the buffers of the lanes it uses ([`DataOptions`](crate::data::DataOptions)), which all
//! transfers share. A request of a million chunks waits for buffers; it is never refused for its size.

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
pub use lease::{Lease, LeaseControl, LeaseOutcome};
pub use metrics::{AgentMetrics, LeaseMetrics, PathBytes, RouteMetrics, TransferMetrics};
pub use options::AgentOptions;
pub use request::{Keeper, LeaseRequest, PullRequest, PushRequest};
pub use transfer::{PullReport, Transfer, TransferControl};

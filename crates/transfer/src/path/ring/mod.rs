//! The path between two processes of one host: a [staging ring](carrier::staging).
//!
//! The source gathers into slots of a memory that both share, the destination scatters out of them:
//! two copies, the second of which reads from the processor's caches. No peer has access to anybody's
//! cache, since a writer that wakes up late cannot be fenced.
//!
//! It is set up by a [`handover`](carrier::handover): a Unix socket whose random name and whose token travelled
//! over the mutually authenticated control connection. That it succeeds is what proves that both share
//! a host; whom to try it with is for the agents to guess, from the peer's address.
//!
//! Two agents that share a host go like this; who listens does not matter to the direction of the
//! bytes:
//!
//! ```text
//! listening agent                                connecting agent
//!   expect(token)            --control-->           socket name and token
//!   connection().await       <--unix socket--       connect(name, token).await
//!   offer_producer(shape)    --memfd, SCM_RIGHTS->  accept_consumer()
//!   Producer                 ==slots==>             Consumer
//! ```
//!
//! What the peer writes into shared memory is never trusted: see [`staging`](carrier::staging).
//!
//! **Threads.** A handover is async, and maps what it hands over on a thread for blocking work of the
//! runtime that it is called in. Each end of a ring is worked on a thread of its own ([`drive`](carrier::drive)), since
//! it waits for the peer.

pub(crate) mod carrier;

pub(crate) use transload_wire::internal::ring::{SocketName, Token, Word};

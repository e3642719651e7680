//! The path between two processes of one host: a [staging ring](carrier::slots).
//!
//! The source gathers into slots of a memory that both share, the destination scatters from them: two copies, the
//! second of which reads from the processor's caches. No peer can access another's cache, since a writer that wakes up
//! late could not be fenced.
//!
//! It is set up by a [`handover`](carrier::handover): a Unix socket with a random name, and a token, which are sent
//! over the mutually authenticated control connection. Success proves that both agents share a host. Agents guess from
//! the peer's address whether to try it.
//!
//! Two agents that share a host do the following. Which of them listens does not depend on the direction of the bytes:
//!
//! ```text
//! listening agent                                connecting agent
//!   expect(token)            --control-->           socket name and token
//!   connection().await       <--unix socket--       connect(name, token).await
//!   offer_producer(shape)    --memfd, SCM_RIGHTS->  accept_consumer()
//!   Producer                 ==slots==>             Consumer
//! ```
//!
//! What the peer writes into shared memory is never trusted: see [`slots`](carrier::slots).
//!
//! **Threads.** A handover is async, and maps memory on a blocking thread of the runtime in which it is called. Each
//! end of a ring has a separate thread ([`drive`](carrier::drive)), since it waits for the peer.

pub(crate) mod carrier;

#[cfg(feature = "cuda")]
pub(crate) use transload_wire::internal::ring::Word;
pub(crate) use transload_wire::internal::ring::{SocketName, Token};

//! The paths between two processes of one host.
//!
//! Two of them, and neither gives a peer write access to anybody's cache, since a writer that
//! wakes up late cannot be fenced:
//!
//! - the **staging [`ring`]**: the source gathers into slots of a shared memory, the destination
//!   scatters out of them. Two copies, the second of which reads from the processor's caches;
//! - **[`shared`] memory**: what the source registered as shared is lent read-only to a trusted
//!   role, and the destination copies it once.
//!
//! Both are set up by a [`handover`]: a Unix socket whose random name and whose token travelled
//! over the mutually authenticated control connection. [`host`] tells which peers are worth asking.
//!
//! Two agents that share a host go like this; who listens does not matter to the direction of the
//! bytes:
//!
//! ```text
//! listening agent                                connecting agent
//!   HostIdentity (in hello)  --control-->           boot ids equal?
//!   expect(token)            <--control-->          the same token
//!   connection().await       <--unix socket--       connect(address, token).await
//!   offer_producer(shape)    --memfd, SCM_RIGHTS->  accept_consumer(limits)
//!   Producer                 ==slots==>             Consumer
//! ```
//!
//! What the peer writes into shared memory is never trusted: see [`ring`].

pub mod handover;
pub mod host;
pub mod ring;
pub mod shared;

mod doorbell;
mod gate;
mod memfd;
mod memory;

pub use gate::{Fence, drive};

/// Bytes that nobody can guess, from the operating system.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes)
}

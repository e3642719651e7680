//! The half of rings that does I/O.

mod doorbell;
mod drive;
mod fence;
pub mod handover;
mod link;
mod memfd;
mod receive;
mod send;
pub mod staging;

pub use drive::{Driven, drive};
pub use fence::Fence;
pub use link::Ring;
pub use receive::RingIn;
pub use send::RingOut;

use super::name::SocketName;

/// Bytes that nobody can guess, from the operating system.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes)
}

impl SocketName {
    /// A name that nobody has.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self::of(u128::from_be_bytes(random()?)))
    }
}

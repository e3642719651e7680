//! The half of rings that does I/O.

mod doorbell;
mod drive;
pub(in crate::path) mod ends;
pub(crate) mod handover;
pub(in crate::path) mod link;
mod memfd;
mod receive;
pub(in crate::path) mod send;
pub(crate) mod slots;

pub use doorbell::Doorbell;
pub(crate) use drive::Driven;
pub use drive::drive;
pub(crate) use link::Ring;
pub use receive::RingIn;
pub use send::RingOut;

use super::{SocketName, Token};

/// Returns unguessable bytes from the operating system.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Makes a random, unused socket name.
///
/// # Errors
/// The operating system provides no randomness.
pub fn random_socket() -> std::io::Result<SocketName> {
    Ok(SocketName::of(u128::from_be_bytes(random()?)))
}

/// Makes a random token.
///
/// # Errors
/// The operating system provides no randomness.
pub fn random_token() -> std::io::Result<Token> {
    random().map(Token)
}

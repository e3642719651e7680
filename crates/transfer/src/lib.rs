//! Plans between KV-cache layouts, and the copies, leases and transports that carry them out.

pub mod plan;

#[cfg(feature = "quic")]
pub mod identity;
#[cfg(feature = "quic")]
pub mod transport;

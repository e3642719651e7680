//! Plans between KV-cache layouts, and the copies, leases and transports that carry them out.

#[cfg(feature = "quic")]
pub mod agent;
pub mod content;
#[cfg(feature = "host")]
pub mod copy;
pub mod ids;
pub mod lease;
#[cfg(feature = "host")]
pub mod memory;
pub mod moment;
pub mod plan;
pub mod ticket;
pub mod wire;

#[cfg(feature = "quic")]
pub mod identity;
#[cfg(feature = "quic")]
pub mod transport;

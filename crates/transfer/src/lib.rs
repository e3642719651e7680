//! Plans between KV-cache layouts, and the copies, leases and transports that carry them out.

pub mod content;
pub mod ids;
pub mod lease;
pub mod moment;
pub mod plan;
pub mod ticket;
pub mod wire;

#[cfg(feature = "host")]
pub mod copy;
#[cfg(feature = "host")]
pub mod memory;

#[cfg(feature = "quic")]
pub mod agent;
#[cfg(feature = "quic")]
pub mod identity;
#[cfg(feature = "quic")]
pub mod transport;

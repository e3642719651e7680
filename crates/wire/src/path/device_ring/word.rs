//! Messages about rings in device memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::path::ring;

/// A GPU's UUID, as the driver reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GpuId(pub [u8; 16]);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A message of the negotiation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Word {
    /// A ring can be fetched.
    Offer(Offer),
    /// The offered ring will not be fetched, because this agent's GPU, named here, cannot access it.
    Elsewhere(GpuId),
}

/// The place where a ring can be fetched, and its GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The GPU that holds the slots.
    pub gpu: GpuId,
    /// The size of a slot in bytes. The handover tells how many slots there are.
    pub slot_bytes: u32,
    /// The place where the ring can be fetched.
    pub fetch: ring::Word,
}

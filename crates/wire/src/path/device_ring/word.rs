//! What is said of rings in device memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::path::ring;

/// Which GPU: the driver's UUID.
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

/// What is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Word {
    /// A ring can be fetched.
    Offer(Offer),
    /// The ring that was offered will not be fetched: our GPU is another, and does not reach it.
    Elsewhere(GpuId),
}

/// Where a ring can be fetched, and where it lies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The GPU that its slots are on.
    pub gpu: GpuId,
    /// How many bytes each of them has: the handover says how many there are.
    pub slot_bytes: u32,
    /// Where to fetch it.
    pub fetch: ring::Word,
}

//! Rings in device memory on a connection: offering, fetching, sending and receiving.

use std::time::Duration;

use super::ends;
use crate::data::Receiver;
use crate::path::ring;
use crate::path::ring::carrier::RingOut;
use crate::path::ring::carrier::handover::{Caches, Expected};
use crate::path::ring::carrier::link::{Kind, NONSENSE, failed, fetch, guest, of_guest, over};
use transload_cuda::Gpu;
use transload_cuda::internal::shuttle::Slots;
use transload_plan::ids::AgentId;
use transload_wire::internal::device_ring::{GpuId, Offer, Word};
use transload_wire::internal::negotiation::{Ending, decode, encode};

/// Rings on one GPU.
#[derive(Clone)]
pub(super) struct OnGpu {
    pub(super) gpu: Gpu,
    pub(super) id: GpuId,
    pub(super) receiver: Receiver,
    pub(super) stall: Duration,
}

impl Kind for OnGpu {
    fn word(&self, fetch: ring::Word) -> Vec<u8> {
        encode(&Word::Offer(Offer { gpu: self.id, slot_bytes: Slots::OF_A_RING.bytes, fetch }))
    }

    /// The memory is allocated only when the peer has connected.
    async fn hand_over(self, expected: Expected) -> Result<RingOut, Ending> {
        let connection = guest(expected).await?;
        let offered = ends::offer(connection, &self.gpu, self.stall).await;
        offered.map_err(failed)
    }

    async fn receive(self, word: Vec<u8>, peer: AgentId) -> Result<Ending, Ending> {
        let Some(Word::Offer(offer)) = decode(&word) else {
            return Err(failed(NONSENSE));
        };
        let connection = fetch(&offer.fetch, Caches::OnDevice).await?;
        let (gpu, bytes) = (&self.gpu, offer.slot_bytes);
        let ring = ends::accept(connection, gpu, bytes, self.receiver, peer).await;
        Ok(over(ring.map_err(of_guest)?).await)
    }
}

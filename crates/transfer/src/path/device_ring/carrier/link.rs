//! Rings in device memory as an agent has them: offered, fetched, sent over and received from.

use std::sync::Arc;
use std::time::Duration;

use super::{OnGpu, ends};
use crate::data::{Outgoing, Receiver};
use crate::device::Gpu;
use crate::ids::AgentId;
use crate::path::carrier::{Link, Reporter};
use crate::path::device_ring::{GpuId, Offer, Word};
use crate::path::negotiation::{Ending, Order, decode, encode};
use crate::path::ring::carrier::RingOut;
use crate::path::ring::carrier::ends::Ends;
use crate::path::ring::carrier::handover::{self, Expected, Limits, Listener};
use crate::path::ring::carrier::link::{failed, guest, of_guest, offer, over};

/// The rings of one connection.
pub(super) struct DeviceLink {
    listener: Arc<Listener>,
    gpu: Gpu,
    id: GpuId,
    receiver: Receiver,
    stall: Duration,
    ends: Ends,
}

impl DeviceLink {
    pub(super) fn new(carrier: &OnGpu, reporter: Reporter) -> Self {
        Self {
            listener: carrier.listener.clone(),
            gpu: carrier.gpu.clone(),
            id: carrier.id,
            receiver: carrier.host.receiver.clone(),
            stall: carrier.host.endpoints.options().stall_timeout,
            ends: Ends::new(reporter),
        }
    }
}

impl Link for DeviceLink {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        let gpu = self.gpu.clone();
        match order {
            Order::Offer { .. } => match offer(&self.listener) {
                Ok((expected, fetch)) => {
                    let word = Word::Offer(Offer {
                        gpu: self.id,
                        slot_bytes: ends::SLOTS.bytes,
                        fetch,
                    });
                    let handing = hand_over(expected, gpu, self.stall);
                    self.ends.hand_over(encode(&word), handing);
                }
                Err(why) => self.ends.not_offered(why),
            },
            Order::Meet { word } => {
                let Some(Word::Offer(offer)) = decode(&word) else {
                    return;
                };
                let receiver = self.receiver.clone();
                self.ends
                    .receive(receive(offer, gpu, receiver, peer.clone()));
            }
        }
    }

    fn carry(&mut self, outgoing: &Outgoing) {
        self.ends.carry(outgoing);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.ends.forget(outgoing);
    }

    fn is_torn(&mut self) -> bool {
        self.ends.is_torn()
    }
}

/// Waits until the peer fetches the ring. Its memory is made only then.
async fn hand_over(expected: Expected, gpu: Gpu, stall: Duration) -> Result<RingOut, Ending> {
    let connection = guest(expected).await?;
    ends::offer(connection, &gpu, stall).await.map_err(failed)
}

/// Fetches a ring that the peer has offered and receives from it, as long as it lasts or this task does.
async fn receive(
    offer: Offer,
    gpu: Gpu,
    receiver: Receiver,
    peer: AgentId,
) -> Result<Ending, Ending> {
    let Offer {
        fetch, slot_bytes, ..
    } = offer;
    let connection = handover::connect(&fetch.socket, &fetch.token, &Limits::default()).await;
    let connection = connection.map_err(of_guest)?;
    let ring = ends::accept(connection, &gpu, slot_bytes, receiver, peer).await;
    Ok(over(ring.map_err(of_guest)?).await)
}

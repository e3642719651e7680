//! Rings in device memory as an agent has them: offered, fetched, sent over and received from.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{OnGpu, ends};
use crate::data::{Outgoing, Receiver};
use crate::device::Gpu;
use crate::ids::AgentId;
use crate::path::carrier::{Link, Reporter};
use crate::path::device_ring::{GpuId, Offer, Word};
use crate::path::negotiation::{Ending, Order, Way, decode, encode};
use crate::path::ring::carrier::RingOut;
use crate::path::ring::carrier::handover::{self, Expected, Limits, Listener};
use crate::path::ring::carrier::link::{failed, guest, of_guest, offer};
use crate::path::ring::carrier::staging::RingError;
use crate::path::sending::Sending;

/// The rings of one connection.
pub(super) struct DeviceLink {
    listener: Arc<Listener>,
    gpu: Gpu,
    id: GpuId,
    receiver: Receiver,
    stall: Duration,
    reporter: Reporter,
    sending: Arc<Sending<RingOut>>,
    handing: Option<JoinHandle<()>>,
    receiving: Option<JoinHandle<()>>,
}

impl DeviceLink {
    pub(super) fn new(carrier: &OnGpu, reporter: Reporter) -> Self {
        Self {
            listener: carrier.listener.clone(),
            gpu: carrier.gpu.clone(),
            id: carrier.id,
            receiver: carrier.host.receiver.clone(),
            stall: carrier.host.endpoints.options().stall_timeout,
            reporter,
            sending: Arc::new(Sending::new(Some(1))),
            handing: None,
            receiving: None,
        }
    }
}

impl Link for DeviceLink {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        let reporter = self.reporter.clone();
        match order {
            Order::Offer { .. } => match offer(&self.listener) {
                Ok((expected, fetch)) => {
                    let (gpu, stall, sending) =
                        (self.gpu.clone(), self.stall, self.sending.clone());
                    let handing = async move {
                        match hand_over(expected, gpu, stall).await {
                            Ok(ring) => drop(sending.add(ring)),
                            Err(ending) => reporter.ended(Way::Out, ending),
                        }
                    };
                    self.handing = Some(tokio::spawn(handing));
                    self.reporter.offered(encode(&Word::Offer(Offer {
                        gpu: self.id,
                        slot_bytes: ends::SLOTS.bytes,
                        fetch,
                    })));
                }
                Err(why) => reporter.ended(Way::Out, Ending::Failed(why)),
            },
            Order::Meet { word } => {
                let Some(Word::Offer(offer)) = decode(&word) else {
                    return;
                };
                let (gpu, receiver) = (self.gpu.clone(), self.receiver.clone());
                let peer = peer.clone();
                let receiving = async move {
                    let (Ok(ending) | Err(ending)) = receive(offer, gpu, receiver, peer).await;
                    reporter.ended(Way::In, ending);
                };
                self.receiving = Some(tokio::spawn(receiving));
            }
        }
    }

    fn carry(&mut self, outgoing: &Outgoing) {
        self.sending.carry(outgoing);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.sending.forget(outgoing);
    }

    fn is_torn(&mut self) -> bool {
        self.sending.remove(RingOut::is_closed)
    }
}

impl Drop for DeviceLink {
    fn drop(&mut self) {
        for task in self.handing.iter().chain(&self.receiving) {
            task.abort();
        }
        self.sending.close();
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
    Ok(match ring.map_err(of_guest)?.closed().await {
        RingError::Panicked => Ending::Panicked,
        why => failed(why),
    })
}

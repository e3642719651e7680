//! Opens the carriers of an agent's paths, and admits the streams that they bring.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::event::DataEvent;
use super::transfers::Memories;
use crate::data::{Admitted, Arrivals, DataOptions, ReceiveError, Receiver, Region};
use crate::path::carrier::{Carrier, Host, Provider};
use crate::quic::Endpoints;
use transload_plan::ids::AgentId;
use transload_wire::Path;
use transload_wire::internal::stream::{StreamHeader, StreamTrailer};

pub(super) type Carriers = BTreeMap<Path, Box<dyn Carrier>>;

pub(super) fn open(
    providers: &[Box<dyn Provider>],
    endpoints: &Endpoints,
    mut data: DataOptions,
    memories: &Memories,
    events: mpsc::UnboundedSender<DataEvent>,
) -> Carriers {
    // A peer that opens no more streams than its lanes allow is never rejected. It can have twice the lanes, if both
    // sides have dialled at the same time.
    let quic = endpoints.options();
    let allowed = 2 * usize::from(quic.lanes) * quic.max_streams as usize;
    data.streams_of_peer = data.streams_of_peer.max(allowed);
    data.streams_of_service = data.streams_of_service.max(allowed);
    let host = Host {
        endpoints: endpoints.clone(),
        receiver: Receiver::new(Admission(events), &data),
        data,
        on_devices: one_of_each_device(memories),
    };
    let carriers = providers.iter().filter_map(|provider| {
        let path = provider.path();
        match provider.open(host.clone()) {
            Ok(carrier) => Some((path, carrier)),
            Err(error) => {
                tracing::warn!(%path, %error, "a path cannot be had: peers are reached by others");
                None
            }
        }
    });
    carriers.collect()
}

fn one_of_each_device(memories: &Memories) -> Arc<[Region]> {
    let regions = memories.values().flat_map(|groups| groups.iter());
    let of_device = regions.filter_map(|region| Some((region.device()?, region.clone())));
    let of_devices: BTreeMap<u32, Region> = of_device.collect();
    of_devices.into_values().collect()
}

/// Asks the driver which streams to admit, on the threads that move bytes.
struct Admission(mpsc::UnboundedSender<DataEvent>);

impl Admission {
    fn tell(&self, event: DataEvent) {
        // An error means that the driver has stopped, and the transfers with it.
        let _ = self.0.send(event);
    }
}

impl Arrivals for Admission {
    fn admit(&self, peer: &AgentId, header: &StreamHeader) -> Admitted {
        let (answer, admitted) = oneshot::channel();
        self.tell(DataEvent::Admit { agent: peer.clone(), header: *header, answer });
        Box::pin(async { admitted.await.ok() })
    }

    fn arrived(&self, header: &StreamHeader, trailer: &StreamTrailer, crc: u32) {
        self.tell(DataEvent::Landed { header: *header, trailer: *trailer, crc });
    }

    fn failed(&self, header: &StreamHeader, error: ReceiveError) {
        self.tell(DataEvent::StreamFailed { transfer: header.transfer, why: error.to_string() });
    }
}

//! Opening the carriers of an agent's paths.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use super::arrivals::Admission;
use super::event::DataEvent;
use crate::data::{DataOptions, Receiver};
use crate::path::Path;
use crate::path::carrier::{Carrier, Host, Provider};
use crate::quic::Endpoints;

/// The carriers that there are on this machine.
pub(super) type Carriers = BTreeMap<Path, Box<dyn Carrier>>;

/// Opens what paths there are on this machine.
pub(super) fn open(
    providers: &[Box<dyn Provider>],
    endpoints: &Endpoints,
    mut data: DataOptions,
    events: mpsc::UnboundedSender<DataEvent>,
) -> Carriers {
    // A peer that opens no more streams than its lanes allow is never turned away. It may have twice the lanes, where both
    // sides have dialled at once.
    let quic = endpoints.options();
    let allowed = 2 * usize::from(quic.lanes) * quic.max_streams as usize;
    data.streams_of_peer = data.streams_of_peer.max(allowed);
    data.streams_of_service = data.streams_of_service.max(allowed);
    let host = Host {
        endpoints: endpoints.clone(),
        receiver: Receiver::new(Admission::new(events), &data),
        data,
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

//! Which streams may land: asked on the threads that move bytes, answered by the driver.

use tokio::sync::{mpsc, oneshot};

use super::event::DataEvent;
use crate::data::{Admitted, Arrivals, ReceiveError};
use crate::ids::AgentId;
use crate::wire::stream::{StreamHeader, StreamTrailer};

/// Asks the driver which streams may land.
pub(super) struct Admission {
    events: mpsc::UnboundedSender<DataEvent>,
}

impl Admission {
    pub(super) fn new(events: mpsc::UnboundedSender<DataEvent>) -> Self {
        Self { events }
    }

    fn tell(&self, event: DataEvent) {
        // The driver is gone where this fails, and the transfers with it.
        let _ = self.events.send(event);
    }
}

impl Arrivals for Admission {
    fn admit(&self, peer: &AgentId, header: &StreamHeader) -> Admitted {
        let (answer, admitted) = oneshot::channel();
        self.tell(DataEvent::Admit {
            agent: peer.clone(),
            header: *header,
            answer,
        });
        Box::pin(async { admitted.await.ok().flatten() })
    }

    fn arrived(&self, header: &StreamHeader, trailer: &StreamTrailer, crc: u32) {
        self.tell(DataEvent::Landed {
            header: *header,
            trailer: *trailer,
            crc,
        });
    }

    fn failed(&self, header: &StreamHeader, error: ReceiveError) {
        self.tell(DataEvent::StreamFailed {
            transfer: header.transfer,
            why: error.to_string(),
        });
    }
}

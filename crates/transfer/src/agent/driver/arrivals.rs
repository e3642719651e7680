//! Which streams may land: asked on the threads that move bytes, answered by the driver.

use tokio::sync::{mpsc, oneshot};

use crate::agent::event::Event;
use crate::data::{Admitted, Arrivals, ReceiveError};
use crate::ids::AgentId;
use crate::wire::stream::{StreamHeader, StreamTrailer};

/// Asks the driver which streams may land.
pub(in crate::agent) struct Admission {
    moved: mpsc::UnboundedSender<Event>,
}

impl Admission {
    pub(super) fn new(moved: mpsc::UnboundedSender<Event>) -> Self {
        Self { moved }
    }

    fn tell(&self, event: Event) {
        // The driver is gone where this fails, and the transfers with it.
        let _ = self.moved.send(event);
    }
}

impl Arrivals for Admission {
    fn admit(&self, peer: &AgentId, header: &StreamHeader) -> Admitted {
        let (answer, admitted) = oneshot::channel();
        self.tell(Event::Admit {
            agent: peer.clone(),
            header: *header,
            answer,
        });
        Box::pin(async { admitted.await.ok().flatten() })
    }

    fn arrived(&self, header: &StreamHeader, trailer: &StreamTrailer, crc: u32) {
        self.tell(Event::Landed {
            header: *header,
            trailer: *trailer,
            crc,
        });
    }

    fn failed(&self, header: &StreamHeader, error: ReceiveError) {
        self.tell(Event::StreamFailed {
            transfer: header.transfer,
            why: error.to_string(),
        });
    }
}

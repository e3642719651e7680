//! Transfers, from the moment when something is to be read or received until that is fenced or over.

use tokio::sync::{mpsc, oneshot};

use super::Driver;
use crate::agent::Blocks;
use crate::agent::event::{Event, Sending};
use crate::agent::flows::{Moving, Under};
use crate::data::SendError;
use crate::data::{Landing, SendEvent, SendEvents};
use crate::ids::{AgentId, TransferId};
use crate::path::negotiation::{Ending, Report, Way};
use crate::plan::Side;
use crate::wire::stream::StreamHeader;
use crate::wire::{Flow, Path};

impl Driver {
    /// A stream wants in. One that gets no answer is turned away.
    pub(super) fn admit(
        &mut self,
        agent: &AgentId,
        header: &StreamHeader,
        answer: oneshot::Sender<Option<Landing>>,
    ) {
        let now = self.now();
        if let Err(error) = self.machine.admit(now, agent, header) {
            tracing::debug!(%agent, %error, "a data stream was turned away");
            return;
        }
        let under = self.under_way.get_mut(&header.transfer);
        match under.map(|under| &mut under.moving) {
            Some(Moving::In(landing)) => {
                self.counters.moves(header.transfer);
                // The stream is gone where nobody waits.
                let _ = answer.send(Some(landing.clone()));
            }
            Some(Moving::Binding(binding)) => binding.admit(answer),
            _ => {}
        }
    }

    /// Begins to read a route, or to receive it, unless it is over already.
    pub(super) fn begin(&mut self, flow: Flow, side: Side) {
        if let Some(plan) = self.machine.plan(flow.transfer).cloned() {
            self.note_use(&flow);
            self.counters.route_begun(&flow, side == Side::Source);
            self.bind(flow, side, plan);
        }
    }

    /// Has somebody tell of the streams of a transfer.
    pub(super) fn report(&mut self, transfer: TransferId, events: SendEvents) {
        if let Some(under) = self.under_way.get(&transfer) {
            let id = (transfer, under.number);
            let reporting = report(id, events, self.moved.clone());
            self.endpoints.spawn_control(reporting);
        }
    }

    /// Whether it is this transfer that is under way: it may be over by now, and another one have taken the asker's number.
    pub(super) fn is_under_way(&self, transfer: TransferId, number: u64) -> bool {
        let under = self.under_way.get(&transfer);
        under.is_some_and(|under| under.number == number)
    }

    /// Something has become of a stream that leaves.
    pub(super) fn sending(&mut self, transfer: TransferId, number: u64, sending: Sending) {
        if !self.is_under_way(transfer, number) {
            return;
        }
        match sending {
            Sending::Written { bytes } => {
                let now = self.now();
                self.machine.stream_sent(now, transfer, bytes);
            }
            Sending::Failed { why, path } => {
                if let Some(ending) = path {
                    self.path_failed(transfer, ending);
                }
                // It may have gone over what was there before.
                self.failed(transfer, why);
            }
        }
    }

    pub(super) fn blocks(&self, flow: &Flow) -> Result<Blocks, String> {
        let blocks = self.machine.blocks(flow.blocks);
        blocks
            .cloned()
            .ok_or_else(|| "its blocks are gone".to_owned())
    }

    pub(super) fn failed(&mut self, transfer: TransferId, why: String) {
        let why = match self.under_way.get(&transfer) {
            Some(under) => format!(
                "{why} ({} of {} bytes had moved)",
                under.moved(),
                under.flow.bytes
            ),
            None => why,
        };
        tracing::info!(%transfer, why, "an attempt has failed here");
        let now = self.now();
        self.machine.stream_failed(now, transfer, why);
    }

    pub(super) fn readable(&mut self, transfer: TransferId, layer: u32, tokens: u64) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        match &under.moving {
            Moving::Binding(_) => under.flow.ready.push((layer, tokens)),
            Moving::Out(outgoing) => {
                if let Some(range) = under.open_layer(layer, tokens) {
                    outgoing.open(range);
                }
            }
            _ => {}
        }
    }

    pub(super) fn all_readable(&mut self, transfer: TransferId) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        under.flow.all_readable = true;
        if let Moving::Out(outgoing) = &under.moving {
            outgoing.open_all();
        }
    }

    /// The path of a transfer is known: if it is outgoing, its streams may leave.
    pub(super) fn carry(&mut self, transfer: TransferId, path: Path) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        under.path = Some(path);
        let Under { flow, moving, .. } = under;
        if let Moving::Binding(_) = moving {
            // It goes on from here when it is bound.
            return;
        }
        let Moving::Out(outgoing) = moving else {
            return;
        };
        let (conn, outgoing) = (flow.conn, outgoing.clone());
        let connection = self.connections.get_mut(&conn);
        match connection.and_then(|connection| connection.links.get_mut(&path)) {
            Some(link) => link.carry(&outgoing),
            None => self.failed(transfer, format!("there is no path {path} here")),
        }
    }

    /// A transfer has failed by its path: so have all that take the same, if it is still the one that is sent over.
    fn path_failed(&mut self, transfer: TransferId, ending: Ending) {
        let Some(under) = self.under_way.get(&transfer) else {
            return;
        };
        let Some((conn, path)) = under.path.map(|path| (under.flow.conn, path)) else {
            return;
        };
        let connection = self.connections.get_mut(&conn);
        let link = connection.and_then(|connection| connection.links.get_mut(&path));
        if link.is_some_and(|link| link.is_torn()) {
            let (now, way) = (self.now(), Way::Out);
            let report = Report::Ended { way, ending };
            self.machine.path_reported(now, conn, path, report);
        }
    }

    pub(super) fn forget(&mut self, transfer: TransferId) -> Option<Under> {
        let under = self.under_way.remove(&transfer)?;
        if let Some(connection) = self.connections.get_mut(&under.flow.conn)
            && let Moving::Out(outgoing) = &under.moving
        {
            let links = connection.links.values_mut();
            links.for_each(|link| link.forget(outgoing));
        }
        Some(under)
    }

    pub(super) fn fence(&mut self, transfer: TransferId) {
        let moved = self.moved.clone();
        let under = self.forget(transfer);
        let touching = under.map(|under| under.touching()).unwrap_or_default();
        self.fencing.insert(transfer, touching.clone());
        self.endpoints.spawn_control(async move {
            touching.quiet().await;
            // The driver is gone where this fails.
            let _ = moved.send(Event::Fenced { transfer });
        });
    }
}

/// Tells the driver what becomes of a transfer's streams. A path that fails is watched by itself, too.
async fn report(
    (transfer, number): (TransferId, u64),
    mut events: SendEvents,
    moved: mpsc::UnboundedSender<Event>,
) {
    let of_this = |sending| Event::Sending {
        transfer,
        number,
        sending,
    };
    while let Some(event) = events.next().await {
        let event = match event {
            SendEvent::Written { bytes, .. } => of_this(Sending::Written { bytes }),
            SendEvent::Failed { error, .. } => {
                let why = error.to_string();
                let path = match error {
                    SendError::Panicked => Some(Ending::Panicked),
                    SendError::Path(_) => Some(Ending::Failed(why.clone())),
                    _ => None,
                };
                of_this(Sending::Failed { why, path })
            }
        };
        if moved.send(event).is_err() {
            return;
        }
    }
}

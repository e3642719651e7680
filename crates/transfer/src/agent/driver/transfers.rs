//! Transfers under way: from the moment when a route is to be read or received until it is over, or fenced.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::background::Background;
use super::event::{DataEvent, Sending};
use crate::agent::flows::{self, Binding, Bound, Memories, Moving, Touching, Under};
use crate::agent::metrics::{Chunks, Counters};
use crate::agent::request::Blocks;
use crate::data::{Landing, Outgoing, SendError, SendEvent, SendEvents};
use crate::ids::{Rank, TransferId};
use crate::path::negotiation::Ending;
use crate::plan::{Plan, Side};
use crate::wire::{ConnId, Flow, Path, Planned};

/// All transfers of an agent, whichever end of them is here.
pub(super) struct Transfers {
    memories: Memories,
    background: Background,
    events: mpsc::UnboundedSender<DataEvent>,
    under_way: HashMap<TransferId, Under>,
    /// Those that are being fenced.
    fencing: HashMap<TransferId, Touching>,
    /// The number of the next one that begins, which tells it from any other.
    next_number: u64,
}

impl Transfers {
    pub(super) fn new(
        memories: Memories,
        background: Background,
        events: mpsc::UnboundedSender<DataEvent>,
    ) -> Self {
        Self {
            memories,
            background,
            events,
            under_way: HashMap::new(),
            fencing: HashMap::new(),
            next_number: 0,
        }
    }

    /// The ranks whose memory is here.
    pub(super) fn ranks(&self) -> Vec<Rank> {
        self.memories.keys().copied().collect()
    }

    /// Whether nothing touches any block, but for so many that memory is not done with.
    pub(super) fn are_over(&self, stalled: usize) -> bool {
        self.under_way.is_empty() && self.fencing.len() <= stalled
    }

    /// Begins to bind a route that is to be read, or received.
    pub(super) fn begin(
        &mut self,
        flow: Flow,
        side: Side,
        plan: Arc<Planned<Plan>>,
        blocks: Blocks,
    ) {
        let transfer = flow.transfer;
        let memory = self.memories.get(&flow.rank).cloned();
        let of = flow.clone();
        let binding = move || {
            let memory = memory.ok_or_else(|| format!("rank {} has no memory here", of.rank))?;
            flows::route(&of, &plan.plan, side, &blocks, &memory)
        };
        let number = self.next_number;
        self.next_number += 1;
        let task = self.background.run(binding, move |bound| DataEvent::Bound {
            transfer,
            number,
            bound,
        });
        let under = Under {
            number,
            path: flow.path,
            flow,
            moving: Moving::Binding(Binding {
                side,
                admitted: Vec::new(),
                task: task.abort_handle(),
            }),
            seen: 0,
            chunks: Chunks::default(),
        };
        self.under_way.insert(transfer, under);
    }

    /// Has a transfer go on whose route is bound. Tells the path to carry it over, where that is known already; or why it
    /// cannot go on.
    pub(super) fn bound(
        &mut self,
        transfer: TransferId,
        number: u64,
        bound: Bound,
        counters: &mut Counters,
    ) -> Result<Option<Path>, String> {
        let under = self.under_way.get_mut(&transfer);
        let Some(under) = under.filter(|under| under.number == number) else {
            return Ok(None);
        };
        let Moving::Binding(binding) = &mut under.moving else {
            return Ok(None);
        };
        let (bytes, chunks) = bound?;
        under.chunks = chunks;
        match binding.side {
            Side::Source => {
                let lanes = usize::from(under.flow.lanes.max(1));
                let (outgoing, streams) = Outgoing::new(transfer, under.flow.nonce, bytes, lanes);
                if under.flow.all_readable {
                    outgoing.open_all();
                }
                under.moving = Moving::Out(outgoing);
                tokio::spawn(report((transfer, number), streams, self.events.clone()));
                for (layer, tokens) in std::mem::take(&mut under.flow.ready) {
                    under.open_layer(layer, tokens);
                }
            }
            Side::Destination => {
                let landing = Landing::new(bytes);
                for answer in std::mem::take(&mut binding.admitted) {
                    counters.moves(transfer);
                    // The stream is gone where nobody waits.
                    let _ = answer.send(Some(landing.clone()));
                }
                under.moving = Moving::In(landing);
            }
        }
        Ok(under.path)
    }

    /// Lets a stream in. One that gets no answer is turned away.
    pub(super) fn admit(
        &mut self,
        transfer: TransferId,
        answer: oneshot::Sender<Option<Landing>>,
        counters: &mut Counters,
    ) {
        let under = self.under_way.get_mut(&transfer);
        match under.map(|under| &mut under.moving) {
            Some(Moving::In(landing)) => {
                counters.moves(transfer);
                // The stream is gone where nobody waits.
                let _ = answer.send(Some(landing.clone()));
            }
            Some(Moving::Binding(binding)) => binding.admitted.push(answer),
            _ => {}
        }
    }

    /// Whether it is this transfer that is under way: it may be over by now, and another one have taken the asker's number.
    pub(super) fn is_under_way(&self, transfer: TransferId, number: u64) -> bool {
        let under = self.under_way.get(&transfer);
        under.is_some_and(|under| under.number == number)
    }

    /// Has the first `tokens` tokens of a layer read, or that kept in mind until the route is bound.
    pub(super) fn readable(&mut self, transfer: TransferId, layer: u32, tokens: u64) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            match under.moving {
                Moving::Binding(_) => under.flow.ready.push((layer, tokens)),
                _ => under.open_layer(layer, tokens),
            }
        }
    }

    /// Has everything read.
    pub(super) fn all_readable(&mut self, transfer: TransferId) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            under.flow.all_readable = true;
            if let Moving::Out(outgoing) = &under.moving {
                outgoing.open_all();
            }
        }
    }

    /// Notes how the bytes of a transfer travel.
    pub(super) fn set_path(&mut self, transfer: TransferId, path: Path) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            under.path = Some(path);
        }
    }

    /// How the bytes of a transfer travel, once that is known.
    pub(super) fn path(&self, transfer: TransferId) -> Option<(ConnId, Path)> {
        let under = self.under_way.get(&transfer)?;
        Some((under.flow.conn, under.path?))
    }

    /// What is to be carried, if it leaves from here and is bound.
    pub(super) fn outgoing(&self, transfer: TransferId) -> Option<(ConnId, &Outgoing)> {
        let under = self.under_way.get(&transfer)?;
        match &under.moving {
            Moving::Out(outgoing) => Some((under.flow.conn, outgoing)),
            _ => None,
        }
    }

    /// How far it came, in words for whoever reads why it has failed.
    pub(super) fn how_far(&self, transfer: TransferId) -> Option<String> {
        let under = self.under_way.get(&transfer)?;
        let (moved, bytes) = (under.moved(), under.flow.bytes);
        Some(format!("({moved} of {bytes} bytes had moved)"))
    }

    /// Those that have moved since they were last asked, or that wait for their turn; and how far they are.
    pub(super) fn progress(&mut self) -> impl Iterator<Item = (TransferId, u64)> {
        let under_way = self.under_way.iter_mut();
        under_way.filter_map(|(transfer, under)| {
            let moved = under.moved();
            let before = std::mem::replace(&mut under.seen, moved);
            (moved != before || under.is_queued()).then_some((*transfer, moved))
        })
    }

    /// Forgets a transfer that is over.
    pub(super) fn finish(&mut self, transfer: TransferId) -> Option<Under> {
        self.under_way.remove(&transfer)
    }

    pub(super) fn fence(&mut self, transfer: TransferId) {
        let events = self.events.clone();
        let under = self.finish(transfer);
        let touching = under.map(|under| under.touching()).unwrap_or_default();
        self.fencing.insert(transfer, touching.clone());
        tokio::spawn(async move {
            touching.quiet().await;
            // The driver is gone where this fails.
            let _ = events.send(DataEvent::Fenced { transfer });
        });
    }

    /// A transfer was fenced.
    pub(super) fn fenced(&mut self, transfer: TransferId) {
        self.fencing.remove(&transfer);
    }

    /// Gives all of them up: whatever touches blocks, to be waited for.
    pub(super) fn abandon(&mut self) -> Vec<Touching> {
        let under_way = self.under_way.drain();
        let mut touching: Vec<_> = under_way.map(|(_, under)| under.touching()).collect();
        touching.extend(self.fencing.drain().map(|(_, touching)| touching));
        touching
    }
}

/// Tells the driver what becomes of a transfer's streams. A path that fails is watched by itself, too.
async fn report(
    (transfer, number): (TransferId, u64),
    mut streams: SendEvents,
    events: mpsc::UnboundedSender<DataEvent>,
) {
    let of_this = |sending| DataEvent::Sending {
        transfer,
        number,
        sending,
    };
    while let Some(event) = streams.next().await {
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
        if events.send(event).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

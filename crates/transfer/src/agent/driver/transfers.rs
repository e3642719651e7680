//! Transfers in progress: from the order to read or receive a route until it is over, or fenced.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::background::Background;
use super::bound::{BoundRoute, Unbound, bind};
use super::event::DataEvent;
use crate::agent::metrics::{Chunks, Counters, RouteUnderWay};
use crate::agent::request::Blocks;
use crate::data::{Fence, Landing, Outgoing, Region};
use transload_layout::{Rank, Side};
use transload_plan::Plan;
use transload_plan::ids::TransferId;
use transload_wire::{ConnId, Flow, Path, Planned};

/// All transfers of an agent, in both directions.
pub(super) struct Transfers {
    memories: Memories,
    /// Binds routes. Each rank has its own queue, since the device of one may stall.
    background: HashMap<Rank, Background>,
    events: mpsc::UnboundedSender<DataEvent>,
    under_way: HashMap<TransferId, UnderWay>,
    fencing: HashMap<TransferId, Fence>,
    /// Transfers whose memory was stalled at the last check.
    stalled: HashSet<TransferId>,
    /// The number of the next transfer. Unlike transfer ids it is never reused.
    next_number: u64,
}

/// The registered memory: for each rank, one region for each group of this agent's document.
pub(in crate::agent) type Memories = BTreeMap<Rank, Arc<[Region]>>;

/// The state of one transfer.
#[derive(Debug)]
enum Moving {
    /// The route is being bound to memory.
    Binding(Binding),
    Out(Outgoing),
    In(Landing),
}

/// A route that is being bound, and the admitted streams that wait for it. Dropping this cancels binding that has not
/// begun.
#[derive(Debug)]
struct Binding {
    admitted: Vec<oneshot::Sender<Landing>>,
    task: AbortHandle,
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A transfer, from the order to begin until its fence.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// The driver's own number. Peers choose the ids of transfers, and may reuse one.
    number: u64,
    flow: Flow,
    side: Side,
    moving: Moving,
    counted: RouteUnderWay,
    /// The path, once it is known.
    path: Option<Path>,
    /// The number of bytes that had moved at the last check.
    seen: u64,
    chunks: Chunks,
}

impl Transfers {
    pub(super) fn new(memories: Memories, events: mpsc::UnboundedSender<DataEvent>) -> Self {
        Self {
            memories,
            background: HashMap::new(),
            events,
            under_way: HashMap::new(),
            fencing: HashMap::new(),
            stalled: HashSet::new(),
            next_number: 0,
        }
    }

    pub(super) fn ranks(&self) -> Vec<Rank> {
        self.memories.keys().copied().collect()
    }

    /// Sends an event when the memory of any rank is lost.
    pub(super) fn watch_memories(&self) {
        for mut lost in self.memories.values().flat_map(|of| of.iter()).filter_map(Region::lost) {
            let events = self.events.clone();
            tokio::spawn(async move {
                if lost.wait_for(|lost| *lost).await.is_ok() {
                    // The driver is gone where this fails.
                    let _ = events.send(DataEvent::MemoryLost);
                }
            });
        }
    }

    /// Returns the ranks whose memory is lost.
    pub(super) fn lost(&self) -> Vec<Rank> {
        let is_lost = |region: &Region| region.lost().is_some_and(|lost| *lost.borrow());
        let lost = self.memories.iter().filter(|(_, of)| of.iter().any(is_lost));
        lost.map(|(rank, _)| *rank).collect()
    }

    /// Returns whether no transfer touches any block, except for `stalled` transfers that memory does not finish.
    pub(super) fn are_over(&self, stalled: usize) -> bool {
        self.under_way.is_empty() && self.fencing.len() <= stalled
    }

    /// Begins to bind a route that is to be read or received.
    pub(super) fn begin(
        &mut self,
        flow: Flow,
        side: Side,
        plan: Arc<Planned<Plan>>,
        blocks: Option<Blocks>,
        counters: &mut Counters,
    ) {
        let transfer = flow.transfer;
        let memory = self.memories.get(&flow.rank).cloned();
        let of = flow.clone();
        let binding = move || {
            let memory = memory.ok_or_else(|| format!("rank {} has no memory here", of.rank))?;
            let blocks = blocks.ok_or("its blocks are gone")?;
            bind(&of, &plan.plan, side, &blocks, &memory)
        };
        let number = self.next_number;
        self.next_number += 1;
        let bound = move |bound| DataEvent::Bound { transfer, number, bound };
        let task = self.background(flow.rank).run(binding, bound);
        let under = UnderWay {
            number,
            path: flow.path,
            counted: counters.route_begun(&flow, side),
            flow,
            side,
            moving: Moving::Binding(Binding { admitted: Vec::new(), task: task.abort_handle() }),
            seen: 0,
            chunks: Chunks::default(),
        };
        self.under_way.insert(transfer, under);
    }

    fn background(&mut self, rank: Rank) -> &Background {
        let of_rank = self.background.entry(rank);
        of_rank.or_insert_with(|| Background::new(self.events.clone()))
    }

    /// Continues a transfer whose route is bound. Returns the path to carry it over, if that is known already. An error
    /// says why the transfer cannot continue.
    pub(super) fn bound(
        &mut self,
        transfer: TransferId,
        number: u64,
        bound: BoundRoute,
        counters: &mut Counters,
    ) -> Result<Option<Path>, Unbound> {
        let under = self.under_way.get_mut(&transfer);
        let Some(under) = under.filter(|under| under.number == number) else {
            return Ok(None);
        };
        let Moving::Binding(binding) = &mut under.moving else {
            return Ok(None);
        };
        let (bytes, chunks) = bound?;
        under.chunks = chunks;
        match under.side {
            Side::Source => {
                let lanes = usize::from(under.flow.lanes.max(1));
                let (outgoing, mut streams) = Outgoing::new(transfer, under.flow.nonce, bytes, lanes);
                if under.flow.all_readable {
                    outgoing.open_all();
                }
                under.moving = Moving::Out(outgoing);
                let events = self.events.clone();
                tokio::spawn(async move {
                    while let Some(event) = streams.next().await {
                        let event = DataEvent::Sending { transfer, number, event };
                        if events.send(event).is_err() {
                            return;
                        }
                    }
                });
                for (layer, tokens) in std::mem::take(&mut under.flow.ready) {
                    under.open_layer(layer, tokens);
                }
            }
            Side::Destination => {
                let landing = Landing::new(bytes);
                for answer in std::mem::take(&mut binding.admitted) {
                    counters.moves(&mut under.counted);
                    // An error means that the stream is gone.
                    let _ = answer.send(landing.clone());
                }
                under.moving = Moving::In(landing);
            }
        }
        Ok(under.path)
    }

    /// Admits a stream. A stream whose `answer` is dropped is rejected.
    pub(super) fn admit(&mut self, transfer: TransferId, answer: oneshot::Sender<Landing>, counters: &mut Counters) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        match &mut under.moving {
            Moving::In(landing) => {
                counters.moves(&mut under.counted);
                // An error means that the stream is gone.
                let _ = answer.send(landing.clone());
            }
            Moving::Binding(binding) => binding.admitted.push(answer),
            Moving::Out(_) => {}
        }
    }

    /// Returns whether this very transfer is in progress. Another one may have reused its id.
    pub(super) fn is_under_way(&self, transfer: TransferId, number: u64) -> bool {
        let under = self.under_way.get(&transfer);
        under.is_some_and(|under| under.number == number)
    }

    /// Allows the first `tokens` tokens of a layer to be read, now or once the route is bound.
    pub(super) fn readable(&mut self, transfer: TransferId, layer: u32, tokens: u64) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            match under.moving {
                Moving::Binding(_) => under.flow.ready.push((layer, tokens)),
                _ => under.open_layer(layer, tokens),
            }
        }
    }

    pub(super) fn all_readable(&mut self, transfer: TransferId) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            under.flow.all_readable = true;
            if let Moving::Out(outgoing) = &under.moving {
                outgoing.open_all();
            }
        }
    }

    pub(super) fn set_path(&mut self, transfer: TransferId, path: Path) {
        if let Some(under) = self.under_way.get_mut(&transfer) {
            under.path = Some(path);
        }
    }

    /// Returns the connection and the path of a transfer, once the path is known.
    pub(super) fn path(&self, transfer: TransferId) -> Option<(ConnId, Path)> {
        let under = self.under_way.get(&transfer)?;
        Some((under.flow.conn, under.path?))
    }

    /// Returns the connection and the bytes of an outgoing transfer, if it is bound.
    pub(super) fn outgoing(&self, transfer: TransferId) -> Option<(ConnId, &Outgoing)> {
        let under = self.under_way.get(&transfer)?;
        match &under.moving {
            Moving::Out(outgoing) => Some((under.flow.conn, outgoing)),
            _ => None,
        }
    }

    /// Describes the progress of a transfer, for the error with which it fails.
    pub(super) fn how_far(&self, transfer: TransferId) -> Option<String> {
        let under = self.under_way.get(&transfer)?;
        let (moved, bytes) = (under.moved(), under.flow.bytes);
        Some(format!("({moved} of {bytes} bytes had moved)"))
    }

    /// Returns the transfers that have made progress since the last call, with the number of bytes moved. Transfers
    /// that wait for binding or for memory are included, since those waits have limits of their own.
    pub(super) fn progress(&mut self) -> impl Iterator<Item = (TransferId, u64)> {
        let under_way = self.under_way.iter_mut();
        under_way.filter_map(|(transfer, under)| {
            let moved = under.moved();
            let before = std::mem::replace(&mut under.seen, moved);
            let goes_on = moved != before || under.is_queued() || under.waits_for_memory();
            goes_on.then_some((*transfer, moved))
        })
    }

    /// Returns the transfers whose memory has made no progress for `after`, at this check and at the last. One check is
    /// not enough: a process that was stopped for a while still has to process what happened meanwhile.
    pub(super) fn stalled(&mut self, after: Duration) -> Vec<TransferId> {
        let under_way = self.under_way.iter();
        let under_way = under_way.filter_map(|(transfer, under)| Some((transfer, under.own_fence()?)));
        let fences = under_way.chain(&self.fencing);
        let stalled = fences.filter(|(_, fence)| fence.is_stalled(after));
        let stalled = stalled.map(|(transfer, _)| *transfer).collect();
        let before = std::mem::replace(&mut self.stalled, stalled);
        self.stalled.intersection(&before).copied().collect()
    }

    pub(super) fn finish(&mut self, transfer: TransferId) -> Option<UnderWay> {
        self.under_way.remove(&transfer)
    }

    /// Ends a transfer, and sends an event when nothing touches its blocks any more.
    pub(super) fn fence(&mut self, transfer: TransferId, counters: &mut Counters) {
        let events = self.events.clone();
        let under = self.finish(transfer);
        let fence = under.map(|under| {
            counters.route_failed(&under.counted);
            under.fence()
        });
        let fence = fence.unwrap_or_default();
        self.fencing.insert(transfer, fence.clone());
        tokio::spawn(async move {
            fence.quiet().await;
            // An error means that the driver has stopped.
            let _ = events.send(DataEvent::Fenced { transfer });
        });
    }

    pub(super) fn fenced(&mut self, transfer: TransferId) {
        self.fencing.remove(&transfer);
    }

    /// Ends all transfers. Returns the fences of everything that touches blocks.
    pub(super) fn abandon(&mut self) -> Vec<Fence> {
        let under_way = self.under_way.drain();
        let under_way = under_way.map(|(_, under)| under.fence());
        let fencing = self.fencing.drain().map(|(_, fence)| fence);
        under_way.chain(fencing).collect()
    }
}

impl UnderWay {
    fn moved(&self) -> u64 {
        match &self.moving {
            Moving::Binding(_) => 0,
            Moving::Out(outgoing) => outgoing.read(),
            Moving::In(landing) => landing.placed(),
        }
    }

    /// Returns the fence that must be quiet before the transfer's blocks may be returned.
    fn fence(self) -> Fence {
        // Binding touches no bytes, and its result is dropped.
        self.own_fence().cloned().unwrap_or_default()
    }

    fn own_fence(&self) -> Option<&Fence> {
        match &self.moving {
            Moving::Binding(_) => None,
            Moving::Out(outgoing) => Some(outgoing.own_fence()),
            Moving::In(landing) => Some(landing.own_fence()),
        }
    }

    fn waits_for_memory(&self) -> bool {
        self.own_fence().is_some_and(Fence::waits_for_memory)
    }

    /// Returns whether nothing can move because the route is not bound yet.
    fn is_queued(&self) -> bool {
        matches!(self.moving, Moving::Binding(_))
    }

    /// Allows a layer to be read, if `tokens` covers all that the transfer needs of it.
    fn open_layer(&self, layer: u32, tokens: u64) {
        if let Moving::Out(outgoing) = &self.moving
            && tokens >= self.flow.request.end()
        {
            outgoing.open(outgoing.route().layer(layer));
        }
    }

    pub(super) fn count_landed(&self, counters: &mut Counters) {
        let travelled = self.path.map(|path| (path, self.flow.bytes, &self.chunks));
        counters.route_landed(&self.counted, travelled);
    }
}

#[cfg(test)]
mod tests;

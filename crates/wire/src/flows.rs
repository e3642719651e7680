//! Running transfers: reports of streams, messages of peers, and the end of an attempt.
//!
//! The rules do not depend on which side asked, or on whether a lease or a job is behind a transfer. There is one set
//! of rules for data sources (`source.rs`) and one for data destinations (`destination.rs`).

pub(crate) mod destination;
pub(crate) mod source;
pub(crate) mod transfer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use transload_plan::ids::{AgentId, TransferId};

use crate::action::{Action, Flow};
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::{Event, Side, Why};
use crate::ids::ConnId;
use crate::message::Message;
use crate::path::Path;
use crate::path::negotiation::Way;
use crate::plans::Planned;
use crate::refusal::{Failure, Refusal, Text};
use crate::stream::{StreamHeader, StreamTrailer};
use crate::waiting::Awaited;

pub use destination::{MAX_STREAMS, StreamRefusal};

use transfer::{Phase, Role, Transfer};

/// How much longer a late fence is waited for before it is reported: this process may have been stopped.
const FENCE_GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Flows<D: KnownDeployments> {
    transfers: BTreeMap<TransferId, Transfer<D>>,
}

impl<D: KnownDeployments> Flows<D> {
    pub(crate) fn new() -> Self {
        let transfers = BTreeMap::new();
        Self { transfers }
    }

    pub(crate) fn get(&self, id: TransferId) -> Option<&Transfer<D>> {
        self.transfers.get(&id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Transfer<D>> {
        self.transfers.values()
    }

    pub(crate) fn take_plan(&mut self, id: TransferId) -> Option<Arc<Planned<D::Plan>>> {
        self.transfers.get_mut(&id)?.plan.take()
    }

    pub(crate) fn begin(&mut self, cx: &mut Context<D>, attempt: Transfer<D>) {
        let id = attempt.flow.transfer;
        if attempt.way() == Way::In {
            // Streams may overtake the answer to the ask.
            cx.act(Action::Receive(attempt.flow.clone()));
        }
        self.transfers.insert(id, attempt);
        cx.after(cx.options.stall, Timer::Stall(id));
    }
}

impl<D: KnownDeployments> Flows<D> {
    pub(crate) fn stream_sent(&mut self, cx: &mut Context<D>, id: TransferId, bytes: u64) {
        self.moving(cx, id);
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let planned = t.flow.bytes;
        let Role::Source(source) = &mut t.role else {
            return;
        };
        match source.stream_sent(bytes, planned) {
            Err(failure) => self.fail(cx, id, failure, true),
            Ok(()) if t.is_read() => cx.emit(Event::Read(id)),
            Ok(()) => {}
        }
    }

    pub(crate) fn stream_failed(&mut self, cx: &mut Context<D>, id: TransferId, why: Text) {
        self.fail(cx, id, Failure::StreamBroken { why }, true);
    }

    pub(crate) fn moving(&self, cx: &mut Context<D>, id: TransferId) {
        let transfer = self.transfers.get(&id);
        if transfer.is_some_and(|t| !t.is_fencing() && t.phase != Phase::Committed) {
            cx.after(cx.options.stall, Timer::Stall(id));
        }
    }

    pub(crate) fn moved(&mut self, cx: &mut Context<D>, id: TransferId, bytes: u64) {
        if let Some(t) = self.transfers.get_mut(&id) {
            t.moved = bytes;
        }
        self.moving(cx, id);
    }

    pub(crate) fn admit(
        &mut self,
        cx: &mut Context<D>,
        agent: &AgentId,
        header: &StreamHeader,
    ) -> Result<(), StreamRefusal> {
        let id = header.transfer;
        let transfer = self.transfers.get_mut(&id);
        let transfer = transfer.filter(|t| t.flow.agent == *agent);
        let transfer = transfer.ok_or(StreamRefusal::Unknown)?;
        let side = transfer.side;
        let admitted = transfer.admit(header);
        match &admitted {
            Ok(()) => {
                self.moving(cx, id);
                cx.emit(Event::Moves(side));
            }
            Err(StreamRefusal::Faulty(failure)) => self.fail(cx, id, failure.clone(), true),
            Err(StreamRefusal::Unknown) => {}
        }
        admitted
    }

    pub(crate) fn stream_arrived(
        &mut self,
        cx: &mut Context<D>,
        header: &StreamHeader,
        trailer: &StreamTrailer,
        crc: u32,
    ) {
        let id = header.transfer;
        let role = self.transfers.get_mut(&id).map(|t| &mut t.role);
        if let Some(Role::Destination(destination)) = role {
            let arrived = destination.stream_arrived(header, trailer, crc);
            self.land_if_whole(cx, id, arrived);
        }
    }

    /// Ends a stopped transfer, of which no byte is read or placed any more.
    pub(crate) fn fenced(&mut self, cx: &mut Context<D>, id: TransferId) {
        let known = self.transfers.get(&id);
        if let Some(why) = known.and_then(Transfer::why).cloned() {
            self.gone(cx, id, why);
        }
    }
}

impl<D: KnownDeployments> Flows<D> {
    /// Handles a message about a transfer. It is ignored if the transfer is over or belongs to another connection.
    pub(crate) fn on_message(&mut self, cx: &mut Context<D>, conn: ConnId, id: TransferId, message: Message) {
        let transfer = self.transfers.get_mut(&id);
        let transfer = transfer.filter(|t| t.flow.conn == conn && !t.is_fencing());
        let Some(t) = transfer else {
            return;
        };
        let (asking, committed) = (t.phase == Phase::Asking, t.phase == Phase::Committed);
        match (message, &mut t.role) {
            (Message::Accepted { path, .. }, _) => self.on_accepted(cx, id, path),
            (Message::Refused { refusal, .. }, _) if asking => {
                self.end(cx, id, Why::Refused(refusal), false);
            }
            (Message::Abort { failure, .. }, _) => self.fail(cx, id, failure, false),
            // A peer cannot know about the other waits.
            (Message::Waiting { on, .. }, _) if !on.is_told() => {}
            (Message::Waiting { on, .. }, Role::Destination(_)) => {
                t.waiting = Some(on);
                if let (Awaited::Prefill, Side::Job { job, .. }) = (on, t.side) {
                    cx.emit(Event::Admitted(job));
                }
                self.moving(cx, id);
            }
            (Message::Waiting { on, .. }, Role::Source(_)) if asking => {
                t.waiting = Some(on);
                self.moving(cx, id);
            }
            (Message::Commit { streams, bytes, .. }, Role::Destination(destination)) => {
                let committed = destination.commit(streams, bytes);
                self.land_if_whole(cx, id, committed);
            }
            (Message::Landed { .. }, _) if committed => cx.emit(Event::Landed(id)),
            _ => {}
        }
    }

    fn on_accepted(&mut self, cx: &mut Context<D>, id: TransferId, path: Path) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let Side::Job { job, route } = t.side else {
            return;
        };
        if !t.paths.contains(path) {
            let why = format!("the peer chose the path {path}, which was not wanted").into();
            return self.fail(cx, id, Failure::Local { why }, true);
        }
        if !t.accept() {
            return;
        }
        t.flow.path = Some(path);
        let receiving = t.way() == Way::In;
        self.moving(cx, id);
        cx.emit(Event::Accepted(id, job, route, path));
        if receiving {
            cx.act(Action::Flowing(id, path));
            cx.emit(Event::Travels(id));
            self.land_if_whole(cx, id, Ok(()));
        }
    }
}

impl<D: KnownDeployments> Flows<D> {
    /// Begins to read if the prefill is over or layers are read one by one. `ready` lists each layer's ready tokens.
    pub(crate) fn read_if_ready(&mut self, cx: &mut Context<D>, id: TransferId, ready: Vec<(u32, u64)>) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        if !t.begin_reading() {
            return self.heartbeat(cx, id);
        }
        let (side, waits, read) = (t.side, t.waits_for_prefill(), t.is_read());
        if waits {
            cx.after(cx.options.heartbeat, Timer::Heartbeat(id));
        }
        let flow = Flow { all_readable: !waits, ready, ..t.flow.clone() };
        cx.act(Action::Read(flow));
        cx.emit(Event::Travels(id));
        cx.emit(Event::Moves(side));
        self.moving(cx, id);
        if read {
            cx.emit(Event::Read(id));
        }
    }

    pub(crate) fn layer_ready(&mut self, cx: &mut Context<D>, id: TransferId, layer: u32, tokens: u64) {
        if self.transfers.get(&id).is_some_and(Transfer::is_reading) {
            cx.act(Action::Readable { transfer: id, layer, tokens });
        }
    }

    pub(crate) fn all_ready(&mut self, cx: &mut Context<D>, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        if let Role::Source(source) = &mut t.role {
            source.prefilled = true;
        }
        let (reading, read) = (t.is_reading(), t.is_read());
        cx.timers.clear(&Timer::Heartbeat(id));
        if !reading {
            return self.read_if_ready(cx, id, Vec::new());
        }
        cx.act(Action::AllReadable(id));
        self.moving(cx, id);
        if read {
            cx.emit(Event::Read(id));
        }
    }

    pub(crate) fn heartbeat(&mut self, cx: &mut Context<D>, id: TransferId) {
        let transfer = self.transfers.get(&id);
        if let Some(t) = transfer.filter(|t| t.waits_for_prefill()) {
            // Waiting for the prefill is no fault of the peer or the transfer, so it must not count as a stall.
            cx.timers.clear(&Timer::Stall(id));
            cx.after(cx.options.heartbeat, Timer::Heartbeat(id));
            let on = Awaited::Prefill;
            cx.send(t.flow.conn, Message::Waiting { transfer: id, on });
        }
    }

    /// Commits a transfer that was read completely. Its lease is alive at this moment.
    pub(crate) fn commit(&mut self, cx: &mut Context<D>, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let conn = t.flow.conn;
        let Some((streams, bytes)) = t.commit() else {
            return;
        };
        cx.timers.clear(&Timer::Heartbeat(id));
        cx.after(cx.options.landing_wait, Timer::Stall(id));
        let commit = Message::Commit { transfer: id, streams, bytes };
        cx.send(conn, commit);
    }
}

impl<D: KnownDeployments> Flows<D> {
    /// Lands a destination's transfer if it is complete after a stream or the commit. Fails it if `taken` is an error.
    fn land_if_whole(&mut self, cx: &mut Context<D>, id: TransferId, taken: Result<(), Failure>) {
        self.moving(cx, id);
        let outcome = || self.transfers.get(&id).and_then(Transfer::outcome);
        match taken.map_or_else(|failure| Some(Err(failure)), |()| outcome()) {
            None => {}
            Some(Err(failure)) => self.fail(cx, id, failure, true),
            Some(Ok(())) => cx.emit(Event::Whole(id)),
        }
    }

    /// Ends a transfer with success. As its destination, tells the source.
    pub(crate) fn land(&mut self, cx: &mut Context<D>, id: TransferId) -> Option<Transfer<D>> {
        let t = self.transfers.remove(&id)?;
        if t.way() == Way::In {
            cx.send(t.flow.conn, Message::Landed { transfer: id });
        }
        clear_timers(cx, id);
        cx.act(Action::Finished(id));
        Some(t)
    }

    pub(crate) fn stalled(&mut self, cx: &mut Context<D>, id: TransferId) {
        if let Some(t) = self.transfers.get(&id) {
            let on = t.awaits();
            self.fail(cx, id, Failure::Stalled { on }, true);
        }
    }

    pub(crate) fn disconnected(&mut self, cx: &mut Context<D>, conn: ConnId) {
        let dead = self.all().filter(|t| t.flow.conn == conn);
        let dead: Vec<_> = dead.map(|t| t.flow.transfer).collect();
        for id in dead {
            self.fail(cx, id, Failure::Disconnected, false);
        }
    }

    /// Fails a transfer: fences it first, and reports the consequences after that. `tell` sends an abort to the peer.
    pub(crate) fn fail(&mut self, cx: &mut Context<D>, id: TransferId, failure: Failure, tell: bool) {
        self.end(cx, id, Why::Failed(failure), tell);
    }

    fn end(&mut self, cx: &mut Context<D>, id: TransferId, why: Why, tell: bool) {
        let transfer = self.transfers.get_mut(&id);
        let Some(t) = transfer.filter(|t| !t.is_fencing()) else {
            return;
        };
        // After the commit, the end of the lease no longer matters to the transfer.
        let lease_ended = matches!(why, Why::Failed(Failure::LeaseEnded { .. }));
        if lease_ended && t.phase == Phase::Committed {
            return;
        }
        let (conn, under_way) = (t.flow.conn, t.is_under_way());
        t.fence(why.clone());
        clear_timers(cx, id);
        if let (Why::Failed(failure), true) = (&why, tell) {
            let failure = failure.clone();
            let abort = Message::Abort { transfer: id, failure };
            cx.send(conn, abort);
        }
        cx.emit(Event::Stopped(conn, id));
        if under_way {
            cx.after(cx.options.device_stall, Timer::Fence(id));
            cx.act(Action::Fence(id));
        } else {
            self.gone(cx, id, why);
        }
    }

    /// Fails a transfer, maybe stopped already, because memory does not finish its work. Tells the blocks' owner.
    pub(crate) fn device_stalled(&mut self, cx: &mut Context<D>, id: TransferId) {
        self.fail(cx, id, Failure::DeviceStalled, true);
        self.stall_fence(cx, id);
    }

    pub(crate) fn fence_late(&mut self, cx: &mut Context<D>, id: TransferId) {
        if let Some(t) = self.transfers.get_mut(&id) {
            // If this process was stopped for a while, the fence may have come and not been read yet.
            if !std::mem::replace(&mut t.is_fence_late, true) {
                return cx.after(FENCE_GRACE, Timer::Fence(id));
            }
            self.stall_fence(cx, id);
        }
    }

    /// Reports, once, that a stopped transfer may still use its blocks.
    fn stall_fence(&mut self, cx: &mut Context<D>, id: TransferId) {
        if let Some(t) = self.transfers.get_mut(&id)
            && !std::mem::replace(&mut t.stalled, true)
        {
            cx.emit(Event::Stalled(t.side, t.flow.rank, Some(id)));
        }
    }

    /// Removes a transfer of which nothing is in progress any more.
    fn gone(&mut self, cx: &mut Context<D>, id: TransferId, why: Why) {
        cx.timers.clear(&Timer::Fence(id));
        if let Some(t) = self.transfers.remove(&id) {
            cx.emit(Event::Gone(id, t.side, t.flow.peer_rank, why));
        }
    }
}

fn clear_timers<D: KnownDeployments>(cx: &mut Context<D>, id: TransferId) {
    cx.timers.clear(&Timer::Stall(id));
    cx.timers.clear(&Timer::Heartbeat(id));
}

pub(crate) fn refuse<D: KnownDeployments>(cx: &mut Context<D>, conn: ConnId, transfer: TransferId, refusal: Refusal) {
    cx.send(conn, Message::Refused { transfer, refusal });
}

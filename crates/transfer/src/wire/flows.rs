//! Transfers as they run: what streams report, what peers say, and how an attempt ends.
//!
//! The rules are the same whether a lease or a job is behind a transfer, and whichever side asked.

use super::destination::StreamRefusal;
use super::held::Held;
use super::message::{Message, WaitingOn};
use super::planner::Planner;
use super::refusal::{Failure, Refusal, Text};
use super::source::Phase;
use super::stream::{StreamHeader, StreamTrailer};
use super::transfer::{Role, Side, Why};
use super::{Action, BlocksOf, ConnId, Machine, Timer};
use crate::ids::{AgentId, TransferId};
use crate::lease::LeaseKey;
use crate::moment::Moment;
use crate::path::Path;

/// What the agent reports of data streams.
impl<B, P: Planner> Machine<B, P> {
    /// Data source: a stream is written whole, trailer and all. Its memory is not read any more.
    pub fn stream_sent(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        self.moving(now, transfer);
        let source = self.transfers.get_mut(&transfer).and_then(|t| t.source());
        let Some(sent) = source.map(|source| source.stream_sent(bytes)) else {
            return;
        };
        match sent {
            Ok(()) => self.commit_if_read(now, transfer),
            Err(miscount) => {
                let why = format!("{miscount:?}").into();
                self.fail(now, transfer, Failure::Local { why }, true);
            }
        }
        self.settle(now);
    }

    /// Either side: a stream broke off, or cannot be had.
    pub fn stream_failed(&mut self, now: Moment, transfer: TransferId, why: impl Into<Text>) {
        let why = why.into();
        self.fail(now, transfer, Failure::StreamBroken { why }, true);
        self.settle(now);
    }

    /// Either side: bytes are moving. To be called now and then, once a second will do.
    pub fn moving(&mut self, now: Moment, transfer: TransferId) {
        let Some(t) = self.transfers.get(&transfer) else {
            return;
        };
        if !t.is_fencing() && !t.is_committed() {
            self.timers
                .set(Timer::Stall(transfer), now + self.options.stall);
        }
    }

    /// Either side: so many bytes of a transfer have moved by now. To be called like [`moving`](Self::moving), whose
    /// work it does.
    pub fn moved(&mut self, now: Moment, transfer: TransferId, bytes: u64) {
        if let Some(t) = self.transfers.get_mut(&transfer) {
            t.moved = bytes;
        }
        self.moving(now, transfer);
    }

    /// Data destination: a stream from `agent` wants in. Only once it is admitted may it place
    /// bytes, and only within what its header says.
    pub fn admit(
        &mut self,
        now: Moment,
        agent: &AgentId,
        header: &StreamHeader,
    ) -> Result<(), StreamRefusal> {
        let id = header.transfer;
        let transfer = self
            .transfers
            .get_mut(&id)
            .filter(|t| t.flow.agent == *agent);
        let transfer = transfer.ok_or(StreamRefusal::Unknown)?;
        let destination = transfer.destination().ok_or(StreamRefusal::Unknown)?;
        #[cfg(test)]
        if self.fault == Some(super::simulation::Fault::AdmitAfterFence) {
            destination.admit_fenced();
        }
        let admitted = destination.admit(header);
        let side = transfer.side;
        match &admitted {
            Ok(()) => {
                self.moving(now, id);
                self.bytes_move(now, side);
            }
            Err(StreamRefusal::Faulty(failure)) => self.fail(now, id, failure.clone(), true),
            Err(StreamRefusal::Unknown) => {}
        }
        self.settle(now);
        admitted
    }

    /// Data destination: a stream that was admitted has ended, and all its bytes are placed. `crc`
    /// is of the bytes as they arrived.
    pub fn stream_arrived(
        &mut self,
        now: Moment,
        header: &StreamHeader,
        trailer: &StreamTrailer,
        crc: u32,
    ) {
        let id = header.transfer;
        self.moving(now, id);
        let crc = if fault!(self, IgnoreChecksum) {
            trailer.crc
        } else {
            crc
        };
        let destination = self.transfers.get_mut(&id).and_then(|t| t.destination());
        let arrived = destination.map(|d| d.stream_arrived(header, trailer, crc));
        match arrived {
            None => {}
            Some(Ok(())) => self.land_if_whole(now, id),
            Some(Err(failure)) => self.fail(now, id, failure, true),
        }
        self.settle(now);
    }

    /// Either side: what [`Action::Fence`] asked for is done. No byte of this transfer is read
    /// or placed any more, and none will be.
    pub fn fenced(&mut self, now: Moment, transfer: TransferId) {
        let known = self.transfers.get(&transfer);
        if let Some(why) = known.and_then(|t| t.why()).cloned() {
            self.gone(now, transfer, why);
        }
        self.settle(now);
    }
}

/// What peers say of transfers.
impl<B, P: Planner> Machine<B, P> {
    /// A message about a transfer. One that is not of this connection, or is over, is no more than
    /// an echo.
    pub(super) fn on_transfer(
        &mut self,
        now: Moment,
        conn: ConnId,
        id: TransferId,
        message: Message,
    ) {
        let transfer = self.transfers.get_mut(&id).filter(|t| t.flow.conn == conn);
        let Some(t) = transfer.filter(|t| !t.is_fencing()) else {
            return;
        };
        let asking = is_asking(&t.role);
        match (message, &mut t.role) {
            (Message::Accepted { path, .. }, _) => self.on_accepted(now, id, path),
            (Message::Refused { refusal, .. }, _) if asking => {
                self.end(now, id, Why::Refused(refusal), false);
            }
            (Message::Abort { failure, .. }, _) => self.fail(now, id, failure, false),
            (Message::Waiting { on, .. }, Role::Destination(_)) => {
                let side = t.side;
                t.waiting = Some(on);
                self.moving(now, id);
                if let (WaitingOn::Prefill, Side::Job { job, .. }) = (on, side) {
                    self.route_admitted(job);
                }
            }
            (Message::Progress { .. }, Role::Destination(_)) => self.moving(now, id),
            (Message::Waiting { on, .. }, Role::Source(_)) if asking => {
                t.waiting = Some(on);
                self.moving(now, id);
            }
            (Message::Commit { streams, bytes, .. }, Role::Destination(destination)) => {
                let committed = destination.commit(streams, bytes);
                self.moving(now, id);
                match committed {
                    Ok(()) => self.land_if_whole(now, id),
                    Err(failure) => self.fail(now, id, failure, true),
                }
            }
            (Message::Landed { .. }, Role::Source(source))
                if *source.phase() == Phase::Committed =>
            {
                self.succeed(now, id);
            }
            _ => {}
        }
    }

    fn on_accepted(&mut self, now: Moment, id: TransferId, path: Path) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let Side::Job { job, route } = t.side else {
            return;
        };
        let wanted = self.jobs.get(&job).map(|job| job.spec.paths);
        if wanted.is_some_and(|wanted| !wanted.contains(path)) {
            let why = format!("the peer chose the path {path}, which was not wanted").into();
            self.fail(now, id, Failure::Local { why }, true);
            return;
        }
        let news = match &mut t.role {
            Role::Destination(destination) => destination.accept(),
            Role::Source(source) => {
                let asking = *source.phase() == Phase::Asking;
                source.accept();
                asking
            }
        };
        if !news {
            return;
        }
        t.flow.path = Some(path);
        let receiving = t.destination().is_some();
        self.moving(now, id);
        self.route_accepted(job, route, path);
        match receiving {
            true => {
                self.actions
                    .push_back(Action::Flowing { transfer: id, path });
                self.land_if_whole(now, id);
            }
            false => self.read_if_ready(now, id),
        }
    }
}

impl<B, P: Planner> Machine<B, P> {
    /// Bytes are about to be written for somebody here.
    fn bytes_move(&mut self, now: Moment, side: Side) {
        match side {
            Side::Job { job, .. } => self.job_moves(now, job),
            Side::Lease(key) => self.opening_moves(now, &key),
        }
    }

    /// The lease whose blocks a transfer reads, also where a push that was invited reads them.
    pub(super) fn leased_to(&self, side: Side) -> Option<LeaseKey> {
        match side {
            Side::Lease(key) => Some(key),
            Side::Job { job, .. } => match self.jobs.get(&job)?.spec.blocks {
                Held::Of(BlocksOf::Lease(key)) => Some(key),
                _ => None,
            },
        }
    }
}

fn is_asking(role: &Role) -> bool {
    match role {
        Role::Source(source) => *source.phase() == Phase::Asking,
        Role::Destination(destination) => *destination.phase() == super::destination::Phase::Asking,
    }
}

/// The data source's progress.
impl<B, P: Planner> Machine<B, P> {
    /// Begins to read, once the prefill is over or layer by layer.
    pub(super) fn read_if_ready(&mut self, now: Moment, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let (side, rank, conn) = (t.side, t.flow.rank, t.flow.conn);
        let Some(source) = t.source() else {
            return;
        };
        let (begins, waits) = (source.begin(), source.waits_for_prefill());
        if waits {
            self.timers
                .set(Timer::Beat(id), now + self.options.heartbeat);
        }
        if !begins {
            if waits {
                self.timers.clear(&Timer::Stall(id));
                let on = WaitingOn::Prefill;
                self.send(conn, Message::Waiting { transfer: id, on });
            }
            return;
        }
        let ready = match side {
            Side::Lease(key) => {
                let progress = self.leases.progress(&key);
                progress
                    .map(|(layers, _)| layers.collect())
                    .unwrap_or_default()
            }
            Side::Job { job, .. } => {
                self.job_moves(now, job);
                self.job_progress(job, rank)
            }
        };
        if let Some(t) = self.transfers.get_mut(&id) {
            t.under_way = true;
            let flow = super::Flow {
                all_readable: !waits,
                ready,
                ..t.flow.clone()
            };
            self.actions.push_back(Action::Read(flow));
        }
        self.moving(now, id);
        self.commit_if_read(now, id);
    }

    /// One more layer may be read.
    pub(super) fn layer_ready(&mut self, id: TransferId, layer: u32, tokens: u64) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let conn = t.flow.conn;
        if t.source()
            .is_some_and(|source| *source.phase() == Phase::Reading)
        {
            self.actions.push_back(Action::Readable {
                transfer: id,
                layer,
                tokens,
            });
            let progress = Message::Progress {
                transfer: id,
                layer,
                tokens,
            };
            self.send(conn, progress);
        }
    }

    /// Everything may be read.
    pub(super) fn all_ready(&mut self, now: Moment, id: TransferId) {
        let Some(source) = self.transfers.get_mut(&id).and_then(|t| t.source()) else {
            return;
        };
        source.finish_prefill();
        self.timers.clear(&Timer::Beat(id));
        match source.phase() {
            Phase::Reading => {
                self.actions.push_back(Action::AllReadable { transfer: id });
                self.moving(now, id);
                self.commit_if_read(now, id);
            }
            _ => self.read_if_ready(now, id),
        }
    }

    /// Tells a peer that waits for our prefill that it is worth it.
    pub(super) fn beat(&mut self, now: Moment, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let conn = t.flow.conn;
        if t.source().is_some_and(|source| source.waits_for_prefill()) {
            // Reading layer by layer stands still without the engine's fault or the peer's.
            self.timers.clear(&Timer::Stall(id));
            self.timers
                .set(Timer::Beat(id), now + self.options.heartbeat);
            let on = WaitingOn::Prefill;
            self.send(conn, Message::Waiting { transfer: id, on });
        }
    }

    /// Commits, if the last byte has been read and the lease is alive at this moment.
    fn commit_if_read(&mut self, now: Moment, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let (side, conn) = (t.side, t.flow.conn);
        let Some(source) = t.source() else {
            return;
        };
        if !source.is_read() {
            return;
        }
        if let Some(key) = self.leased_to(side)
            && !self.leases.is_alive(now, key)
            && !fault!(self, CommitWithoutLease)
        {
            // The table has said why, and the fence follows from that.
            return;
        }
        if let Side::Job { job, route } = side {
            self.route_committed(job, route);
        }
        let Some(source) = self.transfers.get_mut(&id).and_then(|t| t.source()) else {
            return;
        };
        let (streams, bytes) = source.commit();
        self.timers.clear(&Timer::Beat(id));
        self.timers
            .set(Timer::Stall(id), now + self.options.landing_wait);
        self.send(
            conn,
            Message::Commit {
                transfer: id,
                streams,
                bytes,
            },
        );
        if let Side::Lease(key) = side {
            self.leases.unpin(now, key, id);
        }
    }
}

/// How an attempt ends.
impl<B, P: Planner> Machine<B, P> {
    fn land_if_whole(&mut self, now: Moment, id: TransferId) {
        let Some(t) = self.transfers.get_mut(&id) else {
            return;
        };
        let (side, conn) = (t.side, t.flow.conn);
        let Some(destination) = t.destination() else {
            return;
        };
        #[allow(unused_mut, reason = "tests break it on purpose")]
        let mut outcome = destination.outcome();
        #[cfg(test)]
        if outcome.is_none()
            && !matches!(destination.phase(), super::destination::Phase::Fencing(_))
        {
            use super::simulation::Fault;
            let (committed, covered) = (destination.is_committed(), destination.is_covered());
            outcome = match self.fault {
                Some(Fault::SucceedWithoutCommit) if covered => Some(Ok(())),
                Some(Fault::SucceedWithoutBytes) if committed => Some(Ok(())),
                _ => None,
            };
        }
        match outcome {
            None => {}
            Some(Err(failure)) => self.fail(now, id, failure, true),
            Some(Ok(())) => {
                if let Side::Lease(key) = side
                    && !self.leases.is_alive(now, key)
                {
                    // An opening that is over takes nothing more; the fence is on its way.
                    return;
                }
                self.send(conn, Message::Landed { transfer: id });
                self.succeed(now, id);
            }
        }
    }

    fn succeed(&mut self, now: Moment, id: TransferId) {
        let Some(t) = self.transfers.remove(&id) else {
            return;
        };
        self.clear_timers(id);
        self.actions.push_back(Action::Finished { transfer: id });
        match t.side {
            Side::Lease(key) => {
                self.opening_landed(&key, &t);
                self.leases.landed(key, t.flow.peer_rank);
                self.leases.unpin(now, key, id);
                self.pair_free(now, key, t.flow.peer_rank);
            }
            Side::Job { job, route } => self.route_landed(now, job, route),
        }
    }

    pub(super) fn stalled(&mut self, now: Moment, id: TransferId) {
        if let Some(t) = self.transfers.get(&id) {
            let on = t.awaits();
            self.fail(now, id, Failure::Stalled { on }, true);
        }
    }

    /// Fails a transfer: first the fence, then the consequences.
    pub(super) fn fail(&mut self, now: Moment, id: TransferId, failure: Failure, tell: bool) {
        self.end(now, id, Why::Failed(failure), tell);
    }

    fn end(&mut self, now: Moment, id: TransferId, why: Why, tell: bool) {
        let Some(t) = self.transfers.get_mut(&id).filter(|t| !t.is_fencing()) else {
            return;
        };
        // What has been read and committed is out of the lease's hands.
        let lease_ended = matches!(why, Why::Failed(Failure::LeaseEnded { .. }));
        if lease_ended && t.is_committed() {
            return;
        }
        let (conn, under_way) = (t.flow.conn, t.under_way);
        t.fence(why.clone());
        self.clear_timers(id);
        if let (Why::Failed(failure), true) = (&why, tell) {
            let failure = failure.clone();
            self.send(
                conn,
                Message::Abort {
                    transfer: id,
                    failure,
                },
            );
        }
        if under_way {
            self.actions.push_back(Action::Fence { transfer: id });
            #[cfg(test)]
            if self.fault == Some(super::simulation::Fault::RetryBeforeFence) {
                self.gone(now, id, why);
            }
        } else {
            self.gone(now, id, why);
        }
    }

    /// Nothing of the transfer is under way any more.
    fn gone(&mut self, now: Moment, id: TransferId, why: Why) {
        let Some(t) = self.transfers.remove(&id) else {
            return;
        };
        match t.side {
            Side::Lease(key) => {
                self.leases.unpin(now, key, id);
                self.pair_free(now, key, t.flow.peer_rank);
            }
            Side::Job { job, route } => self.route_ended(now, job, route, why),
        }
    }

    fn clear_timers(&mut self, id: TransferId) {
        self.timers.clear(&Timer::Stall(id));
        self.timers.clear(&Timer::Beat(id));
    }
}

impl<B, P: Planner> Machine<B, P> {
    pub(super) fn refuse(&mut self, conn: ConnId, transfer: TransferId, refusal: Refusal) {
        self.send(conn, Message::Refused { transfer, refusal });
    }
}

//! The driver: the one task that owns the machine, feeds it with events, and does what it wants done.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::net::lookup_host;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout, timeout_at};

use super::control::{self, Outbox};
use super::data::{
    Arrivals, DataOptions, Landing, LaneOut, ReceiveError, Receiver, SendEvent, SendEvents,
};
#[cfg(feature = "local")]
use super::data::{Outgoing, RingOut};
use super::event::{Command, Event, Started};
use super::flows::{self, Memories, Moving, Under};
use super::handle::PullError;
use super::lanes::{self, Lanes};
use super::lease::LeaseOutcome;
#[cfg(feature = "local")]
use super::loans::{Loans, Part, SharedMemories};
#[cfg(feature = "local")]
use super::plans::LocalPaths;
use super::plans::Plans;
#[cfg(feature = "local")]
use super::ring::{self, Rings};
use super::{Blocks, NoticeOutcome};
use crate::identity::{PeerIdentity, Role};
use crate::ids::{AgentId, Nonce, TransferId};
use crate::lease::LeaseKey;
use crate::moment::Moment;
use crate::plan::Tables;
#[cfg(feature = "local")]
use crate::transport::local::handover::{Limits, Listener};
use crate::transport::quic::{CloseCode, ConnectError, ControlConnection, Endpoints, Lane};
#[cfg(feature = "local")]
use crate::wire::PathSet;
use crate::wire::message::LaneMessage;
use crate::wire::stream::{StreamHeader, StreamTrailer};
use crate::wire::{Action, ConnId, Flow, JobId, JobReport, Machine, NoticeId, Path, Permits};

#[cfg(feature = "local")]
mod lending;

/// How often transfers are asked whether bytes have moved, at most; oftener where the machine's `stall` is
/// short, which it has to stay well below.
const LOOK: Duration = Duration::from_secs(1);

/// Most connections that one agent may have opened to us. Two dials that cross need two; those of a life
/// that was killed linger until the idle timeout, and go when the next one is welcome.
const FROM_ONE_AGENT: usize = 8;

/// How long the last words may take to arrive when the agent stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// How far ahead a deadline can be: as good as never, and no clock runs over.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// One control connection, and its lanes.
struct Connection {
    peer: PeerIdentity,
    address: std::net::SocketAddr,
    /// Whether we have opened it.
    dialled: bool,
    outbox: Outbox,
    /// Ends once everything is sent.
    writer: JoinHandle<()>,
    /// What has to stop when the connection is gone: its reader, and whoever makes its lanes.
    tasks: Vec<JoinHandle<()>>,
    lanes: Lanes,
    open: Vec<Lane>,
    #[cfg(feature = "local")]
    rings: Rings,
    #[cfg(feature = "local")]
    loans: Loans,
}

pub(super) struct Driver {
    machine: Machine<Blocks, Plans>,
    endpoints: Endpoints,
    receiver: Receiver<Admission>,
    memories: Memories,
    /// What peers may borrow: of all ranks, or of none.
    #[cfg(feature = "local")]
    lendable: SharedMemories,
    data: DataOptions,
    /// For tasks whose events have to wait their turn: peers and users.
    events: mpsc::Sender<Event>,
    /// For those that cannot wait: the data plane, whose events are a few for each stream, and handles
    /// that are dropped, with one each.
    moved: mpsc::UnboundedSender<Event>,
    moved_in: Option<mpsc::UnboundedReceiver<Event>>,
    start: Instant,
    #[cfg(feature = "local")]
    listener: Option<Listener>,
    next_conn: u64,
    connections: HashMap<ConnId, Connection>,
    under_way: HashMap<TransferId, Under>,
    leases: HashMap<LeaseKey, oneshot::Sender<LeaseOutcome>>,
    jobs: HashMap<JobId, oneshot::Sender<Result<JobReport, PullError>>>,
    notices: HashMap<NoticeId, oneshot::Sender<NoticeOutcome>>,
    look: Duration,
    stopping: Option<Stopping>,
}

/// The agent is shutting down.
struct Stopping {
    /// Who waits for the end.
    waiting: Vec<oneshot::Sender<()>>,
    /// Until when what is under way may go on; `None` when that is past.
    until: Option<Instant>,
}

/// Asks the driver which streams may land.
pub(super) struct Admission {
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
    async fn admit(&self, peer: &PeerIdentity, header: &StreamHeader) -> Option<Landing> {
        let (answer, admitted) = oneshot::channel();
        self.tell(Event::Admit {
            agent: peer.agent.clone(),
            header: *header,
            answer,
        });
        admitted.await.ok().flatten()
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

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) machine: Machine<Blocks, Plans>,
    pub(super) endpoints: Endpoints,
    pub(super) memories: Memories,
    #[cfg(feature = "local")]
    pub(super) lendable: SharedMemories,
    pub(super) data: DataOptions,
    /// How long a transfer may stand still.
    pub(super) stall: Duration,
    pub(super) events: mpsc::Sender<Event>,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Self {
        let (moved, moved_in) = mpsc::unbounded_channel();
        Self {
            receiver: Receiver::new(Admission::new(moved.clone()), &parts.data),
            machine: parts.machine,
            endpoints: parts.endpoints,
            memories: parts.memories,
            #[cfg(feature = "local")]
            lendable: parts.lendable,
            data: parts.data,
            events: parts.events,
            moved,
            moved_in: Some(moved_in),
            start: Instant::now(),
            #[cfg(feature = "local")]
            listener: None,
            next_conn: 0,
            connections: HashMap::new(),
            under_way: HashMap::new(),
            leases: HashMap::new(),
            jobs: HashMap::new(),
            notices: HashMap::new(),
            look: LOOK.min(parts.stall / 4).max(Duration::from_millis(1)),
            stopping: None,
        }
    }

    /// Where those tell that cannot wait.
    pub(super) fn urgent(&self) -> mpsc::UnboundedSender<Event> {
        self.moved.clone()
    }

    /// Runs until the agent is shut down.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let Some(mut moved) = self.moved_in.take() else {
            return;
        };
        #[cfg(feature = "local")]
        match Listener::bind(Limits::default()) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => {
                tracing::warn!(%error, "no socket for peers on this host: they use the network")
            }
        }
        let mut look = interval(self.look);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.act(action);
            }
            if self.is_over() {
                break;
            }
            let machine_due = self.machine.next_deadline();
            let machine_due = machine_due.map(|due| self.start + due.0.min(NEVER));
            let stopping_due = self.stopping.as_ref().and_then(|stopping| stopping.until);
            let due = [machine_due, stopping_due].into_iter().flatten().min();
            let due = due.unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                Some(event) = moved.recv() => self.on_event(event),
                Some(event) = events.recv() => self.on_event(event),
                () = sleep_until(due.into()) => self.on_deadline(),
                _ = look.tick() => self.look(),
            }
        }
        let connections = self.connections.drain();
        let writers: Vec<_> = connections
            .map(|(_, connection)| connection.close())
            .collect();
        let farewell = async {
            for writer in writers {
                // It cannot fail in a way that matters any more.
                let _ = writer.await;
            }
        };
        // Who does not listen finds out by itself.
        let _ = timeout(FAREWELL, farewell).await;
        self.endpoints.close(CloseCode::DONE, "shutdown").await;
        for done in self
            .stopping
            .into_iter()
            .flat_map(|stopping| stopping.waiting)
        {
            // Whoever asked may be gone.
            let _ = done.send(());
        }
    }

    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn is_over(&self) -> bool {
        let Some(stopping) = &self.stopping else {
            return false;
        };
        let gauges = self.machine.gauges();
        // Notices to owners that cannot be reached are not worth more than the patience: their leases
        // expire by themselves. What touches memory is waited for.
        let still = gauges.leases + gauges.transfers + gauges.jobs;
        let over = self.machine.is_idle() || (stopping.until.is_none() && still == 0);
        over && self.under_way.is_empty()
    }

    fn on_deadline(&mut self) {
        let now = self.now();
        self.machine.on_deadline(now);
        if let Some(stopping) = &mut self.stopping
            && stopping.until.is_some_and(|until| until <= Instant::now())
        {
            // Once is enough: what is given up ends when it is fenced.
            stopping.until = None;
            self.machine.give_up(now);
        }
    }

    /// Tells the machine which transfers move.
    fn look(&mut self) {
        let now = self.now();
        for (transfer, under) in &mut self.under_way {
            let moved = under.moved();
            if moved != under.seen {
                under.seen = moved;
                self.machine.moving(now, *transfer);
                #[cfg(feature = "local")]
                if let Moving::Copy(_) = under.moving {
                    let transfer = *transfer;
                    let news = LaneMessage::Copying { transfer };
                    self.machine.send_lanes(under.flow.conn, news);
                }
            }
        }
    }
}

/// What happens.
impl Driver {
    fn on_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Arrived(connection) => self.connected(connection, false),
            Event::Dialled {
                result: Ok(connection),
                ..
            } => self.connected(connection, true),
            Event::Dialled {
                agent,
                result: Err(error),
            } => {
                tracing::debug!(%agent, %error, "could not connect");
                self.machine.connect_failed(now, &agent);
            }
            Event::Received { conn, envelope } => self.machine.on_message(now, conn, envelope),
            Event::Lost { conn, why } => self.lost(conn, &why),
            Event::LaneUp { conn, lane } => self.lane_up(conn, lane),
            // Without its lanes a connection is no use: its transfers are tried again over another.
            Event::LanesFailed { conn, why } => self.lost(conn, &why),
            #[cfg(feature = "local")]
            Event::RingOut { conn, producer } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    let stall = self.endpoints.options().stall_timeout;
                    connection.rings.add(RingOut::new(producer, stall));
                }
            }
            #[cfg(feature = "local")]
            Event::RingIn { conn, consumer } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    let peer = connection.peer.clone();
                    let incoming = self.receiver.serve_ring(consumer, peer);
                    connection.rings.incoming = Some(incoming);
                }
            }
            #[cfg(feature = "local")]
            Event::RingFailed { conn, why } => self.ring_failed(conn, &why),
            #[cfg(feature = "local")]
            Event::LoanOut { conn, link } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.loans.hold(link);
                }
            }
            #[cfg(feature = "local")]
            Event::LoanIn {
                conn,
                part,
                memories,
                link,
            } => self.borrowed(conn, part, memories, link),
            #[cfg(feature = "local")]
            Event::LoanFailed {
                conn,
                rank,
                lent,
                why,
            } => self.loan_failed(conn, rank, lent, &why),
            #[cfg(feature = "local")]
            Event::Copied { transfer } => self.machine.copied(now, transfer),
            #[cfg(feature = "local")]
            Event::CopyFailed { transfer, why } => self.copy_failed(transfer, why),
            Event::Sent {
                transfer,
                bytes,
                lent,
            } => self.machine.stream_sent(now, transfer, bytes, lent),
            Event::Returned { transfer } => self.machine.borrow_dropped(now, transfer),
            Event::Admit {
                agent,
                header,
                answer,
            } => {
                let landing = self.admit(&agent, &header);
                // The stream is gone where nobody waits.
                let _ = answer.send(landing);
            }
            Event::Landed {
                header,
                trailer,
                crc,
            } => self.machine.stream_arrived(now, &header, &trailer, crc),
            Event::StreamFailed { transfer, why } => self.machine.stream_failed(now, transfer, why),
            Event::Fenced { transfer } => {
                self.under_way.remove(&transfer);
                self.machine.fenced(now, transfer);
            }
            Event::Command(command) => self.on_command(command),
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = self.now();
        // An answer that nobody waits for is dropped: the asker has gone away.
        match command {
            Command::Lease { spec, opened } => {
                let key = spec.key;
                let answer = self.machine.lease(now, spec).map(|()| {
                    let (sender, outcome) = oneshot::channel();
                    self.leases.insert(key, sender);
                    outcome
                });
                // One that was refused is somebody else's.
                if let Err(Ok(_)) = opened.send(answer) {
                    let _ = self.machine.cancel_lease(now, key);
                }
            }
            Command::Ready { key, layer, tokens } => {
                if let Err(error) = self.machine.ready(key, layer, tokens) {
                    tracing::debug!(%key, %error, "a layer was reported ready");
                }
            }
            Command::FinishPrefill { key } => {
                if let Err(error) = self.machine.finish_prefill(now, key) {
                    tracing::debug!(%key, %error, "a prefill was reported finished");
                }
            }
            Command::Renew { key, ttl, answer } => {
                let _ = answer.send(self.machine.renew(now, key, ttl));
            }
            Command::CancelLease { key } => {
                // One that has ended already is no error.
                let _ = self.machine.cancel_lease(now, key);
            }
            Command::Start { spec, started } => {
                let answer = match self.machine.start(now, spec) {
                    Ok(job) => {
                        let (sender, result) = oneshot::channel();
                        self.jobs.insert(job, sender);
                        Ok(Started { job, result })
                    }
                    Err(refused) => Err(*refused.error),
                };
                if let Err(Ok(started)) = started.send(answer) {
                    self.machine.cancel_job(now, started.job);
                }
            }
            Command::JobReady {
                job,
                rank,
                layer,
                tokens,
            } => self.machine.job_ready(job, rank, layer, tokens),
            Command::JobPrefilled { job } => self.machine.job_prefilled(now, job),
            Command::CancelJob { job } => self.machine.cancel_job(now, job),
            Command::CancelTicket {
                ticket,
                content,
                answer,
            } => {
                let notice = self.machine.cancel_ticket(now, &ticket, content);
                let _ = answer.send(notice.map(|notice| self.expect_notice(notice)));
            }
            Command::RenewTicket {
                ticket,
                ttl,
                answer,
            } => {
                let notice = self.machine.renew_ticket(now, &ticket, ttl);
                let _ = answer.send(notice.map(|notice| self.expect_notice(notice)));
            }
            Command::Gauges { answer } => {
                let _ = answer.send(self.machine.gauges());
            }
            Command::Shutdown { patience, done } => {
                let until = Instant::now() + patience.min(NEVER);
                match &mut self.stopping {
                    Some(stopping) => {
                        stopping.waiting.push(done);
                        stopping.until = stopping.until.map(|already| already.min(until));
                    }
                    None => {
                        self.stopping = Some(Stopping {
                            waiting: vec![done],
                            until: Some(until),
                        });
                    }
                }
                self.machine.drain(now);
            }
        }
    }

    fn expect_notice(&mut self, notice: NoticeId) -> oneshot::Receiver<NoticeOutcome> {
        let (sender, outcome) = oneshot::channel();
        self.notices.insert(notice, sender);
        outcome
    }

    fn admit(&mut self, agent: &AgentId, header: &StreamHeader) -> Option<Landing> {
        let now = self.now();
        if let Err(error) = self.machine.admit(now, agent, header) {
            tracing::debug!(%agent, %error, "a data stream was turned away");
            return None;
        }
        match &self.under_way.get(&header.transfer)?.moving {
            Moving::In(landing) => Some(landing.clone()),
            Moving::Out(_) => None,
            #[cfg(feature = "local")]
            Moving::Lent | Moving::Copy(_) => None,
        }
    }

    fn connected(&mut self, connection: ControlConnection, dialled: bool) {
        let now = self.now();
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        let (peer, address) = (connection.peer().clone(), connection.remote_address());
        let permits = Permits {
            pull: peer.roles.contains(Role::Pull),
            push: peer.roles.contains(Role::Push),
            renew: peer.roles.contains(Role::Renew),
            serve: peer.roles.contains(Role::Serve),
        };
        let arrived = self.connections.values();
        let arrived = arrived.filter(|other| !other.dialled && other.peer.agent == peer.agent);
        if !dialled && arrived.count() >= FROM_ONE_AGENT {
            tracing::debug!(%peer, "too many connections of one agent");
            return connection.close(CloseCode::BUSY, "too many connections of one agent");
        }
        let (sender, receiver) = connection.split();
        let (outbox, outgoing) = control::outbox();
        let events = self.events.clone();
        let writer =
            self.endpoints
                .spawn_control(control::write(sender, outgoing, conn, events.clone()));
        let reader = self
            .endpoints
            .spawn_control(control::read(receiver, conn, events));
        let agent = peer.agent.clone();
        #[cfg(feature = "local")]
        let local = self.local_paths(&peer, address);
        let connection = Connection {
            peer,
            address,
            dialled,
            outbox,
            writer,
            tasks: vec![reader],
            lanes: Lanes::default(),
            open: Vec::new(),
            #[cfg(feature = "local")]
            rings: Rings::default(),
            #[cfg(feature = "local")]
            loans: Loans::default(),
        };
        #[cfg(feature = "local")]
        if let Some(local) = local {
            self.machine.planner_mut().set_local(agent.clone(), local);
        }
        self.connections.insert(conn, connection);
        self.machine.connected(now, conn, agent, permits);
    }

    /// The paths to a peer beside the network, if it is on this host.
    #[cfg(feature = "local")]
    fn local_paths(
        &self,
        peer: &PeerIdentity,
        address: std::net::SocketAddr,
    ) -> Option<LocalPaths> {
        if self.listener.is_none() || !ring::is_this_host(address) {
            return None;
        }
        let lends = !self.lendable.is_empty() && peer.roles.contains(Role::Map);
        let out = match lends {
            true => PathSet::LOCAL,
            false => PathSet::LOCAL.without(Path::Shared),
        };
        let back = PathSet::LOCAL;
        Some(LocalPaths { out, back })
    }

    fn lost(&mut self, conn: ConnId, why: &str) {
        if self.hang_up(conn, &why) {
            let now = self.now();
            self.machine.disconnected(now, conn);
        }
    }

    /// Closes a connection with all that belongs to it, if it is there.
    fn hang_up(&mut self, conn: ConnId, why: &dyn std::fmt::Display) -> bool {
        let Some(connection) = self.connections.remove(&conn) else {
            return false;
        };
        tracing::debug!(peer = %connection.peer, %why, "a connection is over");
        let agent = connection.peer.agent.clone();
        drop(connection.close());
        let mut others = self.connections.values();
        if others.all(|other| other.peer.agent != agent) {
            self.machine.planner_mut().forget_local(&agent);
        }
        true
    }

    fn lane_up(&mut self, conn: ConnId, lane: Lane) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            lane.close(CloseCode::DONE);
            return;
        };
        self.receiver.serve(&lane);
        let watched = lanes::watch(lane.clone(), conn, self.events.clone());
        self.endpoints.spawn_control(watched);
        connection.open.push(lane.clone());
        connection.lanes.add(LaneOut::new(lane, &self.data));
    }
}

impl Connection {
    /// Hangs up. The writer goes on until everything is sent.
    fn close(self) -> JoinHandle<()> {
        for lane in &self.open {
            lane.close(CloseCode::DONE);
        }
        #[cfg(feature = "local")]
        self.rings.close();
        // The writer sends what is left and lets go; with the reader gone, that closes the connection.
        for task in &self.tasks {
            task.abort();
        }
        self.writer
    }
}

/// What the machine wants done.
impl Driver {
    fn act(&mut self, action: Action<Blocks>) {
        match action {
            Action::Connect { agent, host, port } => {
                let dialling = dial(
                    self.endpoints.clone(),
                    agent,
                    host,
                    port,
                    self.events.clone(),
                );
                self.endpoints.spawn_control(dialling);
            }
            Action::Close { conn, reason } => {
                self.hang_up(conn, &reason);
            }
            Action::Send { conn, envelope } => {
                let Some(connection) = self.connections.get(&conn) else {
                    return;
                };
                if let Err(why) = connection.outbox.put(&envelope) {
                    connection.writer.abort();
                    self.lost(conn, &why);
                }
            }
            Action::Lanes { conn, message } => self.on_lanes(conn, message),
            Action::Read(flow) => self.read(flow),
            Action::Readable {
                transfer,
                layer,
                tokens,
            } => self.readable(transfer, layer, tokens),
            Action::AllReadable { transfer } => {
                if let Some(Moving::Out(outgoing)) = self.moving(transfer) {
                    outgoing.open_all();
                }
            }
            Action::Receive(flow) => self.receive(flow),
            Action::Flowing { transfer, path } => self.carry(transfer, path),
            #[cfg(feature = "local")]
            Action::Copy { transfer } => {
                if let Some(Moving::Copy(copying)) = self.moving_mut(transfer) {
                    copying.lend();
                    self.copy_if_ready(transfer);
                }
            }
            // Shared memory is not among the paths that are offered.
            #[cfg(not(feature = "local"))]
            Action::Copy { transfer } => self.failed(transfer, "nothing was lent".to_owned()),
            Action::Fence { transfer } => self.fence(transfer),
            Action::Finished { transfer } => {
                self.forget(transfer);
            }
            Action::LeaseEnded { key, end, blocks } => {
                if let Some(waiting) = self.leases.remove(&key) {
                    let tables = own_tables(blocks);
                    let _ = waiting.send(LeaseOutcome { end, tables });
                }
            }
            Action::JobDone { job, result, .. } => {
                if let Some(waiting) = self.jobs.remove(&job) {
                    let _ = waiting.send(result.map_err(PullError::from));
                }
            }
            Action::NoticeDone {
                notice,
                heard,
                left,
                refusal,
            } => {
                if let Some(waiting) = self.notices.remove(&notice) {
                    let _ = waiting.send(NoticeOutcome {
                        heard,
                        left,
                        refusal,
                    });
                }
            }
        }
    }

    fn moving(&self, transfer: TransferId) -> Option<&Moving> {
        self.under_way.get(&transfer).map(|under| &under.moving)
    }

    #[cfg(feature = "local")]
    fn moving_mut(&mut self, transfer: TransferId) -> Option<&mut Moving> {
        let under = self.under_way.get_mut(&transfer);
        under.map(|under| &mut under.moving)
    }

    fn on_lanes(&mut self, conn: ConnId, message: LaneMessage) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        match message {
            LaneMessage::Wanted { lanes } => {
                let ports = self.endpoints.lane_ports();
                let wanted = usize::from(lanes).clamp(1, ports.len());
                if connection.lanes.begun {
                    return;
                }
                let Ok(session) = self.endpoints.expect_lanes(&connection.peer, wanted as u16)
                else {
                    return;
                };
                connection.lanes.begun = true;
                connection.lanes.expected = wanted;
                let nonce = Nonce(*session.token().as_bytes());
                let accepting = lanes::accept(session, wanted, conn, self.events.clone());
                // The session lives as long as this, so it must not outlive the connection.
                connection
                    .tasks
                    .push(self.endpoints.spawn_control(accepting));
                let ports = ports.into_iter().take(wanted).collect();
                self.machine
                    .send_lanes(conn, LaneMessage::Offer { ports, nonce });
            }
            LaneMessage::Offer { mut ports, nonce } => {
                // Only what was asked for, and once.
                if !connection.lanes.begun || connection.lanes.expected != 0 {
                    return;
                }
                ports.truncate(self.endpoints.lane_ports().len());
                connection.lanes.expected = ports.len();
                let connecting = lanes::connect(
                    self.endpoints.clone(),
                    connection.peer.clone(),
                    connection.address,
                    (ports, nonce),
                    conn,
                    self.events.clone(),
                );
                connection
                    .tasks
                    .push(self.endpoints.spawn_control(connecting));
            }
            #[cfg(feature = "local")]
            LaneMessage::Local { socket, token } => {
                // One at a time, however many are offered.
                if !connection.rings.fetching {
                    connection.rings.fetching = true;
                    let offer = ring::Offer { socket, token };
                    let fetching = ring::fetch(offer, conn, self.events.clone());
                    connection
                        .tasks
                        .push(self.endpoints.spawn_control(fetching));
                }
            }
            #[cfg(feature = "local")]
            LaneMessage::Memory {
                socket,
                token,
                rank,
                first,
                count,
            } => {
                let part = Part { rank, first, count };
                self.borrow(conn, ring::Offer { socket, token }, part);
            }
            #[cfg(feature = "local")]
            LaneMessage::Blocks {
                transfer,
                group,
                first,
                blocks,
            } => self.on_blocks(conn, transfer, (group, first), &blocks),
            #[cfg(feature = "local")]
            LaneMessage::Copying { transfer } => {
                let under = self.under_way.get(&transfer);
                let lent =
                    |under: &Under| under.flow.conn == conn && matches!(under.moving, Moving::Lent);
                if under.is_some_and(lent) {
                    let now = self.now();
                    self.machine.moving(now, transfer);
                }
            }
            #[cfg(not(feature = "local"))]
            LaneMessage::Local { .. }
            | LaneMessage::Memory { .. }
            | LaneMessage::Blocks { .. }
            | LaneMessage::Copying { .. } => {}
        }
    }

    /// Sees to it that a connection has lanes, if it is for us to open them.
    fn want_lanes(&mut self, conn: ConnId, lanes: u16) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if connection.dialled && !connection.lanes.begun {
            connection.lanes.begun = true;
            self.machine.send_lanes(conn, LaneMessage::Wanted { lanes });
        }
    }

    fn read(&mut self, flow: Flow) {
        let transfer = flow.transfer;
        #[cfg(feature = "local")]
        if flow.path == Some(Path::Shared) {
            return self.lend(flow);
        }
        let made = self.blocks(&flow).and_then(|blocks| {
            let plan = self.machine.planner_mut().of_flow(&flow, true)?;
            flows::outgoing(&flow, &plan, &blocks, &self.memories)
        });
        let (outgoing, events) = match made {
            Ok(made) => made,
            Err(why) => return self.failed(transfer, why),
        };
        self.endpoints
            .spawn_control(report(transfer, events, self.moved.clone()));
        let (path, ready) = (flow.path, flow.ready.clone());
        let under = Under {
            flow,
            moving: Moving::Out(outgoing),
            path: None,
            seen: 0,
        };
        self.under_way.insert(transfer, under);
        for (layer, tokens) in ready {
            self.readable(transfer, layer, tokens);
        }
        if let Some(path) = path {
            self.carry(transfer, path);
        }
    }

    fn receive(&mut self, flow: Flow) {
        let (transfer, path) = (flow.transfer, flow.path);
        let made = self.blocks(&flow).and_then(|blocks| {
            let plan = self.machine.planner_mut().of_flow(&flow, false)?;
            flows::landing(&flow, &plan, &blocks, &self.memories)
        });
        match made {
            Ok(landing) => {
                let under = Under {
                    flow,
                    moving: Moving::In(landing),
                    path: None,
                    seen: 0,
                };
                self.under_way.insert(transfer, under);
                if let Some(path) = path {
                    self.carry(transfer, path);
                }
            }
            Err(why) => self.failed(transfer, why),
        }
    }

    fn blocks(&self, flow: &Flow) -> Result<Blocks, String> {
        let blocks = self.machine.blocks(flow.blocks);
        blocks
            .cloned()
            .ok_or_else(|| "its blocks are gone".to_owned())
    }

    fn failed(&mut self, transfer: TransferId, why: String) {
        let now = self.now();
        self.machine.stream_failed(now, transfer, why);
    }

    fn readable(&mut self, transfer: TransferId, layer: u32, tokens: u64) {
        if let Some(under) = self.under_way.get(&transfer)
            && let (Some(range), Moving::Out(outgoing)) =
                (under.open_layer(layer, tokens), &under.moving)
        {
            outgoing.open(range);
        }
    }

    /// The path of a transfer is known: if it is outgoing, its streams may leave.
    fn carry(&mut self, transfer: TransferId, path: Path) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        under.path = Some(path);
        let Under { flow, moving, .. } = under;
        let (conn, lanes) = (flow.conn, flow.lanes);
        let Moving::Out(outgoing) = moving else {
            match path {
                Path::Quic => self.want_lanes(conn, lanes),
                #[cfg(feature = "local")]
                Path::Shared => self.expect_loan(transfer),
                _ => {}
            }
            return;
        };
        let outgoing = outgoing.clone();
        match path {
            Path::Quic => {
                self.want_lanes(conn, lanes);
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.lanes.carry(&outgoing);
                }
            }
            #[cfg(feature = "local")]
            Path::Ring => self.carry_over_ring(conn, &outgoing),
            _ => self.failed(transfer, format!("there is no path {path} here")),
        }
    }

    #[cfg(feature = "local")]
    fn carry_over_ring(&mut self, conn: ConnId, outgoing: &Outgoing) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.rings.carry(outgoing);
        if connection.rings.begun {
            return;
        }
        connection.rings.begun = true;
        let made = match &self.listener {
            Some(listener) => ring::offer(listener),
            None => Err("there is no local socket".to_owned()),
        };
        match made {
            Ok((expected, ring::Offer { socket, token })) => {
                let handing = ring::hand_over(expected, conn, self.events.clone());
                connection.tasks.push(self.endpoints.spawn_control(handing));
                self.machine
                    .send_lanes(conn, LaneMessage::Local { socket, token });
            }
            Err(why) => self.ring_failed(conn, &why),
        }
    }

    /// A ring cannot be had after all: whoever waits for it is tried again over the network.
    #[cfg(feature = "local")]
    fn ring_failed(&mut self, conn: ConnId, why: &str) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        tracing::debug!(peer = %connection.peer, why, "there is no ring");
        connection.rings = Rings::default();
        let agent = connection.peer.agent.clone();
        let plans = self.machine.planner_mut();
        plans.lose_local(&agent, Path::Ring);
        let of_ring = |under: &&Under| under.flow.conn == conn && under.path == Some(Path::Ring);
        let failed: Vec<_> = self.under_way.values().filter(of_ring).collect();
        let failed: Vec<_> = failed.iter().map(|under| under.flow.transfer).collect();
        for transfer in failed {
            self.failed(transfer, why.to_owned());
        }
    }

    fn forget(&mut self, transfer: TransferId) -> Option<Under> {
        let under = self.under_way.remove(&transfer)?;
        if let (Moving::Out(outgoing), Some(connection)) =
            (&under.moving, self.connections.get_mut(&under.flow.conn))
        {
            connection.lanes.forget(outgoing);
            #[cfg(feature = "local")]
            connection.rings.forget(outgoing);
        }
        Some(under)
    }

    fn fence(&mut self, transfer: TransferId) {
        let moved = self.moved.clone();
        let under = self.forget(transfer);
        let fencing = async move {
            match under.map(|under| under.moving) {
                Some(Moving::Out(outgoing)) => outgoing.fence().await,
                Some(Moving::In(landing)) => landing.fence().await,
                #[cfg(feature = "local")]
                Some(Moving::Copy(copying)) => copying.fence().await,
                // We read nothing of it. Whoever still copies gets no commit.
                #[cfg(feature = "local")]
                Some(Moving::Lent) => {}
                None => {}
            }
            // The driver is gone where this fails.
            let _ = moved.send(Event::Fenced { transfer });
        };
        self.endpoints.spawn_control(fencing);
    }
}

fn own_tables(blocks: Blocks) -> Tables {
    std::sync::Arc::try_unwrap(blocks).unwrap_or_else(|shared| (*shared).clone())
}

/// Connects to an agent, at any of the addresses of its host.
async fn dial(
    endpoints: Endpoints,
    agent: AgentId,
    host: String,
    port: u16,
    events: mpsc::Sender<Event>,
) {
    let deadline = tokio::time::Instant::now() + endpoints.options().handshake_timeout;
    let mut result = Err(ConnectError::Closed);
    if let Ok(Ok(addresses)) = timeout_at(deadline, lookup_host((host.as_str(), port))).await {
        for address in addresses {
            result = endpoints.connect(address, Some(&agent)).await;
            if result.is_ok() {
                break;
            }
        }
    }
    // The driver is gone where this fails.
    let _ = events.send(Event::Dialled { agent, result }).await;
}

/// Tells the driver what becomes of a transfer's streams.
async fn report(transfer: TransferId, mut events: SendEvents, moved: mpsc::UnboundedSender<Event>) {
    while let Some(event) = events.next().await {
        let event = match event {
            SendEvent::Written { bytes, lent, .. } => Event::Sent {
                transfer,
                bytes,
                lent,
            },
            SendEvent::Returned { .. } => Event::Returned { transfer },
            SendEvent::Failed { error, .. } => Event::StreamFailed {
                transfer,
                why: error.to_string(),
            },
        };
        if moved.send(event).is_err() {
            return;
        }
    }
}

//! The driver: the one task that owns the machine, feeds it with events, and does what it wants done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use self::arrivals::Admission;
pub(super) use self::binding::{Binding, Bound};
use self::commands::Stopping;
use self::connections::{Connection, Lookups};
use self::promises::Promise;
use self::turns::Turns;
use super::NoticeOutcome;
use super::error::TransferError;
use super::event::Event;
use super::flows::{Memories, Touching, Under};
use super::lease::Ended;
use super::metrics::Counters;
use super::plans::Plans;
use crate::data::{DataOptions, Receiver};
use crate::ids::{AgentId, TransferId};
use crate::lease::LeaseKey;
use crate::moment::Moment;
use crate::path::Path;
use crate::path::carrier::{Carrier, Host, Room};
use crate::quic::{CloseCode, Endpoints};
use crate::wire::{ConnId, JobId, JobReport, Machine, NoticeId};

mod actions;
mod arrivals;
mod binding;
mod commands;
mod connections;
mod logs;
mod promises;
mod transfers;
mod turns;

/// How often transfers are asked whether bytes have moved, at most; oftener where the machine's `stall` is
/// short, which it has to stay well below.
const LOOK: Duration = Duration::from_secs(1);

/// How long the last words may take to arrive when the agent stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// How far ahead a deadline can be: as good as never, and no clock runs over.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) struct Driver {
    machine: Machine<Plans>,
    endpoints: Endpoints,
    /// The paths there are.
    carriers: BTreeMap<Path, Box<dyn Carrier>>,
    memories: Memories,
    /// For tasks whose events have to wait their turn: peers and users.
    events: mpsc::Sender<Event>,
    /// For those that cannot wait: the data plane, whose events are a few for each stream, and handles
    /// that are dropped, with one each.
    moved: mpsc::UnboundedSender<Event>,
    moved_in: Option<mpsc::UnboundedReceiver<Event>>,
    start: Instant,
    next_conn: u64,
    connections: HashMap<ConnId, Connection>,
    under_way: HashMap<TransferId, Under>,
    /// Transfers that are being fenced.
    fencing: HashMap<TransferId, Touching>,
    /// Who binds routes.
    turns: Turns,
    /// The number of the next transfer that is bound, which tells it from any other.
    next_number: u64,
    lookups: Lookups,
    /// With whether somebody has claimed it, as its owner sees.
    leases: HashMap<LeaseKey, (Promise<Ended>, Arc<AtomicBool>)>,
    jobs: HashMap<JobId, Promise<Result<JobReport, TransferError>>>,
    notices: HashMap<NoticeId, oneshot::Sender<NoticeOutcome>>,
    /// Which agents have used leases that are open: they would be taken for lost.
    users: HashMap<LeaseKey, BTreeSet<AgentId>>,
    look: Duration,
    keep_idle: Duration,
    stopping: Option<Stopping>,
    counters: Counters,
}

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) machine: Machine<Plans>,
    pub(super) endpoints: Endpoints,
    pub(super) memories: Memories,
    pub(super) data: DataOptions,
    pub(super) rooms: Vec<Box<dyn Room>>,
    /// How long a transfer may stand still.
    pub(super) stall: Duration,
    /// How long a connection is kept that nothing needs.
    pub(super) keep_idle: Duration,
    pub(super) events: mpsc::Sender<Event>,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Self {
        let (moved, moved_in) = mpsc::unbounded_channel();
        let mut data = parts.data;
        // Whoever keeps to what lanes allow is never turned away; two dials may have crossed.
        let quic = parts.endpoints.options();
        let allowed = 2 * usize::from(quic.lanes) * quic.max_streams as usize;
        data.streams_of_peer = data.streams_of_peer.max(allowed);
        data.streams_of_service = data.streams_of_service.max(allowed);
        let host = Host {
            endpoints: parts.endpoints.clone(),
            receiver: Receiver::new(Admission::new(moved.clone()), &data),
            data,
        };
        Self {
            carriers: open(&parts.rooms, &host),
            machine: parts.machine,
            endpoints: parts.endpoints,
            memories: parts.memories,
            events: parts.events,
            moved,
            moved_in: Some(moved_in),
            start: Instant::now(),
            next_conn: 0,
            connections: HashMap::new(),
            under_way: HashMap::new(),
            fencing: HashMap::new(),
            turns: Turns::default(),
            next_number: 0,
            lookups: Lookups::default(),
            leases: HashMap::new(),
            jobs: HashMap::new(),
            notices: HashMap::new(),
            users: HashMap::new(),
            keep_idle: parts.keep_idle,
            look: LOOK.min(parts.stall / 4).max(Duration::from_millis(1)),
            stopping: None,
            counters: Counters::default(),
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
                _ = look.tick() => {
                    self.look();
                    self.close_idle();
                }
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
        let stopping = self.stopping.take().into_iter();
        for done in stopping.flat_map(|stopping| stopping.waiting) {
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
        // expire by themselves. What touches memory is waited for, unless it was found to take for ever.
        let still = gauges.leases + gauges.transfers + gauges.jobs;
        let over = self.machine.is_idle() || (stopping.until.is_none() && still == gauges.stalled);
        over && self.under_way.is_empty() && self.fencing.len() <= gauges.transfers
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
            if moved != under.seen || under.is_queued() {
                under.seen = moved;
                self.machine.moved(now, *transfer, moved);
            }
        }
    }
}

/// Opens what paths there are on this machine.
fn open(rooms: &[Box<dyn Room>], host: &Host) -> BTreeMap<Path, Box<dyn Carrier>> {
    let carriers = rooms.iter().filter_map(|room| {
        let path = room.path();
        match room.open(host.clone()) {
            Ok(carrier) => Some((path, carrier)),
            Err(error) => {
                tracing::warn!(%path, %error, "a path cannot be had: peers are reached by others");
                None
            }
        }
    });
    carriers.collect()
}

/// What happens.
impl Driver {
    fn on_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Arrived(connection) => self.connected(connection, None),
            Event::Dialled {
                agent,
                result: Ok(connection),
            } => self.connected(connection, Some(agent)),
            Event::Dialled {
                agent,
                result: Err(error),
            } => {
                tracing::warn!(%agent, %error, "could not connect");
                self.machine.connect_failed(now, &agent, error);
            }
            Event::Received { conn, envelope } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.talked = Instant::now();
                }
                self.machine.on_message(now, conn, envelope);
                // Its first message says which instance it is.
                if let Some(connection) = self.connections.get_mut(&conn)
                    && connection.agent.is_none()
                {
                    connection.agent = self.machine.peer_agent(conn);
                }
            }
            Event::Lost { conn, why } => self.lost(conn, &why),
            Event::Path { conn, path, report } => {
                self.machine.path_reported(now, conn, path, report);
            }
            Event::Sending {
                transfer,
                number,
                sending,
            } => self.sending(transfer, number, sending),
            Event::Admit {
                agent,
                header,
                answer,
            } => self.admit(&agent, &header, answer),
            Event::Bound {
                transfer,
                number,
                bound,
            } => self.bound(transfer, number, bound),
            Event::Compiled { ask, plan } => {
                let now = self.now();
                self.machine.compiled(now, &ask, plan);
            }
            Event::Landed {
                header,
                trailer,
                crc,
            } => self.machine.stream_arrived(now, &header, &trailer, crc),
            Event::StreamFailed { transfer, why } => self.failed(transfer, why),
            Event::Fenced { transfer } => {
                self.fencing.remove(&transfer);
                self.machine.fenced(now, transfer);
            }
            Event::Command(command) => self.on_command(command),
        }
    }
}

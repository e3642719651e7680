//! The driver: the one task that owns the machine, passes events to it, and has its own parts carry out the actions.
//!
//! ```text
//!   Driver: the loop; each event goes into the machine, each action to the part that it concerns
//!   ├── promises      who waits for the end of which lease, job and notice
//!   ├── transfers     routes that are bound, read and received here, and their fences
//!   ├── connections   control connections, dialling, and the links of each path
//!   ├── background    compiling plans and binding routes, away from this task
//!   └── counters
//! ```
//!
//! A part owns its state and knows no other part, nor the machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use self::background::Background;
use self::connections::Connections;
use self::dial::DialError;
use self::event::{ControlEvent, DataEvent};
use self::promises::Promises;
use self::shutdown::{NEVER, Shutdown};
pub(super) use self::transfers::Memories;
use self::transfers::Transfers;
use super::deployments::Deployments;
use super::error::TransferError;
use super::metrics::Counters;
use super::options::AgentOptions;
use super::outcome::{JobLabel, JobResult, LeaseOutcome};
use super::promise::Handle;
use super::renewal;
use super::request::Blocks;
use crate::data::{SendError, SendEvent};
use crate::identity::Renewals;
use crate::path::carrier::Provider;
use crate::quic::{CloseCode, ControlConnection, Endpoints};
use transload_layout::{Rank, Side};
use transload_plan::content::{ContentDigest, ContentFingerprint};
use transload_plan::ids::{AgentId, TransferId};
use transload_wire::internal::negotiation::{Ending, Report, Way};
use transload_wire::{Action, BlocksOf, ConnId, Flow, JobError, Machine, Moment, Path, PlanAsk};

mod background;
mod bound;
mod calls;
mod carriers;
mod connections;
mod control;
mod dial;
mod event;
mod log;
mod promises;
mod shutdown;
mod transfers;

/// How often transfers are checked for progress and stalls. Checks are more frequent if the machine's `stall` or
/// `device_stall` is short.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Setup {
    pub(super) machine: Machine<Deployments>,
    pub(super) endpoints: Endpoints,
    pub(super) memories: Memories,
    pub(super) providers: Vec<Box<dyn Provider>>,
    pub(super) options: AgentOptions,
    pub(super) renewals: Option<Renewals>,
}

/// A command of a user, which runs on the driver's own task.
pub(super) type Command = Box<dyn FnOnce(&mut Driver) + Send>;

pub(super) struct Driver {
    pub(super) machine: Machine<Deployments>,
    endpoints: Endpoints,
    connections: Connections,
    transfers: Transfers,
    promises: Promises,
    /// Compiles plans. Binding routes has separate threads, so that a peer cannot delay it with many plans.
    compiling: Background,
    pub(super) counters: Counters,
    start: Instant,
    look: Duration,
    /// How long a device may take for its work.
    device_stall: Duration,
    shutdown: Shutdown,
}

pub(super) struct Inbox {
    data: mpsc::UnboundedReceiver<DataEvent>,
    dropped: mpsc::UnboundedReceiver<Handle>,
    control: mpsc::Receiver<ControlEvent>,
    commands: mpsc::Receiver<Command>,
}

impl Driver {
    /// Must be called inside the runtime of the control thread.
    pub(super) fn new(
        setup: Setup,
        handles: mpsc::UnboundedSender<Handle>,
        commands: mpsc::Receiver<Command>,
        dropped: mpsc::UnboundedReceiver<Handle>,
    ) -> (Self, Inbox) {
        let (endpoints, options) = (setup.endpoints, setup.options);
        // Connections are kept until the requests on them that wait for a lease are over.
        let keep_idle = options.keep_idle.max(options.wire.early_wait.saturating_mul(2));
        let (events, data) = mpsc::unbounded_channel();
        let carriers = carriers::open(&setup.providers, &endpoints, options.data, &setup.memories, events.clone());
        let (connections, control) = Connections::new(endpoints.clone(), carriers, keep_idle, events.clone());
        tokio::spawn({
            let (endpoints, accepting) = (endpoints.clone(), connections.accept());
            async move {
                tokio::select! {
                    () = accepting => {}
                    () = renewal::keep(&endpoints, setup.renewals, options.renew_every) => {}
                }
            }
        });
        let compiling = Background::new(events.clone());
        let driver = Self {
            machine: setup.machine,
            endpoints,
            connections,
            transfers: Transfers::new(setup.memories, events),
            promises: Promises::new(handles),
            compiling,
            counters: Counters::default(),
            start: Instant::now(),
            device_stall: options.wire.device_stall,
            look: LOOK.min(options.wire.stall / 4).min(options.wire.device_stall / 4).max(Duration::from_millis(1)),
            shutdown: Shutdown::default(),
        };
        driver.transfers.watch_memories();
        let inbox = Inbox { data, dropped, control, commands };
        (driver, inbox)
    }

    pub(super) async fn run(mut self, mut inbox: Inbox) {
        let mut look = interval(self.look);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.act(action);
            }
            if self.is_over() {
                break;
            }
            tokio::select! {
                Some(event) = inbox.data.recv() => self.on_data(event),
                Some(handle) = inbox.dropped.recv() => self.cancel(handle),
                Some(event) = inbox.control.recv() => self.on_control(event),
                Some(command) = inbox.commands.recv() => command(&mut self),
                () = sleep_until(self.due().into()) => self.on_deadline(),
                _ = look.tick() => {
                    self.look();
                    self.close_idle();
                }
            }
        }
        self.connections.farewell().await;
        self.endpoints.close(CloseCode::DONE, "shutdown").await;
        self.shutdown.finish();
    }

    pub(super) fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn due(&self) -> Instant {
        let machine_due = self.machine.next_deadline();
        let machine_due = machine_due.map(|due| Instant::now() + due.since(self.now()).min(NEVER));
        let due = machine_due.into_iter().chain(self.shutdown.deadline());
        due.min().unwrap_or_else(|| Instant::now() + NEVER)
    }

    fn is_over(&self) -> bool {
        if !self.shutdown.has_begun() {
            return false;
        }
        let gauges = self.machine.gauges();
        // Notices to owners that cannot be reached do not extend the patience: their leases expire by themselves. Work
        // on memory is waited for, unless it has stalled.
        let still = gauges.leases + gauges.transfers + gauges.jobs;
        let over = self.machine.is_idle() || (self.shutdown.is_impatient() && still == gauges.stalled);
        over && self.transfers.are_over(gauges.transfers)
    }

    fn on_deadline(&mut self) {
        let now = self.now();
        self.machine.on_deadline(now);
        if self.shutdown.runs_out() {
            // Called once: what is given up ends when it is fenced.
            self.machine.give_up(now);
        }
    }

    /// Tells the machine which transfers make progress, and which are stalled.
    fn look(&mut self) {
        let now = self.now();
        for (transfer, moved) in self.transfers.progress() {
            self.machine.moved(now, transfer, moved);
        }
        for transfer in self.transfers.stalled(self.device_stall) {
            self.machine.device_stalled(now, transfer);
        }
    }

    /// Tells the machine which ranks' memory is lost.
    pub(super) fn look_for_losses(&mut self) {
        let now = self.now();
        for rank in self.transfers.lost() {
            self.machine.device_lost(now, rank);
        }
    }

    /// Returns one of these ranks whose memory is lost, if any.
    pub(super) fn lost_of(&self, ranks: &BTreeSet<Rank>) -> Option<Rank> {
        let mut lost = self.transfers.lost().into_iter();
        lost.find(|rank| ranks.contains(rank))
    }

    /// Closes connections that nothing has needed for a while.
    fn close_idle(&mut self) {
        let needed = |agent: &AgentId| self.machine.wants(agent) || self.promises.is_user(agent);
        for conn in self.connections.idle(needed) {
            self.lost(conn, "nothing needs it");
        }
    }

    fn lost(&mut self, conn: ConnId, why: &str) {
        if self.connections.hang_up(conn, &why) {
            let now = self.now();
            self.machine.disconnected(now, conn);
        }
    }
}

/// Events.
impl Driver {
    fn on_control(&mut self, event: ControlEvent) {
        let now = self.now();
        match event {
            ControlEvent::Arrived(connection) => self.connected(connection, None),
            ControlEvent::Dialled { agent, result } => match result {
                Ok(connection) => self.connected(connection, Some(agent)),
                Err(DialError::Unanswered(error)) => {
                    tracing::warn!(%agent, %error, "could not connect");
                    self.machine.connect_unanswered(now, &agent, error);
                }
                Err(DialError::Closed(error)) => {
                    tracing::warn!(%agent, %error, "could not connect");
                    self.machine.connect_refused(now, &agent, error);
                }
                Err(DialError::Failed(error)) => {
                    tracing::warn!(%agent, %error, "could not connect");
                    self.machine.connect_failed(now, &agent, error);
                }
            },
            ControlEvent::Received { conn, envelope } => {
                self.machine.on_message(now, conn, envelope);
                // The peer's first message says which instance it is.
                let agent = || self.machine.peer_agent(conn);
                self.connections.heard(conn, agent);
            }
            ControlEvent::Lost { conn, why } => self.lost(conn, &why),
        }
    }

    fn connected(&mut self, connection: ControlConnection, meant: Option<AgentId>) {
        let now = self.now();
        let service = connection.peer().service.clone();
        let (conn, roles, paths) = self.connections.add(connection, meant.clone());
        let machine = &mut self.machine;
        machine.connected(now, conn, service, meant, roles, paths);
    }

    fn on_data(&mut self, event: DataEvent) {
        let now = self.now();
        match event {
            DataEvent::Path { conn, path, report } => {
                self.machine.path_reported(now, conn, path, report);
            }
            DataEvent::Compiled { ask, plan } => self.machine.compiled(now, &ask, plan),
            DataEvent::Bound { transfer, number, bound } => {
                let counters = &mut self.counters;
                match self.transfers.bound(transfer, number, bound, counters) {
                    // The path was chosen while the route was being bound.
                    Ok(Some(path)) => self.carry(transfer, path),
                    Ok(None) => {}
                    Err(unbound) if unbound.device_stalled => {
                        // The route itself may be fine: the device only has not finished its work in time.
                        tracing::info!(%transfer, why = unbound.why, "a route cannot be bound");
                        self.machine.device_unready(now, transfer);
                    }
                    Err(unbound) => self.failed(transfer, unbound.why),
                }
            }
            DataEvent::Sending { transfer, number, event } => {
                // The event may be about an earlier transfer with the same id.
                if self.transfers.is_under_way(transfer, number) {
                    self.on_sending(transfer, event);
                }
            }
            DataEvent::Admit { agent, header, answer } => match self.machine.admit(now, &agent, &header) {
                Ok(()) => {
                    let counters = &mut self.counters;
                    self.transfers.admit(header.transfer, answer, counters);
                }
                Err(error) => tracing::debug!(%agent, %error, "a data stream was turned away"),
            },
            DataEvent::Landed { header, trailer, crc } => self.machine.stream_arrived(now, &header, &trailer, crc),
            DataEvent::StreamFailed { transfer, why } => self.failed(transfer, why),
            DataEvent::Fenced { transfer } => {
                self.transfers.fenced(transfer);
                self.machine.fenced(now, transfer);
            }
            DataEvent::MemoryLost => self.look_for_losses(),
        }
    }

    fn on_sending(&mut self, transfer: TransferId, event: SendEvent) {
        let now = self.now();
        let error = match event {
            SendEvent::Written { bytes, .. } => {
                return self.machine.stream_sent(now, transfer, bytes);
            }
            SendEvent::Failed { error, .. } => error,
        };
        let why = error.to_string();
        let ending = match error {
            SendError::Panicked => Some(Ending::Panicked),
            SendError::Path(_) => Some(Ending::Failed(why.clone())),
            _ => None,
        };
        // All transfers on the path have failed if its current link is torn. The error may be of an earlier link, which
        // has been replaced.
        if let Some(ending) = ending
            && let Some((conn, path)) = self.transfers.path(transfer)
            && let Some(link) = self.connections.link(conn, path)
            && link.is_torn()
        {
            let way = Way::Out;
            let report = Report::Ended { way, ending };
            self.machine.path_reported(now, conn, path, report);
        }
        self.failed(transfer, why);
    }

    fn failed(&mut self, transfer: TransferId, why: String) {
        let why = match self.transfers.how_far(transfer) {
            Some(how_far) => format!("{why} {how_far}"),
            None => why,
        };
        tracing::info!(%transfer, why, "an attempt has failed here");
        // Lost memory may be the cause, and is reported first.
        self.look_for_losses();
        let now = self.now();
        self.machine.stream_failed(now, transfer, why);
    }
}

/// Actions.
impl Driver {
    fn act(&mut self, action: Action<Blocks>) {
        match action {
            Action::Connect(address) => self.connections.dial(address),
            Action::Close(conn, reason) => self.connections.close(conn, &reason),
            Action::Send(conn, envelope) => {
                if let Err(why) = self.connections.send(conn, &envelope) {
                    self.lost(conn, &why);
                }
            }
            Action::Path(conn, path, order) => self.connections.obey(conn, path, order),
            Action::Compile(ask) => self.compile(ask),
            Action::Read(flow) => self.begin(flow, Side::Source),
            Action::Receive(flow) => self.begin(flow, Side::Destination),
            Action::Readable { transfer, layer, tokens } => self.transfers.readable(transfer, layer, tokens),
            Action::AllReadable(transfer) => self.transfers.all_readable(transfer),
            Action::Flowing(transfer, path) => {
                self.transfers.set_path(transfer, path);
                self.carry(transfer, path);
            }
            Action::Fence(transfer) => {
                self.unlink(transfer);
                self.transfers.fence(transfer, &mut self.counters);
            }
            Action::Finished(transfer) => {
                self.unlink(transfer);
                if let Some(under) = self.transfers.finish(transfer) {
                    under.count_landed(&mut self.counters);
                }
            }
            Action::OtherContent { key, held, stated } => {
                let (held, stated) = (self.fingerprint(&held), self.fingerprint(&stated));
                log::other_content(key, &held, &stated);
            }
            Action::LeaseClaimed(key) => self.promises.lease_claimed(&key),
            Action::LeaseStalled(key) => {
                log::lease_stalled(key);
                self.promises.lease_stalled(&key);
            }
            Action::JobStalled(job, rank) => {
                // The caller learns the result now. The blocks stay in use until `JobDone`.
                let result = Err(JobError::DeviceStalled { rank }.into());
                if let Some((promise, label)) = self.promises.job_stalled(job) {
                    let label = *label;
                    promise.tell(result.clone());
                    self.count(label, &result);
                }
            }
            Action::LeaseEnded { key, end, blocks } => {
                self.counters.lease_ended(end);
                log::lease_ended(key, end);
                if let Some(promise) = self.promises.lease_ended(&key) {
                    let tables = Arc::unwrap_or_clone(blocks);
                    promise.keep(Ok(LeaseOutcome { end, tables }));
                }
            }
            Action::JobDone { job, result, .. } => {
                let Some((promise, label)) = self.promises.job_done(job) else {
                    return;
                };
                let result = result.map_err(TransferError::from);
                // The job was already counted if it was reported as stalled.
                if !promise.is_told() {
                    self.count(label, &result);
                }
                promise.keep(result);
            }
            Action::Pushed(key, result) => {
                if let Err(error) = result {
                    log::invited_push_failed(key, &error.into());
                }
            }
            Action::NoticeDone(notice, outcome) => self.promises.notice_done(notice, outcome),
        }
    }

    fn count(&mut self, label: JobLabel, result: &JobResult) {
        self.counters.job_done(label.direction, result);
        if let Err(error) = result {
            log::job_failed(label, &self.fingerprint(&label.content), error);
        }
    }

    fn compile(&mut self, ask: PlanAsk) {
        self.counters.metrics.plans += 1;
        let ranks = self.transfers.ranks();
        let compiling = self.machine.deployments().compiling(&ask, ranks);
        let event = |plan| DataEvent::Compiled { ask, plan };
        drop(self.compiling.run(compiling, event));
    }

    /// Begins to read or to receive a route, unless the transfer is over already.
    fn begin(&mut self, flow: Flow, side: Side) {
        let Some(plan) = self.machine.take_plan(flow.transfer) else {
            return;
        };
        if let BlocksOf::Lease(key) = &flow.blocks {
            self.promises.lease_used(key, &flow.agent);
        }
        let blocks = self.machine.blocks(flow.blocks).cloned();
        let counters = &mut self.counters;
        self.transfers.begin(flow, side, plan, blocks, counters);
    }

    /// Carries an outgoing transfer over a path, if it is bound already.
    fn carry(&mut self, transfer: TransferId, path: Path) {
        let Some((conn, outgoing)) = self.transfers.outgoing(transfer) else {
            return;
        };
        match self.connections.link(conn, path) {
            Some(link) => link.carry(outgoing),
            None => self.failed(transfer, format!("there is no path {path} here")),
        }
    }

    fn unlink(&mut self, transfer: TransferId) {
        if let Some((conn, outgoing)) = self.transfers.outgoing(transfer) {
            self.connections.forget(conn, outgoing);
        }
    }

    fn fingerprint(&self, content: &ContentDigest) -> ContentFingerprint {
        content.fingerprint(self.endpoints.ticket_secret().as_bytes())
    }
}

impl Drop for Driver {
    /// Fences the transfers that are left. When the driver ends by itself there are none; but if it panics, the threads
    /// that move bytes go on.
    fn drop(&mut self) {
        // Peers must not wait for answers that will never come.
        self.endpoints.hang_up(CloseCode::SHUTTING_DOWN, "the agent has stopped");
        if std::thread::panicking() {
            tracing::error!("the agent has stopped: its driver has panicked");
        }
        self.promises.abandon(self.transfers.abandon());
    }
}

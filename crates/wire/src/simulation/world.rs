//! A world: agents, clocks and a network, in virtual time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use transload_plan::codec::Codec;
use transload_plan::ids::{ClusterName, LeaseSetId, ServiceName, TransferId};

use super::event::{CALM, Event, MS, S, Step, Time};
use super::faults::{Fault, Told};
use super::marks::Handed;
use super::memory::{Blocks, Memory};
use super::rng::Rng;
use super::state::{Deployment, Link, Node, Request, SimMachine, View};
use crate::lease::{LeaseEnd, LeaseLimits};
use crate::moment::Moment;
use crate::ticket::{RankAddress, TicketKey};
use crate::{Action, BlocksOf, ConnId, Machine, Options, Roles};

pub(super) struct World {
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    pub(super) rng: Rng,
    pub(super) chaos: f64,
    pub(super) fault: Option<Fault>,
    pub(super) nodes: Vec<Node>,
    pub(super) deployments: Vec<Deployment>,
    pub(super) links: HashMap<ConnId, Link>,
    /// Nodes that cannot reach each other, in both orders.
    pub(super) parted: HashSet<(usize, usize)>,
    pub(super) memory: Memory,
    pub(super) requests: Vec<Request>,
    /// The expected outcome of leases and jobs, by their blocks.
    pub(super) views: HashMap<u64, View>,
    pub(super) waiting: HashMap<u64, Handed>,
    pub(super) unmarked: Option<usize>,
    pub(super) committed: HashSet<TransferId>,
    pub(super) stalled: HashSet<u64>,
    pub(super) told: Told,
    pub(super) failure: Option<String>,
    pub(super) calls: u64,
    /// A node to kill, and the number of calls after which to kill it.
    pub(super) kill_at: Option<(usize, u64)>,
    /// Whether the killed node's deployment restarts then.
    pub(super) revive: bool,
    pub(super) tally: Tally,
    /// Whether actions of machines are printed; set by `TRANSLOAD_TRACE`.
    trace: bool,
}

/// Counts of what happened, which show that the worlds differ.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) jobs_ok: u64,
    pub(super) jobs_failed: BTreeMap<String, u64>,
    pub(super) leases: BTreeMap<LeaseEnd, u64>,
    pub(super) paths: BTreeMap<String, u64>,
    pub(super) retried: u64,
    pub(super) stalled: u64,
}

impl World {
    pub(super) fn new(seed: u64, chaos: f64, fault: Option<Fault>) -> Self {
        Self {
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            rng: Rng::new(seed),
            chaos,
            fault,
            nodes: Vec::new(),
            deployments: Vec::new(),
            links: HashMap::new(),
            parted: HashSet::new(),
            memory: Memory::default(),
            requests: Vec::new(),
            views: HashMap::new(),
            waiting: HashMap::new(),
            unmarked: None,
            committed: HashSet::new(),
            stalled: HashSet::new(),
            told: Told::default(),
            failure: None,
            calls: 0,
            kill_at: None,
            revive: false,
            tally: Tally::default(),
            trace: std::env::var_os("TRANSLOAD_TRACE").is_some(),
        }
    }

    pub(super) fn mishap(&mut self, p: f64) -> bool {
        self.now < CALM && self.rng.chance(p * self.chaos)
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), event);
    }

    pub(super) fn violated(&mut self, what: impl Into<String>) {
        let now = self.now as f64 / S as f64;
        self.failure.get_or_insert_with(|| format!("at {now:.6} s: {}", what.into()));
    }

    pub(super) fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.violated(what);
        }
    }

    pub(super) fn run(&mut self) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.tally.events += 1;
            if self.tally.events > 300_000 {
                self.violated("it goes on for ever");
            }
            if self.failure.is_some() {
                return;
            }
            self.happen(event);
        }
        self.check_calm();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Timer(n, life, generation) if self.lives(n, life) && self.nodes[n].generation == generation => {
                self.nodes[n].armed = None;
                self.call(n, |machine, now| machine.on_deadline(now));
            }
            Event::Dial(n, life, agent) if self.lives(n, life) => self.dial(n, agent),
            Event::DialFailed(n, life, agent) if self.lives(n, life) => {
                self.call(n, |machine, now| machine.connect_failed(now, &agent, "nobody answers"));
            }
            Event::Connected(n, life, conn, agent, dialled) if self.lives(n, life) => {
                let paths = self.negotiations(n, conn, dialled);
                self.call(n, |machine, now| {
                    let service = ServiceName::from(&agent);
                    let dialled = dialled.then_some(agent);
                    machine.connected(now, conn, service, dialled, Roles::all(), paths);
                });
            }
            Event::Disconnected(n, life, conn) if self.lives(n, life) => {
                let link = self.links.get_mut(&conn).expect("a link stays");
                let end = usize::from(link.ends[1] == (n, life));
                if std::mem::replace(&mut link.open[end], false) {
                    self.call(n, |machine, now| machine.disconnected(now, conn));
                }
            }
            Event::Deliver(conn, end, envelope) => {
                let link = &self.links[&conn];
                let (n, life) = link.ends[end];
                if !link.broken && link.open[end] && self.lives(n, life) {
                    self.call(n, |machine, now| machine.on_message(now, conn, envelope));
                }
            }
            Event::Compiled(n, life, ask, plan) if self.lives(n, life) => {
                self.call(n, |machine, now| machine.compiled(now, &ask, plan));
            }
            Event::Fenced(n, life, transfer, stopped) if self.lives(n, life) => {
                if stopped {
                    self.forget_streams(n, transfer);
                }
                self.call(n, |machine, now| machine.fenced(now, transfer));
            }
            Event::Stream(n, life, transfer, event) if self.lives(n, life) => {
                self.on_stream(n, transfer, event);
            }
            Event::Channel(n, life, conn, path, event) if self.lives(n, life) => {
                self.on_channel(n, conn, path, event);
            }
            Event::Step(step) => self.step(step),
            _ => {}
        }
    }

    pub(super) fn lives(&self, n: usize, life: u32) -> bool {
        self.nodes[n].machine.is_some() && self.nodes[n].life == life
    }

    /// Calls a machine, carries out its actions, and checks the rules.
    pub(super) fn call<R>(&mut self, n: usize, call: impl FnOnce(&mut SimMachine, Moment) -> R) -> Option<R> {
        let now = self.local(n);
        let result = call(self.nodes[n].machine.as_mut()?, now);
        self.calls += 1;
        while let Some(action) = self.nodes[n].machine.as_mut().and_then(Machine::poll_action) {
            self.act(n, action);
        }
        self.audit(n);
        self.arm(n);
        if let Some((victim, at)) = self.kill_at
            && self.calls == at
        {
            self.kill(victim);
            if self.revive {
                let deployment = self.nodes[victim].deployment;
                let clock_back = false;
                let step = Step::Restart { deployment, clock_back };
                let soon = self.rng.below(500 * MS);
                self.after(soon, Event::Step(step));
            }
        }
        Some(result)
    }

    fn act(&mut self, n: usize, action: Action<Blocks>) {
        let life = self.nodes[n].life;
        if self.trace {
            let (now, agent) = (self.now as f64 / S as f64, &self.nodes[n].agent);
            eprintln!("{now:.6} {agent}: {action:?}");
        }
        match action {
            Action::Connect(RankAddress { agent, .. }) => {
                let delay = self.rng.delay(2 * MS, 200 * MS);
                self.after(delay, Event::Dial(n, life, agent));
            }
            Action::Close(conn, _) => self.close(n, conn),
            Action::Send(conn, envelope) => self.send(n, conn, envelope),
            Action::Path(conn, path, order) => self.obey(n, conn, path, order),
            Action::OtherContent { .. }
            | Action::NoticeDone { .. }
            | Action::Pushed { .. }
            | Action::Flowing { .. }
            | Action::LeaseClaimed { .. } => {}
            Action::Compile(ask) => {
                let machine = self.nodes[n].machine.as_ref();
                let plan = machine.expect("it acts").deployments().compile(&ask);
                let slow = if self.mishap(0.05) { 3 * S } else { 20 * MS };
                let delay = self.rng.delay(MS / 10, slow);
                self.after(delay, Event::Compiled(n, life, ask, plan));
            }
            Action::Read(flow) => self.start_reading(n, flow),
            Action::Readable { transfer, layer, tokens } => self.more_readable(n, transfer, Some((layer, tokens))),
            Action::AllReadable(transfer) => self.more_readable(n, transfer, None),
            Action::Receive(flow) => self.start_receiving(n, flow),
            Action::Fence(transfer) => self.fence_streams(n, transfer),
            Action::Finished(transfer) => self.forget_streams(n, transfer),
            Action::LeaseStalled(key) => self.stalled(n, BlocksOf::Lease(key)),
            Action::JobStalled(job, _) => self.stalled(n, BlocksOf::Job(job)),
            Action::LeaseEnded { key, end, blocks } => self.lease_ended(n, key, end, blocks),
            Action::JobDone { result, blocks, .. } => self.job_done(n, result, blocks),
        }
    }

    fn arm(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some(next) = node.machine.as_ref().map(Machine::next_deadline) else {
            return;
        };
        if next == node.armed {
            return;
        }
        node.armed = next;
        node.generation += 1;
        if let Some(at) = next {
            let (life, generation) = (node.life, node.generation);
            let local = u64::try_from(at.0.as_nanos()).expect("near");
            let since = local.saturating_sub(node.offset);
            let global = (since.saturating_mul(1_000_000) / node.rate) + 2;
            let late = if self.mishap(0.2) { self.rng.below(100 * MS) } else { 0 };
            let delay = global.saturating_sub(self.now) + late;
            self.after(delay, Event::Timer(n, life, generation));
        }
    }

    pub(super) fn local(&self, n: usize) -> Moment {
        let node = &self.nodes[n];
        let since = u128::from(self.now) * u128::from(node.rate) / 1_000_000;
        Moment(Duration::from_nanos(node.offset + since as u64))
    }
}

pub(super) fn cluster() -> ClusterName {
    ClusterName::new("sim").expect("a good name")
}

pub(super) fn ticket_key() -> TicketKey {
    TicketKey::new(&[1; 32])
}

pub(super) fn set_id(n: u64) -> LeaseSetId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    LeaseSetId(id)
}

/// Returns shorter and tighter options than the default ones, so that limits are reached.
pub(super) fn options() -> Options {
    Options {
        leases: LeaseLimits { peer_grace: Duration::from_secs(2), ..LeaseLimits::default() },
        codecs: vec![Codec::Q8],
        early_wait: Duration::from_secs(2),
        early: 24,
        early_per_agent: 12,
        early_per_service: 18,
        transfers_per_agent: 6,
        transfers_per_service: 6,
        places_per_agent: 60,
        places_per_service: 600,
        connections_per_agent: 8,
        connections_per_service: 64,
        unnamed_per_service: 64,
        jobs: 64,
        invited_per_service: 32,
        hello_wait: Duration::from_secs(1),
        connect_wait: Duration::from_secs(3),
        stall: Duration::from_secs(3),
        heartbeat: Duration::from_secs(1),
        landing_wait: Duration::from_secs(5),
        attempts: 3,
        backoff: Duration::from_millis(20),
        backoff_most: Duration::from_millis(500),
        device_stall: Duration::from_secs(4),
        notice_wait: Duration::from_secs(15),
        notices: 64,
    }
}

//! Agents, clocks and a network, in virtual time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::Fault;
use super::memory::{Blocks, Memory};
use super::plan::{Shape, SimPlanner};
use super::rng::Rng;
use super::script::{Request, Step};
use super::streams::{Flowing, Reading, StreamEvent};
use crate::ids::{AgentId, ClusterName, Incarnation, LeaseSetId, Rank, TransferId};
use crate::lease::{LeaseEnd, LeaseKey, LeaseLimits};
use crate::moment::Moment;
use crate::ticket::TicketKey;
use crate::wire::message::{Envelope, Message};
use crate::wire::transfer::Side;
use crate::wire::{
    Action, ConnId, Identity, JobError, JobReport, Machine, Options, Path, PathSet, Permits,
};

/// Nanoseconds since the world began.
pub(super) type Time = u64;

pub(super) const MS: Time = 1_000_000;
pub(super) const S: Time = 1000 * MS;

/// From here on nothing breaks any more.
pub(super) const CALM: Time = 8 * S;

pub(super) type SimMachine = Machine<Blocks, SimPlanner>;

pub(super) struct World {
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    pub(super) rng: Rng,
    /// How bad things are, from 0.
    pub(super) chaos: f64,
    pub(super) fault: Option<Fault>,
    pub(super) nodes: Vec<Node>,
    pub(super) deployments: Vec<Deployment>,
    pub(super) links: HashMap<ConnId, Link>,
    /// Nodes that cannot reach each other, both ways.
    pub(super) parted: HashSet<(usize, usize)>,
    pub(super) memory: Memory,
    pub(super) requests: Vec<Request>,
    /// What leases and jobs must come to, by their blocks.
    pub(super) views: HashMap<u64, View>,
    /// Transfers for which a commit was sent.
    pub(super) committed: HashSet<TransferId>,
    pub(super) failure: Option<String>,
    /// Calls into machines so far.
    pub(super) calls: u64,
    /// Node to kill after so many calls.
    pub(super) kill_at: Option<(usize, u64)>,
    /// Whether its deployment restarts after that.
    pub(super) revive: bool,
    pub(super) tally: Tally,
    /// `TRANSLOAD_TRACE` prints what machines want.
    trace: bool,
}

/// What happened, to see that the worlds are not all alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) jobs_ok: u64,
    pub(super) jobs_failed: BTreeMap<String, u64>,
    pub(super) leases: BTreeMap<LeaseEnd, u64>,
    pub(super) paths: BTreeMap<String, u64>,
    pub(super) retried: u64,
}

pub(super) struct Node {
    pub(super) agent: AgentId,
    pub(super) deployment: usize,
    pub(super) ranks: BTreeSet<Rank>,
    pub(super) host: u64,
    pub(super) life: u32,
    pub(super) machine: Option<SimMachine>,
    offset: u64,
    /// Millionths: how fast its clock runs.
    rate: u64,
    armed: Option<Moment>,
    generation: u64,
    pub(super) reading: HashMap<TransferId, Reading>,
    pub(super) receiving: HashMap<TransferId, Flowing>,
}

pub(super) struct Deployment {
    pub(super) shape: Shape,
    pub(super) incarnation: Incarnation,
    pub(super) nodes: Vec<usize>,
}

pub(super) struct Link {
    pub(super) ends: [(usize, u32); 2],
    open: [bool; 2],
    /// Earliest delivery to each end, so that messages stay in order.
    earliest: [Time; 2],
    broken: bool,
}

pub(super) enum View {
    Lease {
        key: LeaseKey,
        request: usize,
        hard: Moment,
        hard_bound: Duration,
        cancelled: bool,
        ended: Option<LeaseEnd>,
    },
    Job {
        request: usize,
        ranks: BTreeSet<Rank>,
        node: usize,
        started: Moment,
        timeout: Duration,
        /// Whether its content is another than the lease's.
        wrong: bool,
        done: Option<bool>,
    },
}

pub(super) enum Event {
    Timer(usize, u32, u64),
    Dial(usize, u32, AgentId),
    DialFailed(usize, u32, AgentId),
    Connected(usize, u32, ConnId, AgentId),
    Disconnected(usize, u32, ConnId),
    /// To the end with this index.
    Deliver(ConnId, usize, Envelope),
    Fenced(usize, u32, TransferId),
    Stream(usize, u32, TransferId, StreamEvent),
    Step(Step),
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
            committed: HashSet::new(),
            failure: None,
            calls: 0,
            kill_at: None,
            revive: false,
            tally: Tally::default(),
            trace: std::env::var_os("TRANSLOAD_TRACE").is_some(),
        }
    }

    /// Whether something that seldom happens happens now.
    pub(super) fn mishap(&mut self, p: f64) -> bool {
        self.now < CALM && self.rng.chance(p * self.chaos)
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), event);
    }

    pub(super) fn violated(&mut self, what: impl Into<String>) {
        let now = self.now as f64 / S as f64;
        self.failure
            .get_or_insert_with(|| format!("at {now:.6} s: {}", what.into()));
    }

    pub(super) fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.violated(what);
        }
    }

    /// Runs until nothing is left to happen.
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
            Event::Timer(n, life, generation) => {
                if self.lives(n, life) && self.nodes[n].generation == generation {
                    self.nodes[n].armed = None;
                    self.call(n, |machine, now| machine.on_deadline(now));
                }
            }
            Event::Dial(n, life, agent) if self.lives(n, life) => self.dial(n, agent),
            Event::DialFailed(n, life, agent) if self.lives(n, life) => {
                self.call(n, |machine, now| machine.connect_failed(now, &agent));
            }
            Event::Connected(n, life, conn, agent) if self.lives(n, life) => {
                self.call(n, |machine, now| {
                    machine.connected(now, conn, agent, Permits::ALL);
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
            Event::Fenced(n, life, transfer) if self.lives(n, life) => {
                self.forget_streams(n, transfer);
                self.call(n, |machine, now| machine.fenced(now, transfer));
            }
            Event::Stream(n, life, transfer, event) if self.lives(n, life) => {
                self.on_stream(n, transfer, event);
            }
            Event::Step(step) => self.step(step),
            _ => {}
        }
    }

    pub(super) fn lives(&self, n: usize, life: u32) -> bool {
        self.nodes[n].machine.is_some() && self.nodes[n].life == life
    }

    /// Calls into a machine, does what it wants, and looks whether all is well.
    pub(super) fn call<R>(
        &mut self,
        n: usize,
        call: impl FnOnce(&mut SimMachine, Moment) -> R,
    ) -> Option<R> {
        let now = self.local(n);
        let result = call(self.nodes[n].machine.as_mut()?, now);
        self.calls += 1;
        while let Some(action) = self.nodes[n]
            .machine
            .as_mut()
            .and_then(Machine::poll_action)
        {
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
                let step = Step::Restart {
                    deployment,
                    clock_back,
                };
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
            Action::Connect { agent, .. } => {
                let delay = self.rng.delay(2 * MS, 200 * MS);
                self.after(delay, Event::Dial(n, life, agent));
            }
            Action::Close { conn, .. } => self.close(n, conn),
            Action::Send { conn, envelope } => self.send(n, conn, envelope),
            Action::Lanes { .. } | Action::NoticeDone { .. } | Action::Flowing { .. } => {}
            Action::Read(flow) => self.start_reading(n, flow),
            Action::Readable {
                transfer,
                layer,
                tokens,
            } => self.more_readable(n, transfer, Some((layer, tokens))),
            Action::AllReadable { transfer } => self.more_readable(n, transfer, None),
            Action::Receive(flow) => self.start_receiving(n, flow),
            Action::Copy { transfer } => self.start_copying(n, transfer),
            Action::Fence { transfer } => self.fence_streams(n, transfer),
            Action::Finished { transfer } => self.forget_streams(n, transfer),
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
            let late = if self.mishap(0.2) {
                self.rng.below(100 * MS)
            } else {
                0
            };
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

/// The network.
impl World {
    fn dial(&mut self, from: usize, agent: AgentId) {
        let life = self.nodes[from].life;
        let there = |node: &Node| node.agent == agent && node.machine.is_some();
        let target = self.nodes.iter().position(there);
        let target = target.filter(|to| !self.parted.contains(&(from, *to)));
        let target = target.filter(|_| !self.mishap(0.1));
        let Some(to) = target else {
            let timeout = if self.rng.chance(0.5) {
                MS
            } else {
                self.rng.within(MS, S)
            };
            self.after(timeout, Event::DialFailed(from, life, agent));
            return;
        };
        let conn = ConnId(self.links.len() as u64 + 1);
        let there = self.rng.delay(MS, 20 * MS);
        let here = there + self.rng.delay(MS, 20 * MS);
        let (to_life, name) = (self.nodes[to].life, self.nodes[from].agent.clone());
        let link = Link {
            ends: [(from, life), (to, to_life)],
            open: [true; 2],
            earliest: [self.now + here, self.now + there],
            broken: false,
        };
        self.links.insert(conn, link);
        self.after(there, Event::Connected(to, to_life, conn, name));
        self.after(here, Event::Connected(from, life, conn, agent));
        if self.mishap(0.05) {
            let soon = self.rng.below(50 * MS);
            self.after(soon, Event::Step(Step::Break(conn)));
        }
    }

    fn send(&mut self, n: usize, conn: ConnId, envelope: Envelope) {
        self.watch(n, &envelope.message);
        let delay = match self.chaos > 0.0 && self.now < CALM {
            true => self.rng.delay(2 * MS, 300 * MS),
            false => self.rng.delay(MS, 2 * MS),
        };
        let link = self.links.get_mut(&conn).expect("a link stays");
        let end = usize::from(link.ends[0].0 == n);
        if link.broken || !link.open[1 - end] {
            return;
        }
        // A duplicate comes with the original or some time after it.
        let at = link.earliest[end].max(self.now + delay);
        link.earliest[end] = at;
        let delay = at - self.now;
        if self.mishap(0.1) {
            let again = delay + self.rng.below(5 * MS);
            self.after(again, Event::Deliver(conn, end, envelope.clone()));
        }
        self.after(delay, Event::Deliver(conn, end, envelope));
    }

    fn close(&mut self, n: usize, conn: ConnId) {
        let link = self.links.get_mut(&conn).expect("a link stays");
        let other = usize::from(link.ends[0].0 == n);
        link.open[1 - other] = false;
        let (node, life) = link.ends[other];
        let delay = link.earliest[other].saturating_sub(self.now) + MS;
        self.after(delay, Event::Disconnected(node, life, conn));
    }

    /// A connection breaks. Each end notices in its own time.
    pub(super) fn cut(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if std::mem::replace(&mut link.broken, true) {
            return;
        }
        for (node, life) in link.ends {
            let delay = match self.rng.chance(0.5) {
                true => self.rng.below(5 * MS),
                false => self.rng.below(1500 * MS),
            };
            self.after(delay, Event::Disconnected(node, life, conn));
        }
    }

    pub(super) fn kill(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.machine.take().is_none() {
            return;
        }
        node.reading.clear();
        node.receiving.clear();
        let end = (n, node.life);
        let links = self
            .links
            .iter()
            .filter(|(_, link)| link.ends.contains(&end));
        let mut conns: Vec<_> = links.map(|(conn, _)| *conn).collect();
        conns.sort_unstable();
        conns.into_iter().for_each(|conn| self.cut(conn));
    }

    /// A node begins a life, the one of its deployment.
    pub(super) fn boot(&mut self, n: usize) {
        let node = &self.nodes[n];
        let deployment = &self.deployments[node.deployment];
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&self.rng.next().to_le_bytes());
        let identity = Identity {
            agent: node.agent.clone(),
            cluster: cluster(),
            incarnation: deployment.incarnation,
            document: deployment.shape.document(),
            ranks: node.ranks.clone(),
            ticket_key: ticket_key(),
            secret,
        };
        let host = node.host;
        let near = self.nodes.iter().filter(|other| other.host == host);
        let planner = SimPlanner {
            me: deployment.shape,
            known: HashMap::new(),
            near: near.map(|other| other.agent.clone()).collect(),
            near_paths: if host == 0 {
                PathSet::ANY
            } else {
                [Path::Quic, Path::Ring].into_iter().collect()
            },
        };
        let mut machine = Machine::new(identity, options(), planner).expect("a short document");
        machine.fault = self.fault;
        let node = &mut self.nodes[n];
        node.life += 1;
        node.machine = Some(machine);
        node.armed = None;
        node.offset = self.rng.below(1000 * S);
        node.rate = self.rng.within(900_000, 1_100_000);
    }

    pub(super) fn add_node(&mut self, agent: String, deployment: usize, ranks: BTreeSet<Rank>) {
        let n = self.nodes.len();
        let host = self.rng.below(3);
        self.nodes.push(Node {
            agent: AgentId::new(agent).expect("a good name"),
            deployment,
            ranks,
            host,
            life: 0,
            machine: None,
            offset: 0,
            rate: 1,
            armed: None,
            generation: 0,
            reading: HashMap::new(),
            receiving: HashMap::new(),
        });
        self.deployments[deployment].nodes.push(n);
    }
}

/// What must hold at every moment.
impl World {
    /// A commit may be said only while the owner's lease is alive by the owner's clock.
    fn watch(&mut self, n: usize, message: &Message) {
        let Message::Commit { transfer, .. } = message else {
            return;
        };
        self.committed.insert(*transfer);
        let now = self.local(n);
        let machine = self.nodes[n].machine.as_ref().expect("it sends");
        let side = machine.transfers.get(transfer).map(|t| t.side);
        let Some(Side::Lease(key)) = side else {
            return;
        };
        let blocks = machine.leases.blocks(&key).map(|blocks| blocks.0);
        match blocks.and_then(|blocks| self.views.get(&blocks)) {
            Some(View::Lease {
                hard, cancelled, ..
            }) => {
                if *cancelled || now >= *hard {
                    self.violated(format!("{transfer} is committed, and its lease is over"));
                }
            }
            _ => self.violated(format!("{transfer} is committed without a lease")),
        }
    }

    fn audit(&mut self, n: usize) {
        let node = &self.nodes[n];
        let Some(machine) = &node.machine else {
            return;
        };
        let options = options();
        let gauges = machine.gauges();
        let transfers = options.transfers_per_agent * self.nodes.len() * 2;
        if gauges.early > options.early
            || gauges.transfers + gauges.queued > transfers
            || gauges.notices > options.notices
            || gauges.agents > self.nodes.len()
        {
            self.violated(format!(
                "{} holds too much: {gauges:?}",
                self.nodes[n].agent
            ));
            return;
        }
        let past = machine.agents.iter().find_map(|(agent, known)| {
            let incarnation = known.incarnation()?;
            machine.leases.bound_elsewhere(agent, incarnation)
        });
        if let Some(key) = past {
            self.violated(format!("lease {key} is bound to a life that is over"));
        }
    }

    fn lease_ended(&mut self, n: usize, key: LeaseKey, end: LeaseEnd, blocks: Blocks) {
        *self.tally.leases.entry(end).or_default() += 1;
        let (id, agent) = (blocks.0, self.nodes[n].agent.clone());
        let given = self.memory.give_back(blocks);
        self.check(given);
        let Some(View::Lease { request, ended, .. }) = self.views.get_mut(&id) else {
            return self.violated(format!("{agent} ends {key} with other blocks"));
        };
        let request = *request;
        if ended.replace(end).is_some() {
            self.violated(format!("{agent} ends {key} twice"));
        }
        if end == LeaseEnd::Completed {
            let whole = self.opening_is_whole(request, key.rank, id);
            self.check(whole);
        }
    }

    fn job_done(&mut self, n: usize, result: Result<JobReport, JobError>, blocks: Blocks) {
        let (id, now) = (blocks.0, self.local(n));
        let given = self.memory.give_back(blocks);
        self.check(given);
        let Some(View::Job {
            request,
            ranks,
            wrong,
            started,
            timeout,
            done,
            ..
        }) = self.views.get_mut(&id)
        else {
            return self.violated("a job ends with other blocks");
        };
        if done.replace(result.is_ok()).is_some() {
            return self.violated("a job is done twice");
        }
        let (request, ranks, wrong) = (*request, ranks.clone(), *wrong);
        // Fences and late timers come on top.
        if now > *started + *timeout + Duration::from_secs(1) {
            return self.violated("a job takes longer than it may");
        }
        match result {
            Ok(report) => {
                self.tally.jobs_ok += 1;
                for route in &report.routes {
                    *self.tally.paths.entry(route.path.to_string()).or_default() += 1;
                    self.tally.retried += u64::from(route.attempts > 1);
                }
                // A rank without a route needs nothing from anybody.
                if wrong && !report.routes.is_empty() {
                    return self.violated("a job got content that it did not ask for");
                }
                let whole = self.job_is_whole(request, &ranks, id, &report);
                self.check(whole);
            }
            Err(error) => {
                let name = format!("{error:?}");
                let name = name.split(['{', '(']).next().unwrap_or_default().trim();
                let name = match &error {
                    JobError::Refused { refusal, .. } => format!("refused: {refusal:?}"),
                    JobError::Failed { failure, .. } => format!("failed: {failure:?}"),
                    _ => name.to_owned(),
                };
                let name = name.split('{').next().unwrap_or_default().trim().to_owned();
                *self.tally.jobs_failed.entry(name).or_default() += 1;
            }
        }
    }

    /// Nothing may be left behind once everything has had its time.
    fn check_calm(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(machine) = &self.nodes[n].machine else {
                continue;
            };
            let (gauges, agent) = (machine.gauges(), self.nodes[n].agent.clone());
            let streams = self.nodes[n].reading.len() + self.nodes[n].receiving.len();
            if !machine.is_idle() || gauges.timers != 0 || streams != 0 {
                self.violated(format!("{agent} is stuck: {gauges:?}, {streams} streams"));
            }
        }
        let lives: Vec<_> = self
            .nodes
            .iter()
            .map(|n| n.machine.as_ref().map(|_| n.life))
            .collect();
        let missing = self.memory.missing(&lives);
        if !missing.is_empty() {
            self.violated(format!("blocks {missing:?} were never given back"));
        }
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

/// Everything shorter and tighter than usual, so that bounds are met.
pub(super) fn options() -> Options {
    Options {
        leases: LeaseLimits {
            peer_grace: Duration::from_secs(2),
            ..LeaseLimits::default()
        },
        early_wait: Duration::from_secs(2),
        early: 24,
        early_per_agent: 12,
        transfers_per_agent: 6,
        jobs: 64,
        hello_wait: Duration::from_secs(1),
        stall: Duration::from_secs(3),
        heartbeat: Duration::from_secs(1),
        landing_wait: Duration::from_secs(5),
        attempts: 3,
        backoff: Duration::from_millis(20),
        backoff_most: Duration::from_millis(500),
        notice_wait: Duration::from_secs(15),
        notices: 64,
    }
}

//! What the engines around the agents do: requests, restarts, second thoughts. All from a seed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::memory::LAYERS;
use super::plan::Shape;
use super::world::{
    Deployment, Event, Link, MS, S, Time, View, World, cluster, set_id, ticket_key,
};
use crate::content::ContentDigest;
use crate::ids::{Direction, Incarnation, Rank};
use crate::lease::{LeaseKey, LeaseSpec};
use crate::ticket::{Claims, RankAddress, Ticket};
use crate::wire::{ConnId, JobSpec, PathSet};

/// One request and its ticket.
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) owner: usize,
    pub(super) holder: usize,
    pub(super) key: u64,
    pub(super) tokens: (u64, u64),
    pub(super) content: ContentDigest,
    pub(super) ticket: Ticket,
    pub(super) by_layer: bool,
    pub(super) prefilled: bool,
    pub(super) paths: PathSet,
    pub(super) ttl: Duration,
    pub(super) hard_bound: Duration,
    /// Source rank, and the blocks that it was to be read from.
    pub(super) sources: Vec<(Rank, u64)>,
}

/// What somebody decides to do.
pub(super) enum Step {
    OpenLease {
        node: usize,
        rank: Rank,
        request: usize,
    },
    StartJob {
        node: usize,
        ranks: BTreeSet<Rank>,
        request: usize,
        wrong: bool,
        timeout: Duration,
    },
    /// A layer of a source's blocks is computed; or, without one, all of them.
    Computed {
        blocks: u64,
        layer: Option<u32>,
    },
    CancelBlocks {
        blocks: u64,
    },
    RenewLease {
        blocks: u64,
    },
    CancelTicket {
        node: usize,
        request: usize,
    },
    RenewTicket {
        node: usize,
        request: usize,
    },
    Break(ConnId),
    BreakAny,
    /// Two nodes cannot reach each other for so long.
    Part(usize, usize, Time),
    Heal(usize, usize),
    Kill(usize),
    /// Every node of a deployment dies, and begins another life.
    Restart {
        deployment: usize,
        clock_back: bool,
    },
    Boot {
        node: usize,
        reopen: bool,
    },
}

impl World {
    /// A world with deployments, requests, and trouble.
    pub(super) fn build(&mut self) {
        let prefill = self.add_deployment("p", 2, 2);
        let decode = self.add_deployment("d", 3, 2);
        let rival = self.mishap(0.2).then(|| {
            let rival = self.add_deployment("r", 1, 2);
            self.deployments[rival].shape.salt = self.deployments[decode].shape.salt;
            rival
        });
        (0..self.nodes.len()).for_each(|n| self.boot(n));
        for key in 0..self.rng.within(1, 3) {
            let push = self.rng.chance(0.35);
            let (owner, holder) = if push {
                (decode, prefill)
            } else {
                (prefill, decode)
            };
            let request = self.add_request(key, push, owner, holder);
            self.schedule(request);
            if let Some(rival) = rival.filter(|_| !push) {
                self.schedule_rival(request, rival);
            }
        }
        if self.chaos > 0.0 {
            self.schedule_trouble();
        }
    }

    fn add_deployment(&mut self, name: &str, agents: u64, ranks: u64) -> usize {
        let id = self.deployments.len();
        let (agents, each) = (self.rng.within(1, agents), self.rng.within(1, ranks) as u32);
        let salt = self.rng.below(4) as u8;
        self.deployments.push(Deployment {
            shape: Shape {
                ranks: agents as u32 * each,
                salt,
            },
            incarnation: Incarnation::new(1_000_000, self.rng.next()),
            nodes: Vec::new(),
        });
        for agent in 0..agents {
            let first = agent as u32 * each;
            let ranks = (first..first + each).map(Rank).collect();
            self.add_node(format!("{name}{agent}"), id, ranks);
        }
        id
    }

    fn add_request(&mut self, key: u64, push: bool, owner: usize, holder: usize) -> usize {
        let (start, tokens) = (self.rng.below(3), self.rng.within(1, 6));
        let direction = if push {
            Direction::Push
        } else {
            Direction::Pull
        };
        let ranks = (0..self.deployments[owner].shape.ranks).map(|rank| {
            let node = self.deployments[owner].nodes.iter();
            let mut node = node.filter(|n| self.nodes[**n].ranks.contains(&Rank(rank)));
            let agent = self.nodes[*node.next().expect("each rank has a node")]
                .agent
                .clone();
            RankAddress {
                host: agent.to_string(),
                agent,
                port: 7600,
            }
        });
        let claims = Claims {
            cluster: cluster(),
            set: set_id(key),
            direction,
            owner: self.deployments[owner].shape.digest(),
            incarnation: self.deployments[owner].incarnation,
            start: if push { start } else { 0 },
            valid_tokens: start + tokens,
            ranks: ranks.collect(),
            time_left: Duration::from_secs(5),
            audience: None,
        };
        let ticket = Ticket::mint(&ticket_key(), &claims).expect("good claims");
        let short = self.mishap(0.25);
        let ms = Duration::from_millis;
        let paths = match self.rng.below(4) {
            0 => PathSet::QUIC,
            _ => PathSet::ANY,
        };
        let request = Request {
            direction,
            owner,
            holder,
            key,
            tokens: (start, tokens),
            content: ContentDigest([key as u8; 32]),
            ticket,
            by_layer: self.rng.chance(0.5),
            prefilled: self.rng.chance(0.5),
            paths,
            ttl: if short {
                ms(self.rng.within(50, 1500))
            } else {
                ms(6000)
            },
            hard_bound: if short {
                ms(self.rng.within(100, 2500))
            } else {
                ms(12_000)
            },
            sources: Vec::new(),
        };
        self.requests.push(request);
        self.requests.len() - 1
    }

    fn schedule(&mut self, request: usize) {
        let begin = self.rng.below(2 * S);
        let (owner, holder) = (self.requests[request].owner, self.requests[request].holder);
        for node in self.deployments[owner].nodes.clone() {
            for rank in self.nodes[node].ranks.clone() {
                if self.mishap(0.03) {
                    continue;
                }
                let late = if self.mishap(0.1) {
                    self.rng.below(4 * S)
                } else {
                    0
                };
                let at = begin + self.rng.below(60 * MS) + late;
                let step = Step::OpenLease {
                    node,
                    rank,
                    request,
                };
                self.after(at, Event::Step(step));
            }
        }
        for node in self.deployments[holder].nodes.clone() {
            let at = begin + self.rng.below(60 * MS);
            let timeout = match self.mishap(0.1) {
                true => Duration::from_millis(self.rng.within(50, 2000)),
                false => Duration::from_secs(10),
            };
            let all = self.nodes[node].ranks.clone();
            let apart = self.rng.chance(0.3);
            let groups: Vec<BTreeSet<Rank>> = match apart {
                true => all.into_iter().map(|rank| BTreeSet::from([rank])).collect(),
                false => vec![all],
            };
            for ranks in groups {
                let wrong = self.mishap(0.06);
                let again = self.mishap(0.05);
                for at in [Some(at), again.then(|| at + self.rng.below(S))]
                    .into_iter()
                    .flatten()
                {
                    let step = Step::StartJob {
                        node,
                        ranks: ranks.clone(),
                        request,
                        wrong,
                        timeout,
                    };
                    self.after(at, Event::Step(step));
                }
            }
            if self.mishap(0.05) {
                let at = begin + self.rng.below(2 * S);
                self.after(at, Event::Step(Step::CancelTicket { node, request }));
            }
            if self.rng.chance(0.1) {
                let at = begin + self.rng.below(2 * S);
                self.after(at, Event::Step(Step::RenewTicket { node, request }));
            }
        }
    }

    fn schedule_rival(&mut self, request: usize, rival: usize) {
        for node in self.deployments[rival].nodes.clone() {
            let step = Step::StartJob {
                node,
                ranks: self.nodes[node].ranks.clone(),
                request,
                wrong: false,
                timeout: Duration::from_secs(10),
            };
            let at = self.rng.below(3 * S);
            self.after(at, Event::Step(step));
        }
    }

    fn schedule_trouble(&mut self) {
        for _ in 0..self.rng.below(6) {
            let at = self.rng.below(4 * S);
            self.after(at, Event::Step(Step::BreakAny));
        }
        for _ in 0..self.rng.below(2) {
            let [a, b] = [(); 2].map(|()| self.rng.below(self.nodes.len() as u64) as usize);
            let (at, time) = (self.rng.below(4 * S), self.rng.below(3 * S));
            self.after(at, Event::Step(Step::Part(a, b, time)));
        }
        for _ in 0..self.rng.below(3) {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let (at, deployment) = (self.rng.below(4 * S), self.nodes[node].deployment);
            self.after(at, Event::Step(Step::Kill(node)));
            if self.rng.chance(0.7) {
                let step = Step::Restart {
                    deployment,
                    clock_back: self.rng.chance(0.15),
                };
                let later = at + self.rng.below(3 * S);
                self.after(later, Event::Step(step));
            }
        }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::OpenLease {
                node,
                rank,
                request,
            } => self.open_lease(node, rank, request),
            Step::StartJob {
                node,
                ranks,
                request,
                wrong,
                timeout,
            } => self.start_job(node, ranks, request, wrong, timeout),
            Step::Computed { blocks, layer } => self.computed(blocks, layer),
            Step::CancelBlocks { blocks } => self.cancel(blocks),
            Step::RenewLease { blocks } => self.renew(blocks),
            Step::CancelTicket { node, request } => {
                let ticket = self.requests[request].ticket.clone();
                self.call(node, |machine, now| {
                    machine.cancel_ticket(now, &ticket, None)
                });
            }
            Step::RenewTicket { node, request } => {
                let ticket = self.requests[request].ticket.clone();
                let ttl = Duration::from_secs(3);
                self.call(node, |machine, now| machine.renew_ticket(now, &ticket, ttl));
            }
            Step::Break(conn) => self.cut(conn),
            Step::BreakAny => {
                let conns = self.links.len() as u64;
                if conns > 0 {
                    let conn = ConnId(self.rng.within(1, conns));
                    self.cut(conn);
                }
            }
            Step::Part(a, b, time) => {
                self.parted.extend([(a, b), (b, a)]);
                let between = |link: &Link| {
                    let ends = link.ends.map(|(node, _)| node);
                    ends == [a, b] || ends == [b, a]
                };
                let links = self.links.iter().filter(|(_, link)| between(link));
                let mut conns: Vec<_> = links.map(|(conn, _)| *conn).collect();
                conns.sort_unstable();
                conns.into_iter().for_each(|conn| self.cut(conn));
                self.after(time, Event::Step(Step::Heal(a, b)));
            }
            Step::Heal(a, b) => {
                self.parted.remove(&(a, b));
                self.parted.remove(&(b, a));
            }
            Step::Kill(node) => self.kill(node),
            Step::Restart {
                deployment,
                clock_back,
            } => self.restart(deployment, clock_back),
            Step::Boot { node, .. } if self.nodes[node].machine.is_some() => {}
            Step::Boot { node, reopen } => {
                self.boot(node);
                if reopen {
                    self.reopen(node);
                }
            }
        }
    }

    fn open_lease(&mut self, node: usize, rank: Rank, request: usize) {
        if self.nodes[node].machine.is_none() {
            return;
        }
        let life = self.nodes[node].life;
        let r = &self.requests[request];
        let (direction, pull) = (r.direction, r.direction == Direction::Pull);
        let (start, tokens) = r.tokens;
        let key = LeaseKey {
            set: set_id(r.key),
            rank,
        };
        let prefilled = r.prefilled || !pull;
        let (ttl, hard_bound, content) = (r.ttl, r.hard_bound, r.content);
        let blocks = self.memory.allocate((node, life), prefilled);
        let id = blocks.0;
        let now = self.local(node);
        let view = View::Lease {
            key,
            request,
            hard: now + hard_bound,
            hard_bound,
            cancelled: false,
            ended: None,
        };
        self.views.insert(id, view);
        // Only the life that the ticket means holds what was asked for.
        if pull && life == 1 {
            self.requests[request].sources.push((rank, id));
        }
        let spec = LeaseSpec {
            key,
            direction,
            content,
            start: if pull { 0 } else { start },
            valid_tokens: start + tokens,
            ttl,
            hard_bound,
            prefilled,
            blocks,
        };
        let opened = self.call(node, |machine, now| machine.lease(now, spec));
        if let Some(Err(error)) = opened {
            let given = self.memory.give_back(error.blocks);
            self.check(given);
            return;
        }
        self.live_on(id, !prefilled);
        if self.rng.chance(0.1) {
            let at = self.rng.below(3 * S);
            self.after(at, Event::Step(Step::RenewLease { blocks: id }));
        }
    }

    fn start_job(
        &mut self,
        node: usize,
        ranks: BTreeSet<Rank>,
        request: usize,
        wrong: bool,
        timeout: Duration,
    ) {
        if self.nodes[node].machine.is_none() {
            return;
        }
        let life = self.nodes[node].life;
        let r = &self.requests[request];
        let push = r.direction == Direction::Push;
        let (start, tokens) = r.tokens;
        let prefilled = r.prefilled || !push;
        let content = if wrong {
            ContentDigest([99; 32])
        } else {
            r.content
        };
        let (ticket, by_layer, paths) = (r.ticket.clone(), r.by_layer, r.paths);
        let keep_leases = request.is_multiple_of(4);
        let blocks = self.memory.allocate((node, life), prefilled);
        let id = blocks.0;
        if push {
            let sources = ranks.iter().map(|rank| (*rank, id));
            self.requests[request].sources.extend(sources);
        }
        let view = View::Job {
            request,
            ranks: ranks.clone(),
            node,
            started: self.local(node),
            timeout,
            wrong,
            done: None,
        };
        self.views.insert(id, view);
        let spec = JobSpec {
            ticket,
            ranks,
            start,
            tokens,
            content,
            lanes: 2,
            by_layer,
            paths,
            timeout,
            keep_leases,
            prefilled,
            blocks,
        };
        let started = self.call(node, |machine, now| machine.start(now, spec));
        if let Some(Err(refused)) = started {
            let given = self.memory.give_back(refused.blocks);
            self.check(given);
            return;
        }
        self.live_on(id, !prefilled);
    }

    /// What the engine does with blocks later on.
    fn live_on(&mut self, blocks: u64, prefill: bool) {
        if prefill {
            let over = self.rng.within(5 * MS, 1200 * MS);
            for layer in 0..LAYERS as u32 {
                let at = self.rng.within(MS, over);
                let layer = Some(layer);
                self.after(at, Event::Step(Step::Computed { blocks, layer }));
            }
            if !self.mishap(0.05) {
                let layer = None;
                self.after(over + 1, Event::Step(Step::Computed { blocks, layer }));
            }
        }
        if self.mishap(0.12) {
            let at = self.rng.below(2 * S);
            self.after(at, Event::Step(Step::CancelBlocks { blocks }));
        }
    }

    /// Node, and lease or job, that hold these blocks now.
    fn holder(&self, blocks: u64) -> Option<usize> {
        let region = self.memory.region(blocks);
        let (node, life) = region.owner;
        (!region.given_back && self.lives(node, life)).then_some(node)
    }

    fn job_of(&self, node: usize, blocks: u64) -> Option<crate::wire::JobId> {
        let machine = self.nodes[node].machine.as_ref()?;
        let mut jobs = machine.jobs.iter();
        jobs.find(|(_, job)| job.spec.blocks.0 == blocks)
            .map(|(id, _)| *id)
    }

    fn computed(&mut self, blocks: u64, layer: Option<u32>) {
        let Some(node) = self.holder(blocks) else {
            return;
        };
        let layers = match layer {
            Some(layer) => layer as usize..layer as usize + 1,
            None => 0..LAYERS as usize,
        };
        self.memory.region_mut(blocks).ready[layers].fill(true);
        let (key, request, ranks) = match &self.views[&blocks] {
            View::Lease { key, request, .. } => (Some(*key), *request, BTreeSet::new()),
            View::Job { request, ranks, .. } => (None, *request, ranks.clone()),
        };
        let (start, tokens) = self.requests[request].tokens;
        let job = self.job_of(node, blocks);
        self.call(node, |machine, now| match (key, job, layer) {
            // One that has just ended is no error of the engine's.
            (Some(key), _, Some(layer)) => drop(machine.ready(key, layer, start + tokens)),
            (Some(key), _, None) => drop(machine.finish_prefill(now, key)),
            (None, Some(job), Some(layer)) => {
                let ready = ranks.iter();
                ready.for_each(|rank| machine.job_ready(job, *rank, layer, start + tokens));
            }
            (None, Some(job), None) => machine.job_prefilled(now, job),
            (None, None, _) => {}
        });
    }

    fn cancel(&mut self, blocks: u64) {
        let Some(node) = self.holder(blocks) else {
            return;
        };
        match self.views.get_mut(&blocks) {
            Some(View::Lease { key, cancelled, .. }) => {
                *cancelled = true;
                let key = *key;
                self.call(node, |machine, now| machine.cancel_lease(now, key).is_ok());
            }
            _ => {
                if let Some(job) = self.job_of(node, blocks) {
                    self.call(node, |machine, now| machine.cancel_job(now, job));
                }
            }
        }
    }

    fn renew(&mut self, blocks: u64) {
        let Some(node) = self.holder(blocks) else {
            return;
        };
        let (ttl, now) = (Duration::from_secs(2), self.local(node));
        let Some(View::Lease { key, .. }) = self.views.get(&blocks) else {
            return;
        };
        let key = *key;
        let renewed = self.call(node, |machine, now| machine.renew(now, key, ttl));
        if let Some(Ok(())) = renewed
            && let Some(View::Lease {
                hard, hard_bound, ..
            }) = self.views.get_mut(&blocks)
        {
            *hard = (*hard).max(now + *hard_bound).max(now + ttl);
        }
    }

    fn restart(&mut self, deployment: usize, clock_back: bool) {
        let nodes = self.deployments[deployment].nodes.clone();
        nodes.iter().for_each(|n| self.kill(*n));
        let ms = self.now / MS;
        let started = if clock_back {
            500_000 + ms
        } else {
            1_000_001 + ms
        };
        self.deployments[deployment].incarnation = Incarnation::new(started, self.rng.next());
        for node in nodes {
            let delay = self.rng.within(MS, 500 * MS);
            let reopen = self.rng.chance(0.5);
            self.after(delay, Event::Step(Step::Boot { node, reopen }));
        }
    }

    /// A restarted engine meets its requests again: it opens leases of the same names, and uses
    /// tickets that it was given in its life before.
    fn reopen(&mut self, node: usize) {
        let deployment = self.nodes[node].deployment;
        for request in 0..self.requests.len() {
            let r = &self.requests[request];
            let ranks = self.nodes[node].ranks.clone();
            if r.owner == deployment {
                for rank in ranks {
                    self.open_lease(node, rank, request);
                }
            } else if r.holder == deployment {
                self.start_job(node, ranks, request, false, Duration::from_secs(8));
            }
        }
    }
}

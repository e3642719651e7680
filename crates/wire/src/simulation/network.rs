//! The network: losses, and when each end notices them.

use std::collections::{BTreeSet, HashMap};

use transload_plan::ids::{AgentId, Rank};

use super::event::{CALM, Event, MS, S, Step, Time};
use super::plan::SimPlanner;
use super::state::{Channels, Link, Node};
use super::world::{World, cluster, options, ticket_key};
use crate::message::{Envelope, Message};
use crate::{ConnId, Identity, Machine, Secret};

impl World {
    pub(super) fn dial(&mut self, from: usize, agent: AgentId) {
        let life = self.nodes[from].life;
        let there = |node: &Node| node.agent == agent && node.machine.is_some();
        let target = self.nodes.iter().position(there);
        let target = target.filter(|to| !self.parted.contains(&(from, *to)));
        let target = target.filter(|_| !self.mishap(0.1));
        let Some(to) = target else {
            let timeout = if self.rng.chance(0.5) { MS } else { self.rng.within(MS, S) };
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
            posted: [0; 2],
            earliest: [self.now + here, self.now + there],
            broken: false,
            channels: Channels::default(),
        };
        self.links.insert(conn, link);
        self.after(there, Event::Connected(to, to_life, conn, name, false));
        self.after(here, Event::Connected(from, life, conn, agent, true));
        if self.mishap(0.05) {
            let soon = self.rng.below(50 * MS);
            self.after(soon, Event::Step(Step::Break(conn)));
        }
    }

    pub(super) fn send(&mut self, n: usize, conn: ConnId, envelope: Envelope) {
        let Envelope { sequence, message } = envelope;
        if let Some(message) = self.tamper(n, message) {
            self.watch(n, &message);
            self.post(n, conn, Envelope { sequence, message });
        }
    }

    /// Sends a message that no machine has sent, after those that one has.
    pub(super) fn forge(&mut self, n: usize, conn: ConnId, message: Message) {
        let sequence = 0;
        self.post(n, conn, Envelope { sequence, message });
    }

    fn post(&mut self, n: usize, conn: ConnId, mut envelope: Envelope) {
        let delay = match self.chaos > 0.0 && self.now < CALM {
            true => self.rng.delay(2 * MS, 300 * MS),
            false => self.rng.delay(MS, 2 * MS),
        };
        let link = self.links.get_mut(&conn).expect("a link stays");
        let end = usize::from(link.ends[0].0 == n);
        if link.broken || !link.open[1 - end] {
            return;
        }
        link.posted[end] += 1;
        // Faults add or lose messages. That alone must not be noticed by their numbers.
        if self.fault.is_some() {
            envelope.sequence = link.posted[end];
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

    pub(super) fn close(&mut self, n: usize, conn: ConnId) {
        let link = self.links.get_mut(&conn).expect("a link stays");
        let other = usize::from(link.ends[0].0 == n);
        link.open[1 - other] = false;
        let (node, life) = link.ends[other];
        let delay = link.earliest[other].saturating_sub(self.now) + MS;
        self.after(delay, Event::Disconnected(node, life, conn));
    }

    /// Breaks a connection. Each end notices in its own time.
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

    pub(super) fn part(&mut self, a: usize, b: usize, time: Time) {
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

    pub(super) fn heal(&mut self, a: usize, b: usize) {
        self.parted.remove(&(a, b));
        self.parted.remove(&(b, a));
    }

    pub(super) fn cut_any(&mut self) {
        let conns = self.links.len() as u64;
        if conns > 0 {
            let conn = ConnId(self.rng.within(1, conns));
            self.cut(conn);
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
        let links = self.links.iter().filter(|(_, link)| link.ends.contains(&end));
        let mut conns: Vec<_> = links.map(|(conn, _)| *conn).collect();
        conns.sort_unstable();
        conns.into_iter().for_each(|conn| self.cut(conn));
    }

    /// Starts another life of a node, with the current incarnation of its deployment.
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
            secret: Secret::new(secret),
        };
        let planner = SimPlanner {
            me: deployment.shape,
            known: HashMap::new(),
            held: HashMap::new(),
            blocks: std::marker::PhantomData,
        };
        let machine = Machine::new(identity, options(), planner).expect("a short document");
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
        let gpu = [None, Some(1), Some(1), Some(2)][self.rng.below(4) as usize];
        self.nodes.push(Node {
            agent: AgentId::new(agent).expect("a good name"),
            deployment,
            ranks,
            host,
            gpu,
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

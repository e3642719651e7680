//! The steps of a script, one at a time.

use std::time::Duration;

use transload_plan::ids::Incarnation;

use super::event::{Event, MS, Step};
use super::faults::Fault;
use super::marks::Purpose;
use super::world::World;

impl World {
    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::OpenLease { node, rank, request } => self.hand_over(node, request, Purpose::Lease(rank)),
            Step::StartJob { node, ranks, request, wrong, timeout } => {
                let purpose = Purpose::Job { ranks, wrong, timeout };
                self.hand_over(node, request, purpose);
            }
            Step::Marked { blocks, done } => self.marked(blocks, done),
            Step::Computed { blocks, layer } => self.computed(blocks, layer),
            Step::CancelBlocks { blocks } => self.cancel(blocks),
            Step::RenewLease { blocks } => self.renew(blocks),
            Step::CancelTicket { node, request } => {
                let ticket = self.requests[request].ticket.clone();
                self.call(node, |machine, now| machine.cancel_ticket(now, &ticket, None));
            }
            Step::RenewTicket { node, request } => {
                let ticket = self.requests[request].ticket.clone();
                let ttl = Duration::from_secs(3);
                self.call(node, |machine, now| machine.renew_ticket(now, &ticket, ttl));
            }
            Step::Break(conn) => self.cut(conn),
            Step::BreakAny => self.cut_any(),
            Step::Part(a, b, time) => self.part(a, b, time),
            Step::Heal(a, b) => self.heal(a, b),
            Step::Kill(node) => self.kill(node),
            Step::LoseDevice(node) => {
                let rank = self.nodes[node].ranks.first().copied();
                if let Some(rank) = rank {
                    self.call(node, |machine, now| machine.device_lost(now, rank));
                }
            }
            Step::Restart { deployment, clock_back } => self.restart(deployment, clock_back),
            Step::Boot { node, .. } if self.nodes[node].machine.is_some() => {}
            Step::Boot { node, reopen } => {
                self.boot(node);
                if reopen {
                    self.reopen(node);
                }
            }
        }
    }

    fn restart(&mut self, deployment: usize, clock_back: bool) {
        let nodes = self.deployments[deployment].nodes.clone();
        nodes.iter().for_each(|n| self.kill(*n));
        let ms = self.now / MS;
        let started = if clock_back { 500_000 + ms } else { 1_000_001 + ms };
        let next = Incarnation::new(started, self.rng.next());
        if self.fault != Some(Fault::AnyIncarnation) {
            self.deployments[deployment].incarnation = next;
        }
        for node in nodes {
            let delay = self.rng.within(MS, 500 * MS);
            let reopen = self.rng.chance(0.5);
            self.after(delay, Event::Step(Step::Boot { node, reopen }));
        }
    }
}

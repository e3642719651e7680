//! The script of a world. It is drawn from the seed before anything happens; its consequences draw further numbers.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::ids::{Incarnation, Rank};

use super::event::{Event, MS, S, Step};
use super::plan::Shape;
use super::state::Deployment;
use super::world::World;

impl World {
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
            let (owner, holder) = if push { (decode, prefill) } else { (prefill, decode) };
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
            shape: Shape { ranks: agents as u32 * each, salt },
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

    fn schedule(&mut self, request: usize) {
        let begin = self.rng.below(2 * S);
        let (owner, holder) = (self.requests[request].owner, self.requests[request].holder);
        for node in self.deployments[owner].nodes.clone() {
            for rank in self.nodes[node].ranks.clone() {
                if self.mishap(0.03) {
                    continue;
                }
                let late = if self.mishap(0.1) { self.rng.below(4 * S) } else { 0 };
                let at = begin + self.rng.below(60 * MS) + late;
                let step = Step::OpenLease { node, rank, request };
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
                for at in [Some(at), again.then(|| at + self.rng.below(S))].into_iter().flatten() {
                    let step = Step::StartJob { node, ranks: ranks.clone(), request, wrong, timeout };
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
        if self.rng.chance(0.1) {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let at = self.rng.below(4 * S);
            self.after(at, Event::Step(Step::LoseDevice(node)));
        }
        for _ in 0..self.rng.below(3) {
            let node = self.rng.below(self.nodes.len() as u64) as usize;
            let (at, deployment) = (self.rng.below(4 * S), self.nodes[node].deployment);
            self.after(at, Event::Step(Step::Kill(node)));
            if self.rng.chance(0.7) {
                let step = Step::Restart { deployment, clock_back: self.rng.chance(0.15) };
                let later = at + self.rng.below(3 * S);
                self.after(later, Event::Step(step));
            }
        }
    }
}

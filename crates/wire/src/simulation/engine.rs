//! The engines around the agents: requests, cancellations, and the return after a restart.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::Request;
use transload_plan::codec::Codec;
use transload_plan::ids::{Direction, Rank};

use super::event::{Event, MS, S, Step};
use super::faults::WRONG;
use super::marks::{Handed, Purpose};
use super::memory::{Blocks, LAYERS};
use super::state::View;
use super::world::{World, set_id};
use crate::lease::{LeaseKey, LeaseSpec};
use crate::{BlocksOf, JobId, JobSpec};

impl World {
    pub(super) fn give(&mut self, handed: Handed) {
        let Handed { node, request, purpose, blocks } = handed;
        match purpose {
            Purpose::Lease(rank) => self.open_lease(node, rank, request, blocks),
            Purpose::Job { ranks, wrong, timeout } => self.start_job(node, ranks, request, (wrong, timeout), blocks),
        }
    }

    pub(super) fn take_back(&mut self, blocks: Blocks) {
        let given = self.memory.give_back(blocks);
        self.check(given);
    }

    fn open_lease(&mut self, node: usize, rank: Rank, request: usize, blocks: Blocks) {
        let life = self.nodes[node].life;
        let r = &self.requests[request];
        let (direction, pull) = (r.direction, r.direction == Direction::Pull);
        let (start, tokens) = r.tokens;
        let key = LeaseKey { set: set_id(r.key), rank };
        let computed = r.prefilled || !pull;
        let (ttl, hard_bound, content) = (r.ttl, r.hard_bound, r.content);
        let id = blocks.0;
        let now = self.local(node);
        let view = View::Lease { key, request, hard: now + hard_bound, hard_bound, cancelled: false, ended: None };
        self.views.insert(id, view);
        // Only the life that the ticket means has the right contents.
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
            prefilled: !pull || self.is_told_computed(id),
        };
        let opened = self.call(node, |machine, now| machine.lease(now, spec, blocks));
        if let Some(Err(error)) = opened {
            return self.take_back(error.blocks);
        }
        self.live_on(id, !computed);
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
        (wrong, timeout): (bool, Duration),
        blocks: Blocks,
    ) {
        let r = &self.requests[request];
        let push = r.direction == Direction::Push;
        let (start, tokens) = r.tokens;
        let computed = r.prefilled || !push;
        let content = if wrong { WRONG } else { r.content };
        let (ticket, by_layer, paths) = (r.ticket.clone(), r.by_layer, r.paths);
        let keep_leases = request.is_multiple_of(4);
        let codec = match push || r.invites || !r.key.is_multiple_of(4) {
            true => Codec::Exact,
            false => Codec::Q8,
        };
        let id = blocks.0;
        if push {
            let sources = ranks.iter().map(|rank| (*rank, id));
            self.requests[request].sources.extend(sources);
        }
        let view =
            View::Job { request, ranks: ranks.clone(), node, started: self.local(node), timeout, wrong, done: None };
        self.views.insert(id, view);
        let spec = JobSpec {
            ticket,
            ranks,
            request: Request { start, tokens, by_layer, codec },
            content,
            lanes: 2,
            paths,
            timeout,
            keep_leases,
            prefilled: !push || self.is_told_computed(id),
            into: self.ticket_into(self.nodes[node].deployment, request),
        };
        let started = self.call(node, |machine, now| machine.start(now, spec, blocks));
        if let Some(Err(refused)) = started {
            return self.take_back(refused.blocks);
        }
        self.live_on(id, !computed);
    }

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

    pub(super) fn holder(&self, blocks: u64) -> Option<usize> {
        let region = self.memory.region(blocks);
        let (node, life) = region.owner;
        (!region.given_back && self.lives(node, life)).then_some(node)
    }

    fn job_of(&self, node: usize, blocks: u64) -> Option<JobId> {
        let machine = self.nodes[node].machine.as_ref()?;
        let jobs = machine.jobs.ids();
        let has = |id: &JobId| machine.blocks(BlocksOf::Job(*id)).map(|has| has.0);
        jobs.into_iter().find(|id| has(id) == Some(blocks))
    }

    pub(super) fn computed(&mut self, blocks: u64, layer: Option<u32>) {
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
            // A lease that has just ended returns an error, which is harmless.
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

    pub(super) fn cancel(&mut self, blocks: u64) {
        let Some(node) = self.holder(blocks) else {
            return;
        };
        if let Some(handed) = self.waiting.remove(&blocks) {
            return self.take_back(handed.blocks);
        }
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

    pub(super) fn renew(&mut self, blocks: u64) {
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
            && let Some(View::Lease { hard, hard_bound, .. }) = self.views.get_mut(&blocks)
        {
            *hard = (*hard).max(now + *hard_bound).max(now + ttl);
        }
    }

    /// Makes a restarted engine handle its requests again, with the same lease names and its past life's tickets.
    pub(super) fn reopen(&mut self, node: usize) {
        let deployment = self.nodes[node].deployment;
        for request in 0..self.requests.len() {
            let r = &self.requests[request];
            let ranks = self.nodes[node].ranks.clone();
            if r.owner == deployment {
                for rank in ranks {
                    self.hand_over(node, request, Purpose::Lease(rank));
                }
            } else if r.holder == deployment {
                let purpose = Purpose::Job { ranks, wrong: false, timeout: Duration::from_secs(8) };
                self.hand_over(node, request, purpose);
            }
        }
    }
}

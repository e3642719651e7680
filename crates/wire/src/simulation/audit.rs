//! The rules: at every moment, when something ends, and at the very end.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::ids::{Direction, Rank};

use super::memory::Blocks;
use super::plan::{Shape, routes};
use super::state::View;
use super::world::{World, options};
use crate::lease::{LeaseEnd, LeaseKey};
use crate::message::Message;
use crate::{BlocksOf, JobError, JobReport};

impl World {
    /// Checks that a commit is sent only while the owner's lease is alive by the owner's clock, and that a transfer is
    /// reported as landed only after its commit.
    pub(super) fn watch(&mut self, n: usize, message: &Message) {
        let transfer = match message {
            Message::Commit { transfer, .. } => transfer,
            Message::Landed { transfer } if !self.committed.contains(transfer) => {
                return self.violated(format!("{transfer} has landed without a commit"));
            }
            _ => return,
        };
        self.committed.insert(*transfer);
        let now = self.local(n);
        let machine = self.nodes[n].machine.as_ref().expect("it sends");
        let side = machine.flows.get(*transfer).map(|t| t.side);
        let Some(key) = side.and_then(|side| machine.leased_to(side)) else {
            return;
        };
        let blocks = machine.blocks(BlocksOf::Lease(key)).map(|blocks| blocks.0);
        match blocks.and_then(|blocks| self.views.get(&blocks)) {
            Some(View::Lease { hard, cancelled, .. }) => {
                if *cancelled || now >= *hard {
                    self.violated(format!("{transfer} is committed, and its lease is over"));
                }
            }
            _ => self.violated(format!("{transfer} is committed without a lease")),
        }
    }

    pub(super) fn audit(&mut self, n: usize) {
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
            self.violated(format!("{} holds too much: {gauges:?}", self.nodes[n].agent));
            return;
        }
        let past = machine
            .peers
            .lives()
            .find_map(|(agent, incarnation)| machine.owner.leases.bound_elsewhere(agent, incarnation));
        if let Some(key) = past {
            self.violated(format!("lease {key} is bound to a life that is over"));
        }
    }

    pub(super) fn lease_ended(&mut self, n: usize, key: LeaseKey, end: LeaseEnd, blocks: Blocks) {
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
            let whole = self.write_lease_is_whole(request, key.rank, id);
            self.check(whole);
        }
    }

    /// Checks that blocks are reported as stalled only once, and that they are not returned with that.
    pub(super) fn stalled(&mut self, n: usize, of: BlocksOf) {
        let now = self.local(n);
        let blocks = self.nodes[n].machine.as_ref().and_then(|m| m.blocks(of));
        let Some(&Blocks(id)) = blocks else {
            return self.violated(format!("{of:?} is stalled without blocks"));
        };
        self.tally.stalled += 1;
        if !self.stalled.insert(id) {
            return self.violated(format!("{of:?} is stalled twice"));
        }
        if let Some(View::Job { started, timeout, .. }) = self.views.get(&id)
            && now > *started + *timeout + options().device_stall + Duration::from_secs(2)
        {
            self.violated("a job fails later than it may");
        }
    }

    pub(super) fn job_done(&mut self, n: usize, result: Result<JobReport, JobError>, blocks: Blocks) {
        let (id, now) = (blocks.0, self.local(n));
        let given = self.memory.give_back(blocks);
        self.check(given);
        let Some(View::Job { request, ranks, wrong, started, timeout, done, .. }) = self.views.get_mut(&id) else {
            return self.violated("a job ends with other blocks");
        };
        if done.replace(result.is_ok()).is_some() {
            return self.violated("a job is done twice");
        }
        let (request, ranks, wrong) = (*request, ranks.clone(), *wrong);
        // Fences and late timers take some extra time.
        let late = now > *started + *timeout + Duration::from_secs(1);
        match self.stalled.contains(&id) {
            true if result.is_ok() => return self.violated("a job has failed, and then succeeds"),
            false if late => return self.violated("a job takes longer than it may"),
            _ => {}
        }
        match result {
            Ok(report) => {
                self.tally.jobs_ok += 1;
                for route in &report.routes {
                    *self.tally.paths.entry(route.path.to_string()).or_default() += 1;
                    self.tally.retried += u64::from(route.attempts > 1);
                }
                // A rank without a route needs nothing from any agent.
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
                    JobError::NotPushed { refusal, .. } => format!("not pushed: {refusal:?}"),
                    JobError::PushRefused { refusal, .. } => format!("push refused: {refusal:?}"),
                    JobError::Failed { failure, .. } => format!("failed: {failure:?}"),
                    _ => name.to_owned(),
                };
                let name = name.split('{').next().unwrap_or_default().trim().to_owned();
                *self.tally.jobs_failed.entry(name).or_default() += 1;
            }
        }
    }

    /// Checks that nothing is left once everything has had enough time.
    pub(super) fn check_calm(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(machine) = &self.nodes[n].machine else {
                continue;
            };
            let (gauges, agent) = (machine.gauges(), self.nodes[n].agent.clone());
            let streams = self.nodes[n].reading.len() + self.nodes[n].receiving.len();
            let (timers, pushes) = (gauges.timers, machine.owner.pushes());
            if !machine.cx.plans.is_empty() {
                self.violated(format!("{agent} keeps plans"));
            } else if !machine.is_idle() || timers + pushes + streams != 0 {
                self.violated(format!("{agent} is stuck: {gauges:?}, {streams} streams"));
            }
        }
        let lives: Vec<_> = self.nodes.iter().map(|n| n.machine.as_ref().map(|_| n.life)).collect();
        let missing = self.memory.missing(&lives);
        if !missing.is_empty() {
            self.violated(format!("blocks {missing:?} were never given back"));
        }
    }
}

impl World {
    fn shapes(&self, request: usize, holder: usize) -> (Shape, Shape) {
        let r = &self.requests[request];
        let (owner, holder) = (self.deployments[r.owner].shape, self.deployments[holder].shape);
        match r.direction {
            Direction::Pull => (owner, holder),
            Direction::Push => (holder, owner),
        }
    }

    pub(super) fn job_is_whole(
        &self,
        request: usize,
        ranks: &BTreeSet<Rank>,
        blocks: u64,
        report: &JobReport,
    ) -> Result<(), String> {
        let r = &self.requests[request];
        let View::Job { node, .. } = &self.views[&blocks] else {
            return Err("not a job".into());
        };
        let pull = r.direction == Direction::Pull;
        let (source, destination) = self.shapes(request, self.nodes[*node].deployment);
        let (mut found, mut bytes_found) = (0, 0);
        for &rank in ranks {
            let (from, to) = if pull { (None, Some(rank)) } else { (Some(rank), None) };
            for (s, d, bytes) in routes((source, from), (destination, to), r.tokens.1) {
                found += 1;
                bytes_found += bytes;
                if pull {
                    let value = self.source_values(request, s).next();
                    let value = value.ok_or("success without a source")?;
                    self.memory.holds(blocks, (d, s), bytes, value)?;
                }
            }
        }
        match found == report.routes.len() && bytes_found == report.bytes {
            true => Ok(()),
            false => Err(format!("{found} routes of {bytes_found} bytes, reported {report:?}")),
        }
    }

    /// Checks that a completed write lease was written in full. A pull lease always passes.
    pub(super) fn write_lease_is_whole(&self, request: usize, rank: Rank, blocks: u64) -> Result<(), String> {
        let r = &self.requests[request];
        if r.direction == Direction::Pull {
            return Ok(());
        }
        let (source, destination) = self.shapes(request, r.holder);
        for (s, d, bytes) in routes((source, None), (destination, Some(rank)), r.tokens.1) {
            let mut values = self.source_values(request, s);
            if !values.any(|value| self.memory.holds(blocks, (d, s), bytes, value).is_ok()) {
                return Err(format!("a write lease of {d} completed without what {s} has to write"));
            }
        }
        Ok(())
    }

    fn source_values(&self, request: usize, rank: Rank) -> impl Iterator<Item = u64> {
        let sources = self.requests[request].sources.iter();
        let of_rank = sources.filter(move |(r, _)| *r == rank);
        of_rank.map(move |(_, blocks)| self.memory.region(*blocks).value + u64::from(rank.0))
    }

    /// Checks that everything has succeeded in a world without trouble, except what waits for marks that never come.
    pub(super) fn check_success(&mut self) {
        for view in self.views.values() {
            let wrong = match view {
                View::Lease { request, .. } | View::Job { request, .. } if self.unmarked == Some(*request) => {
                    continue;
                }
                View::Lease { key, ended, .. } if *ended != Some(LeaseEnd::Completed) => {
                    format!("lease {key} ended as {ended:?} though nothing went wrong")
                }
                View::Job { done, .. } if *done != Some(true) => {
                    format!("a job ended as {done:?} though nothing went wrong")
                }
                _ => continue,
            };
            self.failure.get_or_insert(wrong);
        }
    }
}

//! Engines that hand over blocks when they have only *submitted* the work that computes them, or that reads them for
//! the last time. A *mark* behind that work comes late, never, or is lost with its device.
//!
//! Like an agent, a node gives blocks that will be read to its machine at once, with an unfinished prefill. It gives
//! blocks that will be written when their mark has come.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_plan::ids::{Direction, Rank};

use super::event::{Event, S, Step};
use super::faults::Fault;
use super::memory::Blocks;
use super::world::World;

pub(super) struct Handed {
    pub(super) node: usize,
    pub(super) request: usize,
    pub(super) purpose: Purpose,
    pub(super) blocks: Blocks,
}

pub(super) enum Purpose {
    Lease(Rank),
    Job { ranks: BTreeSet<Rank>, wrong: bool, timeout: Duration },
}

impl Purpose {
    /// Returns the rank whose device does the work before the mark.
    fn rank(&self) -> Option<Rank> {
        match self {
            Purpose::Lease(rank) => Some(*rank),
            Purpose::Job { ranks, .. } => ranks.first().copied(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    Comes,
    /// The mark is lost with its device.
    Lost,
    Never,
}

impl World {
    /// Allocates blocks, and gives them to the machine now or once their mark is reached.
    pub(super) fn hand_over(&mut self, node: usize, request: usize, purpose: Purpose) {
        if self.nodes[node].machine.is_none() {
            return;
        }
        let r = &self.requests[request];
        let is_read = (r.direction == Direction::Pull) == matches!(purpose, Purpose::Lease(_));
        let computed = r.prefilled || !is_read;
        let owner = (node, self.nodes[node].life);
        let (blocks, rank) = (self.memory.allocate(owner, computed), purpose.rank());
        let id = blocks.0;
        let handed = Handed { node, request, purpose, blocks };
        // Work that continues has no mark yet: its end is one.
        let mark = match computed {
            true => self.draw_mark(request),
            false => Mark::None,
        };
        if mark != Mark::None {
            self.memory.region_mut(id).awaited = rank;
        }
        if matches!(mark, Mark::Comes | Mark::Lost) {
            let done = mark == Mark::Comes;
            let at = self.rng.below(S);
            self.after(at, Event::Step(Step::Marked { blocks: id, done }));
        }
        if is_read || mark == Mark::None || self.fault == Some(Fault::WriteBeforeMark) {
            return self.give(handed);
        }
        self.waiting.insert(id, handed);
        if mark == Mark::Never || self.mishap(0.12) {
            let at = self.rng.below(3 * S);
            self.after(at, Event::Step(Step::CancelBlocks { blocks: id }));
        }
    }

    fn draw_mark(&mut self, request: usize) -> Mark {
        match () {
            () if self.unmarked == Some(request) => Mark::Never,
            () if !self.rng.chance(0.3) => Mark::None,
            () if self.mishap(0.1) => Mark::Never,
            () if self.mishap(0.1) => Mark::Lost,
            () => Mark::Comes,
        }
    }

    /// Returns whether a machine is told that blocks to be read are computed.
    pub(super) fn is_told_computed(&self, blocks: u64) -> bool {
        let region = self.memory.region(blocks);
        region.is_computed() && (region.awaited.is_none() || self.fault == Some(Fault::ReadBeforeMark))
    }

    pub(super) fn marked(&mut self, blocks: u64, done: bool) {
        let Some(node) = self.holder(blocks) else {
            return;
        };
        let region = self.memory.region_mut(blocks);
        if done {
            region.awaited = None;
        } else if let Some(rank) = region.awaited {
            self.call(node, |machine, now| machine.device_lost(now, rank));
        }
        match self.waiting.remove(&blocks) {
            Some(handed) if done => self.give(handed),
            Some(handed) => self.take_back(handed.blocks),
            None if done => self.computed(blocks, None),
            None => self.cancel(blocks),
        }
    }
}

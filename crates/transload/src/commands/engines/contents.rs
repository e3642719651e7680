//! Contents that can be checked: every byte of a cache is a function of its meaning, wherever it is stored.
//!
//! A key of layer 3, token 17, head 5 has the same bytes on every rank of every deployment. So a transfer is checked
//! without its plan: the destination is walked by layer, block, state and head along the strides of its own views, and
//! each byte is compared with the expected one.

use std::fmt;

use transload::layout::{Axis, ComponentView, Deployment, Rank};
use transload::transfer::Memory;
use transload::transfer::memory::AccessError;

use super::gpu::GpuError;
use crate::commands::random::mix;

/// The contents of a side's first group: a request in its blocks, and canaries everywhere else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    /// The seed of the request's bytes, the same on both sides.
    pub(super) request: u64,
    /// The seed of the bytes that no transfer may change, different on each side.
    pub(super) canaries: u64,
    /// The number of tokens of the request, from position 0.
    pub(super) tokens: u64,
}

/// The number of bytes that were checked and correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commands) struct Checked {
    pub(in crate::commands) request: u64,
    pub(in crate::commands) canaries: u64,
}

/// The position of one component of one unit of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    rank: Rank,
    layer: u32,
    block: u64,
    state: u64,
    unit: u64,
    component: usize,
    /// The token at this position, if it belongs to the request.
    token: Option<u64>,
}

#[derive(Debug)]
pub(super) enum ContentsError {
    Access(AccessError),
    Gpu(GpuError),
    Wrong(Wrong),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    place: Position,
    byte: usize,
    found: u8,
    expected: u8,
}

impl From<GpuError> for ContentsError {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl Contents {
    /// Writes one rank's memory. `blocks[i]` is the block of the i-th block of tokens; if it is empty, everything
    /// becomes canaries.
    pub(super) fn fill(
        self,
        side: &Deployment,
        rank: Rank,
        memory: &Memory,
        blocks: &[u32],
    ) -> Result<(), ContentsError> {
        self.walk(side, rank, blocks, |_, address, row| memory.write(address, row).map_err(ContentsError::Access))
    }

    pub(super) fn verify(
        self,
        side: &Deployment,
        rank: Rank,
        memory: &Memory,
        blocks: &[u32],
    ) -> Result<Checked, ContentsError> {
        let mut checked = Checked::default();
        let mut found = Vec::new();
        self.walk(side, rank, blocks, |place, address, row| {
            found.resize(row.len(), 0);
            memory.read(address, &mut found).map_err(ContentsError::Access)?;
            if let Some(byte) = found.iter().zip(row).position(|(a, b)| a != b) {
                return Err(ContentsError::Wrong(Wrong { place, byte, found: found[byte], expected: row[byte] }));
            }
            match place.token {
                Some(_) => checked.request += row.len() as u64,
                None => checked.canaries += row.len() as u64,
            }
            Ok(())
        })?;
        Ok(checked)
    }

    /// Visits every row: the content of one component of one unit of one state, whose bytes are contiguous in the
    /// orders used here. Passes its position, its address and its expected bytes.
    fn walk(
        self,
        side: &Deployment,
        rank: Rank,
        blocks: &[u32],
        mut visit: impl FnMut(Position, u64, &[u8]) -> Result<(), ContentsError>,
    ) -> Result<(), ContentsError> {
        let group = &side.groups()[0];
        let (tp_rank, stage) = side.split_rank(rank);
        let layers = &group.layers().ids()[group.stage_slots(stage)];
        let mut entry_of = vec![None; group.num_blocks() as usize];
        for (entry, block) in (0u64..).zip(blocks) {
            entry_of[*block as usize] = Some(entry);
        }
        let mut row = Vec::new();
        for component in group.views(tp_rank, stage) {
            let ComponentView { component, units, view, .. } = component;
            let [_, block_count, states, _, bytes] = view.shape();
            let strides = [Axis::Layer, Axis::Block, Axis::State, Axis::Unit].map(|axis| view.dim(axis).stride);
            row.resize(bytes as usize, 0);
            for (slot, layer) in (0u64..).zip(layers) {
                for block in 0..block_count {
                    for state in 0..states {
                        let token = entry_of[block as usize].map(|entry| entry * states + state);
                        let token = token.filter(|token| *token < self.tokens);
                        for (local, unit) in (0u64..).zip(units.clone()) {
                            let place = Position { rank, layer: *layer, block, state, unit, component, token };
                            let steps = [slot, block, state, local].into_iter().zip(strides);
                            let steps: u64 = steps.map(|(n, stride)| n * stride).sum();
                            self.row(place, &mut row);
                            visit(place, view.offset + steps, &row)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the expected bytes at a position. For the request they do not depend on rank and block.
    fn row(self, place: Position, row: &mut [u8]) {
        let Position { rank, layer, block, state, unit, component, token } = place;
        let (seed, where_from) = match token {
            Some(token) => (self.request, [0, 0, token]),
            None => (self.canaries, [u64::from(rank.0), block, state]),
        };
        let what = [u64::from(layer), unit, component as u64];
        let parts = where_from.into_iter().chain(what);
        let start = parts.fold(seed, |hash, part| mix(hash ^ part).wrapping_add(1));
        for (i, word) in (0u64..).zip(row.chunks_mut(8)) {
            let bytes = mix(start.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            word.copy_from_slice(&bytes.to_le_bytes()[..word.len()]);
        }
    }
}

impl fmt::Display for ContentsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(error) => error.fmt(f),
            Self::Gpu(error) => error.fmt(f),
            Self::Wrong(wrong) => wrong.fmt(f),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { rank, layer, block, state, unit, token, .. } = self.place;
        let (byte, found, expected) = (self.byte, self.found, self.expected);
        write!(
            f,
            "rank {rank}, layer {layer}, block {block}, state {state}, head {unit}: \
             byte {byte} is {found:#04x}, "
        )?;
        match token {
            Some(token) => write!(f, "but token {token} has {expected:#04x} there"),
            None => write!(f, "but {expected:#04x} there should not have been overwritten"),
        }
    }
}

#[cfg(test)]
mod tests {
    use transload::transfer::memory::copy::{CopyOptions, copy};
    use transload::transfer::{Plan, Request};

    use super::super::engine::{Engine, Party};
    use super::*;
    use crate::commands::shapes::Llama;

    const TOKENS: u64 = 70;

    const SRC: Llama = Llama {
        name: "source",
        model: "small",
        layers: 3,
        heads: 8,
        tp: 2,
        block_size: 16,
        num_blocks: 7,
        order: "NHD",
    };

    const DST: Llama = Llama { tp: 4, block_size: 64, num_blocks: 4, order: "HND", ..SRC };

    fn side(shape: Llama, party: Party) -> Engine {
        let deployment = shape.deployment().expect("a deployment");
        Engine::new(deployment, TOKENS, 1, party, None).expect("memory")
    }

    /// One request, copied in one process from the first layout into the second.
    fn copied() -> (Engine, Engine) {
        let src = side(SRC, Party::Source);
        let dst = side(DST, Party::Destination);
        src.fill(|_| {}).expect("it is filled");
        dst.clear(|_| {}).expect("it is filled");
        let request = Request::tokens(TOKENS);
        let plan = Plan::compile(&src.deployment, &dst.deployment, &request).expect("a plan");
        let bound = plan.bind(&src.tables, &dst.tables).expect("tables that fit");
        for route in &bound.routes {
            let from = &src.memories[route.src_rank.0 as usize];
            let to = &dst.memories[route.dst_rank.0 as usize];
            copy(&route.program(), from, to, &CopyOptions::default()).expect("a copy");
        }
        (src, dst)
    }

    #[test]
    fn what_was_copied_is_found_and_the_rest_is_as_it_was() {
        let (src, dst) = copied();
        let checked = dst.verify(|_| {}).expect("all is right");
        assert_eq!(checked.request, TOKENS * 3 * 8 * 512);
        let all: u64 = dst.memories.iter().map(Memory::bytes).sum();
        assert_eq!(checked.request + checked.canaries, all);
        src.verify(|_| {}).expect("the source is as it was");
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let (_, dst) = copied();
        let last = dst.memories[1].bytes() - 1;
        // Every byte of the memory is either of the request or a canary.
        for address in [0, 777, last / 2, last] {
            let mut byte = [0];
            dst.memories[1].read(address, &mut byte).expect("in bounds");
            dst.memories[1].write(address, &[!byte[0]]).expect("in bounds");
            let error = dst.verify(|_| {}).expect_err("it is wrong");
            assert!(error.to_string().starts_with("rank 1, layer "), "{error}");
            dst.memories[1].write(address, &byte).expect("in bounds");
        }
        dst.verify(|_| {}).expect("all is right again");
    }

    #[test]
    fn tokens_in_each_others_places_are_wrong() {
        let (_, dst) = copied();
        let swapped: Vec<u32> = dst.blocks().iter().rev().copied().collect();
        let found = dst.contents.verify(&dst.deployment, Rank(0), &dst.memories[0], &swapped);
        assert!(matches!(found, Err(ContentsError::Wrong(_))), "{found:?}");
    }
}

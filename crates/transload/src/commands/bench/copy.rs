//! `bench copy`: one thread runs plans between memories of its own.

use std::num::NonZeroUsize;

use transload::transfer::copy::{CopyOptions, copy};
use transload::transfer::memory::Memory;
use transload::transfer::plan::{BlockTable, BoundPlan, Plan, Request, Tables};

use super::case::{CANONICAL, Case, SIZES};
use super::measure::{Effort, Figure, all_in_turns, timed};
use super::memcpy::Memcpy;
use crate::commands::engines::broken;
use crate::commands::random::Random;
use crate::commands::shapes::{CANONICAL_TOKENS, Llama};
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

pub(super) fn run(effort: Effort) -> Result<Vec<Figure>, Failure> {
    let mut results = Vec::new();
    for case in SIZES.into_iter().chain([CANONICAL]) {
        let memories = Memories::new(case)?;
        let mut memcpy = Memcpy::new(memories.bound.bytes())?;
        let rounds = all_in_turns(
            effort,
            [
                &mut || memories.copy(&one_thread(false)),
                &mut || memories.copy(&one_thread(true)),
                &mut || Ok(memcpy.copy()),
            ],
        )?;
        let name = case.name;
        results.push(Figure::of_turns(
            name,
            "GB/s",
            Memcpy::NAME,
            &rounds,
            [0, 2],
        ));
        let summed = format!("{name}, CRC32C");
        results.push(Figure::of_turns(
            summed,
            "GB/s",
            "without it",
            &rounds,
            [1, 0],
        ));
    }
    Ok(results)
}

fn one_thread(checksum: bool) -> CopyOptions {
    CopyOptions {
        threads: NonZeroUsize::new(1),
        checksum,
        ..CopyOptions::default()
    }
}

/// Both sides of a case, and the plan between them.
struct Memories {
    src: Vec<Memory>,
    dst: Vec<Memory>,
    bound: BoundPlan,
}

impl Memories {
    fn new(case: Case) -> Result<Self, Failure> {
        let mut random = Random::new(1);
        let mut side = |shape: Llama| -> Result<_, Failure> {
            let deployment = shape.deployment()?;
            let memories = deployment.ranks().map(|rank| {
                let (_, stage) = deployment.split_rank(rank);
                let bytes = deployment.groups()[0].placement(stage).allocation_bytes;
                Memory::allocate(&[bytes as usize])
            });
            let memories: Vec<Memory> = memories.collect::<Result<_, _>>().map_err(broken)?;
            let count = CANONICAL_TOKENS.div_ceil(shape.block_size.into()) as u32;
            let blocks = random.blocks(count, shape.num_blocks);
            let tables = Tables(vec![BlockTable::List(blocks)]);
            Ok((deployment, memories, tables))
        };
        let (src, src_memories, src_tables) = side(case.src)?;
        let (dst, dst_memories, dst_tables) = side(case.dst)?;
        let request = Request::tokens(CANONICAL_TOKENS);
        let plan = Plan::compile(&src, &dst, &request).map_err(broken)?;
        Ok(Self {
            src: src_memories,
            dst: dst_memories,
            bound: plan.bind(&src_tables, &dst_tables).map_err(broken)?,
        })
    }

    /// Copies all routes, one after the other, and says how fast, in GB/s.
    fn copy(&self, options: &CopyOptions) -> Result<f64, Failure> {
        let (copied, time) = timed(|| {
            self.bound.routes.iter().try_for_each(|route| {
                let src = &self.src[route.src_rank.0 as usize];
                let dst = &self.dst[route.dst_rank.0 as usize];
                copy(&route.program, src, dst, options).map(drop)
            })
        });
        copied.map_err(broken)?;
        Ok(gigabytes_per_second(self.bound.bytes(), time))
    }
}

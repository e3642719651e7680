//! `bench copy`: one thread executes plans between memories of this process.

use transload::layout::Deployment;
use transload::transfer::Memory;
use transload::transfer::memory::copy::{CopyOptions, copy};
use transload::transfer::plan::BoundPlan;

use super::case::{CANONICAL, Case, SIZES};
use super::measure::Figure;
use super::memcpy::Memcpy;
use super::plan::Sides;
use super::schedule::{Limits, Schedule, timed};
use crate::commands::engines::broken;
use crate::commands::shapes::Llama;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

pub(super) fn run(limits: Limits) -> Result<Vec<Figure>, Failure> {
    let cases = [SIZES[0], SIZES[1], SIZES[2], CANONICAL];
    let mut schedule = Schedule::new(limits, cases.len());
    schedule.prepare(cases[0].name);
    let memories = Memories::new(&cases)?;
    let mut memcpy = Memcpy::new(CANONICAL.bytes())?;
    let mut results = Vec::new();
    for (i, case) in cases.into_iter().enumerate() {
        let name = case.name;
        if i > 0 {
            schedule.prepare(name);
        }
        let bound = bind(case)?;
        let rounds = schedule.in_turns(
            name,
            [
                &mut || memories.copy(&bound, &one_thread(false)),
                &mut || memories.copy(&bound, &one_thread(true)),
                &mut || Ok(memcpy.copy(bound.bytes())),
            ],
        )?;
        let summed = format!("{name}, CRC32C");
        results.extend([
            Figure::new(name, "GB/s", Memcpy::NAME, &rounds, [0, 2]),
            Figure::new(summed, "GB/s", "without it", &rounds, [1, 0]),
        ]);
    }
    Ok(results)
}

fn one_thread(checksum: bool) -> CopyOptions {
    CopyOptions { threads: Some(1), checksum, ..CopyOptions::default() }
}

/// Plans a case with blocks scattered over the pools.
pub(super) fn bind(case: Case) -> Result<BoundPlan, Failure> {
    Sides::of([case.src, case.dst])?.bind()
}

/// The memory of every rank of both sides, enough for any of the cases.
struct Memories {
    src: Vec<Memory>,
    dst: Vec<Memory>,
}

impl Memories {
    fn new(cases: &[Case]) -> Result<Self, Failure> {
        let side = |shape: fn(&Case) -> Llama| -> Result<Vec<Memory>, Failure> {
            let mut bytes: Vec<u64> = Vec::new();
            for case in cases {
                let deployment = shape(case).deployment()?;
                bytes.resize(bytes.len().max(deployment.ranks().count()), 0);
                for (most, bytes) in bytes.iter_mut().zip(bytes_of_ranks(&deployment)) {
                    *most = bytes.max(*most);
                }
            }
            let memories = bytes.into_iter().map(|n| Memory::allocate(&[n as usize]));
            memories.collect::<Result<_, _>>().map_err(broken)
        };
        Ok(Self { src: side(|case| case.src)?, dst: side(|case| case.dst)? })
    }

    /// Copies all routes one after the other, and returns the rate in GB/s.
    fn copy(&self, bound: &BoundPlan, options: &CopyOptions) -> Result<f64, Failure> {
        let (copied, time) = timed(|| {
            bound.routes.iter().try_for_each(|route| {
                let src = &self.src[route.src_rank.0 as usize];
                let dst = &self.dst[route.dst_rank.0 as usize];
                copy(&route.program(), src, dst, options).map(drop)
            })
        });
        copied.map_err(broken)?;
        Ok(gigabytes_per_second(bound.bytes(), time))
    }
}

pub(super) fn bytes_of_ranks(deployment: &Deployment) -> impl Iterator<Item = u64> {
    deployment.ranks().map(|rank| {
        let (_, stage) = deployment.split_rank(rank);
        deployment.groups()[0].placement(stage).allocation_bytes
    })
}

//! `bench plan`: compiles, binds and expands the canonical case.

use std::time::Duration;

use transload::layout::Deployment;
use transload::transfer::plan::BoundPlan;
use transload::transfer::{BlockTable, Plan, Request, Tables};

use super::measure::Figure;
use super::schedule::{Limits, Schedule, timed};
use crate::commands::engines::broken;
use crate::commands::random::Random;
use crate::commands::shapes::{CANONICAL_DECODE, CANONICAL_PREFILL, CANONICAL_TOKENS, Llama};
use crate::failure::Failure;

pub(super) fn run(limits: Limits) -> Result<Vec<Figure>, Failure> {
    let mut schedule = Schedule::new(limits, 2);
    schedule.prepare("compiling");
    let canonical = Sides::grown(1, 1)?;
    let more_layers = Sides::grown(10, 1)?;
    let more_heads = Sides::grown(1, 10)?;
    let bound = canonical.bind()?;
    let chunks = bound.chunks();
    let mut expanded = Vec::with_capacity(chunks as usize);
    let compiled = schedule.in_turns::<Failure, 4>(
        "compiling",
        [&mut || canonical.time(), &mut || more_layers.time(), &mut || more_heads.time(), &mut || {
            Ok(us(expand(&bound, &mut expanded)))
        }],
    )?;

    schedule.prepare("expanding");
    let each = |time: Duration| time.as_secs_f64() * 1e9 / chunks as f64;
    let mut stored = Vec::with_capacity(chunks as usize);
    let listed = schedule.in_turns::<Failure, 2>(
        "expanding",
        [&mut || Ok(each(expand(&bound, &mut expanded))), &mut || Ok(each(store(chunks, &mut stored)))],
    )?;
    let compiled = |name, baseline, which| Figure::new(name, "us", baseline, &compiled, which);
    Ok(vec![
        compiled("compile and bind", "listing every chunk of it", [0, 3]),
        compiled("with 10x the layers", "as it is", [1, 0]),
        compiled("with 10x the heads", "as it is", [2, 0]),
        Figure::new("expand to explicit chunks", "ns a chunk", "storing as many triples", &listed, [0, 1]),
    ])
}

/// A pair of deployments with blocks scattered over their pools.
pub(super) struct Sides {
    src: Deployment,
    dst: Deployment,
    tables: (Tables, Tables),
}

impl Sides {
    pub(super) fn of([src, dst]: [Llama; 2]) -> Result<Self, Failure> {
        let mut random = Random::new(1);
        let mut scatter = |side: Llama| {
            let blocks = random.scattered(CANONICAL_TOKENS, side.block_size.into(), side.num_blocks);
            Tables(vec![BlockTable::List(blocks)])
        };
        Ok(Self { tables: (scatter(src), scatter(dst)), src: src.deployment()?, dst: dst.deployment()? })
    }

    /// Returns the canonical case with the layers and heads multiplied.
    fn grown(layers: u32, heads: u32) -> Result<Self, Failure> {
        Self::of([CANONICAL_PREFILL, CANONICAL_DECODE].map(|side| Llama {
            layers: side.layers * layers,
            heads: side.heads * heads,
            ..side
        }))
    }

    /// Plans the canonical tokens: compiles a plan and binds all routes.
    pub(super) fn bind(&self) -> Result<BoundPlan, Failure> {
        let request = Request::tokens(CANONICAL_TOKENS);
        let plan = Plan::compile(&self.src, &self.dst, &request).map_err(broken)?;
        plan.bind(&self.tables.0, &self.tables.1).map_err(broken)
    }

    /// Returns the time of [`Self::bind`] in us. It is the second of two runs, since the other measurements (a list of
    /// 31 MB) empty the caches, unlike in a process that only plans.
    fn time(&self) -> Result<f64, Failure> {
        drop(std::hint::black_box(self.bind()?));
        let (bound, time) = timed(|| self.bind());
        bound.map(|_| us(time))
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn expand(bound: &BoundPlan, chunks: &mut Vec<(u64, u64, u64)>) -> Duration {
    chunks.clear();
    let ((), time) = timed(|| {
        for route in &bound.routes {
            route.program().for_each_chunk(|src, dst, bytes| chunks.push((src, dst, bytes)));
        }
    });
    time
}

/// Stores as many triples of the same size as fast as memory allows.
fn store(count: u64, triples: &mut Vec<(u64, u64, u64)>) -> Duration {
    triples.clear();
    let ((), time) = timed(|| triples.extend((0..count).map(|i| (i, i, 512))));
    time
}

//! `bench plan`: compiling and binding the canonical case, what crosses the wire, and expanding it.

use std::time::Duration;

use transload::layout::Deployment;
use transload::transfer::plan::{BlockTable, BoundPlan, Plan, Request, Tables};

use super::measure::{Effort, Figure, in_turns, timed};
use crate::commands::random::Random;
use crate::commands::shapes::{CANONICAL_DECODE, CANONICAL_PREFILL, CANONICAL_TOKENS, Llama};
use crate::failure::Failure;

/// One pair of deployments with random block tables.
struct Case {
    src: Deployment,
    dst: Deployment,
    request: Request,
    tables: (Tables, Tables),
}

impl Case {
    fn new(src: Llama, dst: Llama) -> Result<Self, Failure> {
        let mut random = Random::new(1);
        let mut table = |side: Llama| {
            let blocks = CANONICAL_TOKENS.div_ceil(side.block_size.into()) as u32;
            Tables(vec![BlockTable::List(
                random.blocks(blocks, side.num_blocks),
            )])
        };
        Ok(Self {
            tables: (table(src), table(dst)),
            src: src.deployment()?,
            dst: dst.deployment()?,
            request: Request::tokens(CANONICAL_TOKENS),
        })
    }

    /// From two checked deployments to all routes with their tables bound.
    fn bind(&self) -> Result<(Plan, BoundPlan), Failure> {
        let broken = |error: String| Failure::no(error, "this is a fault of transload: report it");
        let plan = Plan::compile(&self.src, &self.dst, &self.request)
            .map_err(|error| broken(error.to_string()))?;
        let bound = plan
            .bind(&self.tables.0, &self.tables.1)
            .map_err(|error| broken(error.to_string()))?;
        Ok((plan, bound))
    }

    fn timed_bind(&self) -> Result<Duration, Failure> {
        let (bound, time) = timed(|| self.bind());
        bound.map(|_| time)
    }
}

pub(super) fn run(effort: Effort) -> Result<Vec<Figure>, Failure> {
    let canonical = Case::new(CANONICAL_PREFILL, CANONICAL_DECODE)?;
    let (_, bound) = canonical.bind()?;
    let chunks = bound.chunks();
    let mut expanded = Vec::with_capacity(chunks as usize);
    let us = |time: Duration| time.as_secs_f64() * 1e6;

    let compiled = in_turns(
        effort,
        || canonical.timed_bind().map(us),
        || Ok(us(expand(&bound, &mut expanded))),
    )?;
    let mut results = vec![Figure::from_rounds(
        "compile and bind, all ranks",
        "us",
        "listing every chunk of it",
        &compiled,
    )];

    let larger = |layers, heads| {
        let grown = |side: Llama| Llama {
            layers: side.layers * layers,
            heads: side.heads * heads,
            ..side
        };
        Case::new(grown(CANONICAL_PREFILL), grown(CANONICAL_DECODE))
    };
    for (name, case) in [
        ("with 10x the layers", larger(10, 1)?),
        ("with 10x the heads", larger(1, 10)?),
    ] {
        let both = in_turns(
            effort,
            || case.timed_bind().map(us),
            || canonical.timed_bind().map(us),
        )?;
        results.push(Figure::from_rounds(name, "us", "the canonical case", &both));
    }

    let each = |time: Duration| time.as_secs_f64() * 1e9 / chunks as f64;
    let mut stored = Vec::with_capacity(chunks as usize);
    let listed = in_turns::<Failure>(
        effort,
        || Ok(each(expand(&bound, &mut expanded))),
        || Ok(each(store(chunks, &mut stored))),
    )?;
    results.push(Figure::from_rounds(
        "expand to explicit chunks",
        "ns a chunk",
        "storing as many triples",
        &listed,
    ));
    Ok(results)
}

/// Lists every chunk of a bound plan.
fn expand(bound: &BoundPlan, chunks: &mut Vec<(u64, u64, u64)>) -> Duration {
    chunks.clear();
    let ((), time) = timed(|| {
        for route in &bound.routes {
            route
                .program
                .for_each_chunk(|src, dst, bytes| chunks.push((src, dst, bytes)));
        }
    });
    time
}

/// Stores as many triples of the same size, as fast as memory takes them.
fn store(count: u64, triples: &mut Vec<(u64, u64, u64)>) -> Duration {
    triples.clear();
    let ((), time) = timed(|| triples.extend((0..count).map(|i| (i, i, 512))));
    time
}

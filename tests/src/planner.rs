//! The seam between the oracle and the planner under test.

use serde_json::Value;

use crate::chunks::{self, Chunk, Tally};
use crate::oracle::{self, Fault, Request};

/// A list of chunks that one source rank sends to one destination rank for one group, or for a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChunks {
    /// The sender.
    pub src_rank: u64,
    /// The receiver.
    pub dst_rank: u64,
    /// The group's name.
    pub group: String,
    /// The chunks for the request's block tables.
    pub chunks: Vec<Chunk>,
}

/// A planner of transfers that is under test.
pub trait Planner {
    /// Returns all chunks of a transfer, from two documents and a request.
    fn chunks(&self, from: &Value, to: &Value, request: &Request) -> Result<Vec<RouteChunks>, String>;
}

/// The oracle as a planner: maximal chunks, slowly.
#[derive(Clone, Copy, Debug)]
pub struct Slow;

impl Planner for Slow {
    fn chunks(&self, from: &Value, to: &Value, request: &Request) -> Result<Vec<RouteChunks>, String> {
        let routes = oracle::transfer(from, to, request)?;
        Ok(routes
            .into_iter()
            .map(|route| RouteChunks {
                chunks: chunks::fewest(&route),
                src_rank: route.src_rank,
                dst_rank: route.dst_rank,
                group: route.group,
            })
            .collect())
    }
}

/// The strictness of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Checks that every byte comes once, from the right place.
    Bytes,
    /// Also checks that chunks are as long as possible.
    Chunks,
}

/// Compares a planner's answer with the oracle's.
///
/// Every route that the oracle knows must be covered exactly, and there may be no other chunk
/// routes. What may be left unmerged is counted in the [`Tally`]; what may not is a fault.
pub fn check(
    demand: Demand,
    planner: &impl Planner,
    from: &Value,
    to: &Value,
    request: &Request,
) -> Result<Tally, Fault> {
    let expected = oracle::transfer(from, to, request).map_err(|e| format!("the oracle: {e}"))?;
    let mut planned = planner.chunks(from, to, request).map_err(|e| format!("refused: {e}"))?;
    let mut total = Tally::default();
    for route in &expected {
        let (here, others) = planned.into_iter().partition::<Vec<_>, _>(|r| {
            (r.src_rank, r.dst_rank, &r.group) == (route.src_rank, route.dst_rank, &route.group)
        });
        planned = others;
        let list = here.into_iter().flat_map(|r| r.chunks).collect::<Vec<_>>();
        let tally = chunks::check(demand, route, &list).map_err(|fault| {
            format!("rank {} to rank {}, group {}: {fault}", route.src_rank, route.dst_rank, route.group)
        })?;
        total.add(&tally);
    }
    match planned.iter().find(|r| !r.chunks.is_empty()) {
        None => Ok(total),
        Some(extra) => Err(format!(
            "rank {} to rank {}, group {}: nothing is to be sent, planned {:?}",
            extra.src_rank, extra.dst_rank, extra.group, extra.chunks[0]
        )),
    }
}

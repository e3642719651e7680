//! The planner of `transload-plan`, adapted to these tests in two ways. [`Bound`] plans as one process that reaches both
//! memories. [`Streamed`] plans as two peers that share only a byte stream.

use serde_json::Value;
use transload_layout::{Deployment, Side};
use transload_transfer::plan::codec::Codec;
use transload_transfer::plan::program::{Program, split_address};
use transload_transfer::{BlockTable, Plan, Tables, plan};

use crate::chunks::Chunk;
use crate::oracle::{Address, Request};
use crate::planner::{Planner, RouteChunks};

/// Plans bound to both sides' tables at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound;

/// A gather and a scatter, each bound to one side's tables, joined byte by byte. The result shows where every byte goes,
/// and nothing about chunks: each has one byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed {
    /// Whether streams carry one layer after another.
    pub by_layer: bool,
    /// The codec. Only the order in which it takes bytes is checked, not what it makes of them.
    pub codec: Codec,
}

impl Streamed {
    /// Makes a planner whose bytes travel exactly as they are.
    pub fn exact(by_layer: bool) -> Self {
        let codec = Codec::Exact;
        Self { by_layer, codec }
    }
}

impl Planner for Bound {
    fn chunks(&self, from: &Value, to: &Value, request: &Request) -> Result<Vec<RouteChunks>, String> {
        each_bound(from, to, request, |program, _| {
            let mut chunks = Vec::new();
            program.for_each_chunk(|src, dst, len| {
                chunks.push(Chunk { src: address(src), dst: address(dst), len });
            });
            Ok(chunks)
        })
    }
}

/// The ranks and the group of a route.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// The sender.
    pub src_rank: u64,
    /// The receiver.
    pub dst_rank: u64,
    /// The group's name.
    pub group: &'a str,
}

/// Binds a plan to both sides' tables, and lists what `chunks` finds in the program of each of its routes.
pub fn each_bound(
    from: &Value,
    to: &Value,
    request: &Request,
    chunks: impl Fn(&Program, Between<'_>) -> Result<Vec<Chunk>, String>,
) -> Result<Vec<RouteChunks>, String> {
    let plan = compile(from, to, request, Streamed::default())?;
    let names = plan.group_names().collect::<Vec<_>>();
    let (src, dst) = tables(&plan, request);
    let bound = plan.bind(&src, &dst).map_err(|e| format!("bind: {e}"))?;
    let routes = bound.routes.iter().map(|route| {
        let between = Between {
            src_rank: u64::from(route.src_rank.0),
            dst_rank: u64::from(route.dst_rank.0),
            group: names[route.group],
        };
        Ok(RouteChunks {
            src_rank: between.src_rank,
            dst_rank: between.dst_rank,
            group: between.group.to_owned(),
            chunks: chunks(&route.program(), between)?,
        })
    });
    routes.collect()
}

impl Planner for Streamed {
    fn chunks(&self, from: &Value, to: &Value, request: &Request) -> Result<Vec<RouteChunks>, String> {
        // The two peers plan apart.
        let here = compile(from, to, request, *self)?;
        let there = compile(from, to, request, *self)?;
        if here.digest() != there.digest() || here.routes() != there.routes() {
            return Err("the two peers' plans differ".into());
        }
        let names = here.group_names().collect::<Vec<_>>();
        let (src_tables, dst_tables) = tables(&here, request);
        let mut lists = Vec::new();
        for route in here.routes() {
            let bind = |plan: &Plan, side, tables| {
                plan.bind_stream(route, side, tables).map_err(|e| format!("bind_stream: {e}"))
            };
            let gather = bind(&here, Side::Source, &src_tables)?;
            let scatter = bind(&there, Side::Destination, &dst_tables)?;
            if gather.sections.len() != scatter.sections.len() {
                return Err("the two peers' streams have different sections".into());
            }
            for half in [&gather, &scatter] {
                let sections = half.sections.iter();
                let places = sections.map(|section| section.program.program().placed.len() as u64);
                let (places, most) = (places.sum::<u64>(), here.most_places(route));
                if places > most {
                    return Err(format!("{places} places, of {most} at most"));
                }
            }
            let mut end = 0;
            for (out, back) in gather.sections.iter().zip(&scatter.sections) {
                let about = |s: &plan::Section| (s.group, s.layer, s.start, s.program.bytes(), s.pieces);
                if about(out) != about(back) || out.start != end {
                    return Err(format!("the two peers' sections differ at {end}"));
                }
                end += out.program.bytes();
                let (reads, writes) = (in_stream(&out.program)?, in_stream(&back.program)?);
                let pairs = reads.into_iter().zip(writes);
                lists.push(RouteChunks {
                    src_rank: u64::from(route.src_rank.0),
                    dst_rank: u64::from(route.dst_rank.0),
                    group: names[out.group].to_owned(),
                    chunks: pairs.map(|(src, dst)| Chunk { src, dst, len: 1 }).collect(),
                });
            }
        }
        Ok(lists)
    }
}

/// The plan of a request between two documents.
pub fn compile(
    from: &Value,
    to: &Value,
    request: &Request,
    Streamed { by_layer, codec }: Streamed,
) -> Result<Plan, String> {
    let (from, to) = (deployment(from)?, deployment(to)?);
    let request = plan::Request { start: request.start, tokens: request.tokens, by_layer, codec };
    Plan::compile(&from, &to, &request).map_err(|e| format!("compile: {e}"))
}

/// Returns a deployment from its document.
pub fn deployment(document: &Value) -> Result<Deployment, String> {
    let value = serde_json::from_value(document.clone()).map_err(|e| e.to_string())?;
    Deployment::from_value(&value).map_err(|e| e.to_string())
}

/// Returns both sides' tables of a request.
pub fn tables(plan: &Plan, request: &Request) -> (Tables, Tables) {
    let side = |tables: &std::collections::BTreeMap<String, Vec<Option<u64>>>| {
        let table = |name| match tables.get(name) {
            None => BlockTable::Identity,
            Some(entries) => BlockTable::List(
                entries.iter().map(|entry| entry.map_or(BlockTable::NONE, |block| block as u32)).collect(),
            ),
        };
        Tables(plan.group_names().map(table).collect())
    };
    (side(&request.src_blocks), side(&request.dst_blocks))
}

/// Returns the memory address of each byte of a stream.
fn in_stream(program: &plan::program::StreamProgram) -> Result<Vec<Address>, String> {
    let mut places = vec![None; program.bytes() as usize];
    let mut fault = None;
    program.program().for_each_chunk(|memory, stream, len| {
        for n in 0..len {
            match places.get_mut((stream + n) as usize) {
                Some(place @ None) => *place = Some(address(memory + n)),
                Some(_) => fault = Some(format!("stream offset {} comes twice", stream + n)),
                None => fault = Some(format!("stream offset {} is too far", stream + n)),
            }
        }
    });
    if let Some(fault) = fault {
        return Err(fault);
    }
    let all = places.into_iter().collect::<Option<Vec<_>>>();
    all.ok_or_else(|| "a stream has holes".into())
}

fn address(address: u64) -> Address {
    let (allocation, offset) = split_address(address);
    Address { allocation: allocation as u64, offset }
}

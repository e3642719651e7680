//! The costs of planning, compared with their targets.
//!
//! `cargo bench --profile dist -p transload-benches --bench plan [-- FILTER]`. First comes a table of the figures with
//! a target and their ratio to it (at most 1.00 is good); each figure is the median of many rounds, in which all are
//! measured in turn. Then come single figures by criterion.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, Throughput};
use transload_layout::{Deployment, Dtype, Group, Side, Spec};
use transload_transfer::plan::BoundPlan;
use transload_transfer::{BlockTable, Plan, Request, Tables};

/// The target in seconds for compiling from two parsed deployments and binding all routes of all 8 destination ranks.
const COMPILE_AND_BIND: f64 = 160e-6;

/// The target in seconds for expanding one chunk from its loops.
const EXPAND: f64 = 5e-9;

/// The target in bytes for what two peers exchange so that each can compile the plan alone.
const WIRE: f64 = 4096.0;

const ROUNDS: usize = 201;

fn main() {
    targets();
    let mut criterion = Criterion::default().configure_from_args();
    planning(&mut criterion);
    criterion.final_summary();
}

fn side(tp: u64, block: u64, layers: u64, heads: u64, order: &str) -> Deployment {
    let spec = Spec::attention(heads, 128, Dtype::Bf16);
    Deployment::builder()
        .tp(tp)
        .block_size(block)
        .num_blocks(512)
        .order(order)
        .group(Group::builder("attn", &format!("0-{}", layers - 1), spec))
        .build()
        .unwrap()
}

fn scattered(entries: u32, step: u32) -> Tables {
    let blocks = (0..entries).map(|i| i * step % 509).collect();
    Tables(vec![BlockTable::List(blocks)])
}

/// A pair of deployments of the canonical shape, or with more layers or heads.
struct Pair {
    src: Deployment,
    dst: Deployment,
    tables: (Tables, Tables),
}

impl Pair {
    fn new(layers: u64, heads: u64) -> Self {
        Self {
            src: side(4, 16, layers, heads, "LBSHC"),
            dst: side(8, 64, layers, heads, "LBSHC"),
            tables: (scattered(128, 37), scattered(32, 41)),
        }
    }

    fn plan(&self) -> Plan {
        Plan::compile(black_box(&self.src), &self.dst, &Request::tokens(2048)).unwrap()
    }

    fn bound(&self) -> BoundPlan {
        self.plan().bind(&self.tables.0, &self.tables.1).unwrap()
    }

    /// Returns the exchanged bytes: both documents, the token range, and the digest.
    fn wire(&self) -> f64 {
        let documents = [&self.src, &self.dst].map(|side| postcard::to_allocvec(side.document()).unwrap().len());
        let request = postcard::to_allocvec(&(0u64, 2048u64, false)).unwrap().len();
        (documents.iter().sum::<usize>() + request + self.plan().digest().0.len()) as f64
    }
}

fn targets() {
    let pairs = [Pair::new(80, 8), Pair::new(800, 8), Pair::new(80, 80)];
    let bound = pairs[0].bound();
    let mut seconds = vec![Vec::new(); pairs.len() + 1];
    for _ in 0..ROUNDS {
        for (pair, seconds) in pairs.iter().zip(&mut seconds) {
            let start = Instant::now();
            black_box(pair.bound());
            seconds.push(start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        black_box(expand(&bound));
        seconds[pairs.len()].push(start.elapsed().as_secs_f64() / bound.chunks() as f64);
    }
    let medians: Vec<f64> = seconds.iter_mut().map(|s| median(s)).collect();
    println!("{:44} {:>10} {:>10} {:>6}", "", "figure", "target", "ratio");
    let row = |name: &str, unit: &str, scale: f64, figure: f64, target: f64| {
        let (shown, wanted) = (figure * scale, target * scale);
        let ratio = figure / target;
        println!("{name:44} {shown:>10.1} {wanted:>10.1} {ratio:>6.2}  {unit}");
    };
    row("compile and bind, canonical", "us", 1e6, medians[0], COMPILE_AND_BIND);
    row("  10x the layers, beside canonical", "us", 1e6, medians[1], medians[0]);
    row("  10x the heads, beside canonical", "us", 1e6, medians[2], medians[0]);
    row("expand to a chunk", "ns", 1e9, medians[3], EXPAND);
    row("documents, request and digest on the wire", "B", 1.0, pairs[0].wire(), WIRE);
    println!();
}

fn expand(bound: &BoundPlan) -> u64 {
    let mut sum = 0u64;
    for route in &bound.routes {
        let program = &route.program();
        program.for_each_chunk(|src, dst, run| sum = sum.wrapping_add(src ^ dst ^ run));
    }
    sum
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for (name, layers, heads) in [("canonical", 80, 8), ("10x layers", 800, 8), ("10x heads", 80, 80)] {
        let pair = Pair::new(layers, heads);
        group.bench_function(format!("compile/{name}"), |b| b.iter(|| pair.plan()));
        group.bench_function(format!("compile and bind/{name}"), |b| {
            b.iter(|| pair.bound());
        });
    }
    let pair = Pair::new(80, 8);
    let plan = pair.plan();
    let route = &plan.routes()[0];
    group.bench_function("route digest", |b| b.iter(|| plan.route_digest(black_box(route))));
    group.bench_function("one side's half of a stream", |b| {
        b.iter(|| plan.bind_stream(route, Side::Source, &pair.tables.0).unwrap());
    });
    let bound = pair.bound();
    group.throughput(Throughput::Elements(bound.chunks()));
    group.bench_function("expand to chunks", |b| b.iter(|| expand(black_box(&bound))));
    group.finish();
}

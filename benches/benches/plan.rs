//! What planning costs: the canonical pair compiled and bound, and chunks expanded.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use transload_layout::Deployment;
use transload_layout::document::Value;
use transload_transfer::plan::{BlockTable, Plan, Request, Side, Tables};

fn side(tp: u32, block: u32, layers: u32, heads: u32, order: &str) -> Deployment {
    let text = format!(
        r#"{{"schema": "transload.deployment/1", "tp": {tp}, "block_size": {block},
            "num_blocks": 512, "order": "{order}", "group": [{{"name": "attn", "layers": "0-{}",
            "spec": [{{"kind": "attention", "heads": {heads}, "head_dim": 128, "dtype": "bf16"}}]}}]}}"#,
        layers - 1,
    );
    let value: Value = serde_json::from_str(&text).unwrap();
    Deployment::from_value(&value).unwrap()
}

fn scattered(entries: u32, step: u32) -> Tables {
    let blocks = (0..entries).map(|i| i * step % 509).collect();
    Tables(vec![BlockTable::List(blocks)])
}

fn planning(c: &mut Criterion) {
    let request = Request::tokens(2048);
    let (src_tables, dst_tables) = (scattered(128, 37), scattered(32, 41));
    let mut group = c.benchmark_group("plan");
    for (name, layers, heads) in [
        ("canonical", 80, 8),
        ("10x layers", 800, 8),
        ("10x heads", 80, 80),
    ] {
        let src = side(4, 16, layers, heads, "LBSHC");
        let dst = side(8, 64, layers, heads, "LBSHC");
        group.bench_function(format!("compile/{name}"), |b| {
            b.iter(|| Plan::compile(black_box(&src), &dst, &request).unwrap());
        });
        group.bench_function(format!("compile and bind/{name}"), |b| {
            b.iter(|| {
                let plan = Plan::compile(black_box(&src), &dst, &request).unwrap();
                plan.bind(&src_tables, &dst_tables).unwrap()
            });
        });
    }
    let src = side(4, 16, 80, 8, "LBSHC");
    let dst = side(8, 64, 80, 8, "LBSHC");
    let plan = Plan::compile(&src, &dst, &request).unwrap();
    let route = &plan.routes()[0];
    group.bench_function("route digest", |b| {
        b.iter(|| plan.route_digest(black_box(route)))
    });
    group.bench_function("one side's half of a stream", |b| {
        b.iter(|| plan.bind_stream(route, Side::Source, &src_tables).unwrap());
    });
    let bound = plan.bind(&src_tables, &dst_tables).unwrap();
    let program = &bound.routes[0].program;
    group.throughput(Throughput::Elements(program.chunks()));
    group.bench_function("expand to chunks", |b| {
        b.iter(|| {
            let mut sum = 0u64;
            program.for_each_chunk(|src, dst, run| sum = sum.wrapping_add(src ^ dst ^ run));
            sum
        });
    });
    group.finish();
}

criterion_group!(benches, planning);
criterion_main!(benches);

//! Pairs of layouts with a known minimum of chunks.

use serde_json::{Value as Json, json};
use transload_layout::Deployment;
use transload_layout::document::Value;
use transload_plan::{BlockTable, BoundPlan, Plan, Request, Tables};

fn side(group: Json) -> Deployment {
    let mut document = json!({"schema": "transload.deployment/1", "num_blocks": 8,
        "group": [{"name": "g", "layers": "0-3"}]});
    let fields = document["group"][0].as_object_mut().unwrap();
    fields.extend(group.as_object().unwrap().clone());
    let document: Value = serde_json::from_value(document).unwrap();
    Deployment::from_value(&document).unwrap()
}

fn attention() -> Json {
    json!({"kind": "attention", "heads": 1, "head_dim": 4, "dtype": "u8"})
}

fn windowed(sliding_window: u64) -> Json {
    let mut spec = attention();
    spec["sliding_window"] = json!(sliding_window);
    spec
}

fn bind(src: &Deployment, dst: &Deployment, dst_table: BlockTable) -> (Plan, BoundPlan) {
    let plan = Plan::compile(src, dst, &Request::tokens(64)).unwrap();
    let tables = Tables(vec![dst_table]);
    let bound = plan.bind(&Tables::identity(&plan), &tables).unwrap();
    (plan, bound)
}

fn chunks(src: &Deployment, dst: &Deployment, dst_table: BlockTable) -> u64 {
    bind(src, dst, dst_table).1.chunks()
}

#[test]
fn specs_of_different_windows_move_together_where_both_do() {
    let page = |window| {
        let specs = json!([attention(), windowed(window)]);
        side(json!({"block_size": 16, "block_stride": 1024, "spec": specs}))
    };
    // In each layer: the first block of one spec; the second of one, and the rest of it of the other;
    // two whole pages.
    let page = page(40);
    assert_eq!(chunks(&page, &page, BlockTable::Identity), 4 * 5);
    // Without padding: the first block of one spec; and the last seven states of the other's second
    // block, which end where those of the first begin, with all pages that follow.
    let specs = json!([windowed(40), attention()]);
    let dense = side(json!({"block_size": 16, "spec": specs}));
    assert_eq!(chunks(&dense, &dense, BlockTable::Identity), 4 * 2);
}

/// A whole block and a part of the next, with data and scales apart: the first one's scales end where the next one's
/// data begin.
#[test]
fn a_ragged_block_goes_on_from_the_whole_one() {
    let index = json!({"kind": "indexer", "data_bytes": 128, "scale_bytes": 4});
    for (layers, count) in [("0", 1), ("0-1", 2), ("0-60", 61)] {
        let side = side(json!({"block_size": 16, "layers": layers, "spec": [index]}));
        let plan = Plan::compile(&side, &side, &Request::tokens(20)).unwrap();
        let tables = Tables::identity(&plan);
        assert_eq!(plan.bind(&tables, &tables).unwrap().chunks(), 2 * count);
    }
}

/// A source may list a block repeatedly, for prompts that repeat.
#[test]
fn repeated_source_blocks_join_too() {
    let latent = json!({"kind": "mla", "latent": 4, "dtype": "u8"});
    let side = side(json!({"block_size": 4, "layers": "0", "spec": [latent]}));
    let plan = Plan::compile(&side, &side, &Request::tokens(16)).unwrap();
    let src = Tables(vec![BlockTable::List(vec![0, 1, 0, 1])]);
    let bound = plan.bind(&src, &Tables::identity(&plan)).unwrap();
    assert_eq!(bound.chunks(), 2);
}

#[test]
fn blocks_that_lie_inside_of_states_join_on_either_side() {
    let outside = side(json!({"block_size": 16, "order": "LSBHC", "spec": [attention()]}));
    let single = side(json!({"block_size": 1, "num_blocks": 64, "spec": [attention()]}));
    let table = BlockTable::List((0..64).map(|t| t % 16 * 4 + t / 16).collect());
    assert_eq!(chunks(&outside, &single, table.clone()), 4 * 16);
    let plan = Plan::compile(&single, &outside, &Request::tokens(64)).unwrap();
    let bound = plan.bind(&Tables(vec![table]), &Tables::identity(&plan));
    assert_eq!(bound.unwrap().chunks(), 4 * 16);
}

#[test]
fn what_travels_together_is_named_together() {
    let page = side(json!({"block_size": 16, "spec": [attention(), attention()]}));
    let (plan, bound) = bind(&page, &page, BlockTable::Identity);
    let names = bound.routes[0].components().iter().map(|set| plan.component_names(0, *set));
    assert_eq!(names.collect::<Vec<_>>(), ["kv+kv"]);

    // The q, k and v of a gated delta net are channels of a convolution.
    let conv = json!({"kind": "gdn_conv", "key_heads": 1, "key_head_dim": 4, "value_heads": 1,
        "value_head_dim": 4, "conv_kernel": 4, "dtype": "u8", "conv_layout": "SD"});
    let net = side(json!({"block_size": 16, "spec": [conv]}));
    let (plan, bound) = bind(&net, &net, BlockTable::Identity);
    let set = bound.routes[0].components()[0];
    assert_eq!(plan.component_names(0, set), "q+k+v");
}

/// No run continues from one allocation into another, even for the longest ones.
#[test]
fn the_longest_allocations_stay_apart() {
    let spec = json!({"kind": "attention", "heads": 1, "head_dim": 512, "dtype": "u8"});
    let longest = side(json!({"allocation": "per_layer", "block_size": 1 << 24, "num_blocks": 512,
        "spec": [spec]}));
    let request = Request::tokens(512 << 24);
    let plan = Plan::compile(&longest, &longest, &request).unwrap();
    let tables = Tables::identity(&plan);
    let bound = plan.bind(&tables, &tables).unwrap();
    assert_eq!(bound.chunks(), 4);
    assert!(bound.histogram().into_keys().eq([1 << 43]));
}

/// Blocks that are not listed, or that join at once, cost neither memory nor time.
#[test]
fn a_hundred_million_blocks_bind() {
    let blocks = u32::MAX;
    let spec = json!({"kind": "attention", "heads": 1, "head_dim": 1, "dtype": "u8"});
    let many = side(json!({"block_size": 1, "num_blocks": blocks, "layers": "0", "spec": [spec]}));
    let request = Request::tokens(if cfg!(debug_assertions) { 1 << 22 } else { 100_000_000 });
    let plan = Plan::compile(&many, &many, &request).unwrap();
    let tables = Tables::identity(&plan);
    assert_eq!(plan.bind(&tables, &tables).unwrap().chunks(), 1);
    let plan = Plan::compile(&many, &many, &Request::tokens(2)).unwrap();
    let last = Tables(vec![BlockTable::List(vec![blocks - 1, 7])]);
    assert_eq!(plan.bind(&tables, &last).unwrap().chunks(), 2);
}

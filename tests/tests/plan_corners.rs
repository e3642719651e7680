//! The planner against the oracle in corners that random cases might miss: every order of the grammar,
//! more ranks than heads on either side, Mamba2 with one group, and the canonical case in full size.

use serde_json::{Value, json};
use transload_tests::compiled::{Bound, Streamed};
use transload_tests::oracle::Request;
use transload_tests::planner::{Demand, Planner, check};

fn deployment(keys: Value, specs: Value) -> Value {
    let mut document = json!({"schema": "transload.deployment/1",
        "group": [{"name": "g", "layers": "0-1", "spec": specs}]});
    let fields = document.as_object_mut().unwrap();
    fields.extend(keys.as_object().unwrap().clone());
    document
}

fn agree(from: &Value, to: &Value, request: &Request) {
    let context = |fault| panic!("{fault}\n{from}\n{to}\n{request:?}");
    check(Demand::Chunks, &Bound, from, to, request).unwrap_or_else(context);
    let streamed = Streamed::default();
    check(Demand::Bytes, &streamed, from, to, request).unwrap_or_else(context);
}

fn table(blocks: &[u64]) -> std::collections::BTreeMap<String, Vec<Option<u64>>> {
    [("g".to_owned(), blocks.iter().copied().map(Some).collect())].into()
}

fn permutations(letters: &str) -> Vec<String> {
    if letters.is_empty() {
        return vec![String::new()];
    }
    let mut all = Vec::new();
    for letter in letters.chars() {
        let others = letters.replace(letter, "");
        all.extend(permutations(&others).iter().map(|rest| format!("{letter}{rest}")));
    }
    all
}

/// Plans every permutation of letters, as a source and as a destination of a few orders. Some blocks are neighbours on
/// both sides, the last one is partial, and the block sizes do not divide each other.
fn every_order(letters: &str, partners: &[&str]) {
    let attention = json!([{"kind": "attention", "heads": 2, "head_dim": 2, "dtype": "bf16"}]);
    let side = |order: &str, tp: u64, block_size: u64| {
        let keys = json!({"order": order, "tp": tp, "block_size": block_size, "num_blocks": 4});
        deployment(keys, attention.clone())
    };
    // Blocks 1 and 2, or 2 and 3, are neighbours in the sequence too.
    let blocks = |size| match size {
        2 => table(&[1, 2, 0, 3]),
        _ => table(&[2, 3, 0]),
    };
    for order in permutations(letters) {
        for partner in partners {
            for (tps, sizes) in [((1, 2), (2, 3)), ((1, 1), (2, 2)), ((2, 1), (3, 2))] {
                let request = Request { start: 1, tokens: 6, src_blocks: blocks(sizes.0), dst_blocks: blocks(sizes.1) };
                for (from, to) in [(&order[..], *partner), (*partner, &order[..])] {
                    agree(&side(from, tps.0, sizes.0), &side(to, tps.1, sizes.1), &request);
                }
            }
        }
    }
}

#[test]
fn every_permutation_of_the_axes() {
    every_order("LBSHC", &["LBSHC", "LBHNC", "BHLSC"]);
}

#[test]
fn every_permutation_of_the_sub_axes() {
    every_order("LBSHKD", &["LBHSC"]);
}

#[test]
fn every_pair_of_tp_sizes_for_few_heads() {
    for heads in [1_u64, 2, 3, 4, 6] {
        let attention = json!([{"kind": "attention", "heads": heads, "head_dim": 1, "dtype": "u8"}]);
        let fits = |tp: &u64| heads.is_multiple_of(*tp) || tp.is_multiple_of(heads);
        for from in (1..=16).filter(fits) {
            for to in (1..=16).filter(fits) {
                let side = |tp: u64, order: &str| {
                    let keys = json!({"tp": tp, "order": order, "block_size": 2, "num_blocks": 2});
                    deployment(keys, attention.clone())
                };
                let request = Request { tokens: 3, ..Request::default() };
                agree(&side(from, "LBSHC"), &side(to, "HND"), &request);
            }
        }
    }
}

#[test]
fn mamba2_with_one_group_between_all_tp_sizes_and_layouts() {
    let specs = |layout: &str| {
        json!([
            {"kind": "mamba2_conv", "d_inner": 8, "heads": 4, "groups": 1, "state_size": 3,
             "conv_kernel": 4, "dtype": "bf16", "conv_layout": layout},
            {"kind": "mamba2_ssm", "heads": 4, "head_dim": 2, "state_size": 3, "dtype": "f32"},
        ])
    };
    for layouts in [("DS", "DS"), ("SD", "SD"), ("DS", "SD"), ("SD", "DS")] {
        for from in [1, 2, 4] {
            for to in [1, 2, 4] {
                let side = |tp: u64, layout: &str| {
                    let keys = json!({"tp": tp, "block_size": 16, "num_blocks": 3});
                    deployment(keys, specs(layout))
                };
                let request =
                    Request { tokens: 40, src_blocks: table(&[2]), dst_blocks: table(&[1, 0]), ..Request::default() };
                agree(&side(from, layouts.0), &side(to, layouts.1), &request);
            }
        }
    }
}

/// Returns how many chunks of which length each destination rank gets in the canonical case: the shape of
/// Llama-3-70B, 2,048 tokens, blocks in an order without neighbours.
fn canonical(from: (u64, u64, &str), to: (u64, u64, &str)) -> Vec<(u64, u64)> {
    let side = |(tp, block_size, order): (u64, u64, &str)| {
        let keys = json!({"tp": tp, "block_size": block_size, "order": order,
                          "num_blocks": 2048 / block_size});
        let specs = json!([{"kind": "attention", "heads": 8, "head_dim": 128, "dtype": "bf16"}]);
        let mut document = deployment(keys, specs);
        document["group"][0]["layers"] = json!("0-79");
        document
    };
    let scattered = |blocks: u64| {
        let (even, odd) = ((0..blocks).step_by(2), (1..blocks).step_by(2));
        even.chain(odd).collect::<Vec<_>>()
    };
    let mut dst = scattered(2048 / to.1);
    dst.reverse();
    let request = Request {
        tokens: 2048,
        src_blocks: table(&scattered(2048 / from.1)),
        dst_blocks: table(&dst),
        ..Request::default()
    };
    let lists = Bound.chunks(&side(from), &side(to), &request).unwrap();
    let ranks = (0..to.0).map(|rank| {
        let mine = lists.iter().filter(|list| list.dst_rank == rank);
        let lengths = mine.flat_map(|list| list.chunks.iter().map(|chunk| chunk.len));
        let lengths = lengths.collect::<Vec<_>>();
        assert!(lengths.iter().all(|len| *len == lengths[0]));
        (lengths.len() as u64, lengths[0])
    });
    ranks.collect()
}

#[test]
fn the_canonical_case_in_full_size() {
    let all = |from, to, each: (u64, u64)| {
        let found = canonical(from, to);
        assert!(found.iter().all(|rank| *rank == each), "{from:?} {to:?}: {found:?}");
    };
    all((4, 16, "LBSHC"), (8, 64, "LBHSC"), (163_840, 512));
    all((4, 16, "LBHSC"), (8, 64, "LBHSC"), (10_240, 8 << 10));
    all((4, 16, "BHLSC"), (8, 16, "BHLSC"), (128, 640 << 10));
    all((4, 16, "BLSHC"), (4, 16, "BLSHC"), (128, 1280 << 10));
}

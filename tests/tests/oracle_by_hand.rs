//! The oracle against numbers worked out by hand from the reference.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use transload_tests::chunks::{self, Chunk};
use transload_tests::oracle::{self, Address, Name, Request, Route, Side};
use transload_tests::planner::Demand;

/// Returns a deployment of one group on one rank, with keys of the group put over the defaults.
fn one(spec: Value, group: Value) -> Value {
    deployment(json!([spec]), group, json!({}))
}

fn deployment(specs: Value, group: Value, deployment: Value) -> Value {
    let mut text = json!({"name": "g", "layers": "0-1", "spec": specs});
    text.as_object_mut().unwrap().extend(group.as_object().unwrap().clone());
    let mut document = json!({"block_size": 4, "num_blocks": 3, "group": [text]});
    document.as_object_mut().unwrap().extend(deployment.as_object().unwrap().clone());
    document
}

fn attention(heads: u64, k: u64, v: u64, dtype: &str) -> Value {
    json!({"kind": "attention", "heads": heads, "head_dim": k, "v_head_dim": v, "dtype": dtype})
}

/// Returns the address of byte 0 of (layer, block, state, spec, component, unit, i, j) on a rank.
fn at(document: &Value, rank: u64, [layer, block, state]: [u64; 3], rest: [u64; 5]) -> Address {
    let side = Side::read(document).unwrap();
    let group = side.group("g").unwrap();
    let [spec, component, unit, i, j] = rest;
    let name = Name { layer, spec: spec as usize, component: component as usize, unit, i, j, byte: 0 };
    side.address(rank, group, &name, block, state).unwrap()
}

fn offset(document: &Value, rank: u64, place: [u64; 3], rest: [u64; 5]) -> u64 {
    let address = at(document, rank, place, rest);
    assert_eq!(address.allocation, 0);
    address.offset
}

const K: u64 = 0;
const V: u64 = 1;

#[test]
fn transposed_keys_and_then_values() {
    let document = one(attention(2, 2, 3, "u8"), json!({"order": "LBH[DS,SD]"}));
    // A head: 2 * 4 bytes of K, 4 * 3 of V. A block: two heads.
    assert_eq!(offset(&document, 0, [0, 0, 2], [0, K, 0, 1, 0]), 4 + 2);
    assert_eq!(offset(&document, 0, [0, 1, 3], [0, V, 1, 2, 0]), 40 + 20 + 8 + 3 * 3 + 2);
    assert_eq!(offset(&document, 0, [1, 0, 0], [0, K, 0, 0, 0]), 3 * 40);
}

#[test]
fn a_pool_of_keys_and_one_of_values() {
    let document = one(attention(2, 2, 2, "bf16"), json!({"order": "KLBSHD"}));
    // D 2 bytes an element, H 4, S 8, B 32, L 96, K 192.
    assert_eq!(offset(&document, 0, [1, 2, 3], [0, V, 1, 1, 0]), 192 + 96 + 64 + 24 + 4 + 2);
    let apart = one(attention(2, 2, 2, "bf16"), json!({"order": "L[BSHD,BSHD]"}));
    let named = one(attention(2, 2, 2, "bf16"), json!({"order": "LKBSHD"}));
    assert_eq!(oracle::addresses(&apart, 0, "g").unwrap(), oracle::addresses(&named, 0, "g").unwrap());
}

#[test]
fn one_order_in_many_spellings() {
    let spelled = |order: Value| {
        let document = one(attention(3, 2, 1, "f16"), json!({"order": order}));
        oracle::addresses(&document, 0, "g").unwrap()
    };
    let plain = oracle::addresses(&one(attention(3, 2, 1, "f16"), json!({})), 0, "g").unwrap();
    assert_eq!(plain, spelled(json!("NHD")));
    assert_eq!(plain, spelled(json!("LBNHC")));
    assert_eq!(plain, spelled(json!([0, 1, 2, 3, 4])));
    assert_eq!(spelled(json!("HND")), spelled(json!("LBHSC")));
    assert_eq!(spelled(json!("HND")), spelled(json!([0, 1, 3, 2, 4])));
    assert_eq!(spelled(json!("BHLNC")), spelled(json!([1, 3, 0, 2, 4])));
    assert_ne!(plain, spelled(json!("HND")));
}

#[test]
fn content_that_is_not_innermost_counts_elements() {
    let document = one(attention(3, 1, 1, "f16"), json!({"order": "LBSCH"}));
    // H 2 bytes an element, C 6, S 12, B 48.
    assert_eq!(offset(&document, 0, [0, 1, 1], [0, V, 2, 0, 0]), 48 + 12 + 6 + 4);
    let opaque = json!({"kind": "opaque", "heads": 3, "entry_bytes": 2});
    let document = one(opaque, json!({"order": "LBSCH"}));
    // Bytes of an opaque entry: H 1, C 3, S 6.
    assert_eq!(offset(&document, 0, [0, 0, 1], [0, 0, 2, 1, 0]), 6 + 3 + 2);
}

#[test]
fn all_data_of_a_block_before_all_scales() {
    let indexer = json!({"kind": "indexer", "data_bytes": 3, "scale_bytes": 1});
    let document = one(indexer.clone(), json!({}));
    assert_eq!(offset(&document, 0, [0, 0, 2], [0, 0, 0, 1, 0]), 7);
    assert_eq!(offset(&document, 0, [0, 1, 3], [0, 1, 0, 0, 0]), 16 + 12 + 3);
    let mla = json!({"kind": "mla", "latent": 5, "dtype": "bf16"});
    let page = deployment(json!([mla, indexer]), json!({"block_stride": 64}), json!({}));
    // A page: 4 * 10 bytes of latent, 4 * 3 of data, 4 of scales, 8 of padding.
    assert_eq!(offset(&page, 0, [0, 0, 3], [0, 0, 0, 4, 0]), 38);
    assert_eq!(offset(&page, 0, [0, 1, 1], [1, 0, 0, 2, 0]), 64 + 40 + 5);
    assert_eq!(offset(&page, 0, [1, 2, 3], [1, 1, 0, 0, 0]), 5 * 64 + 40 + 12 + 3);
}

/// Heads come first, then states, then a key and its value, in any order of the deployment.
#[test]
fn attention_in_a_page() {
    let indexer = json!({"kind": "indexer", "data_bytes": 3, "scale_bytes": 1});
    let page = deployment(json!([attention(2, 2, 3, "bf16"), indexer]), json!({}), json!({"order": "BLHSC"}));
    // Two heads of 4 * 5 elements of 2 bytes, 4 * 3 of data, 4 of scales.
    assert_eq!(offset(&page, 0, [0, 0, 2], [0, K, 0, 1, 0]), 2 * 10 + 2);
    assert_eq!(offset(&page, 0, [0, 0, 2], [0, V, 1, 1, 0]), 40 + 2 * 10 + 4 + 2);
    assert_eq!(offset(&page, 0, [0, 1, 1], [1, 0, 0, 2, 0]), 96 + 80 + 5);
    assert_eq!(offset(&page, 0, [1, 0, 0], [0, K, 0, 0, 0]), 3 * 96);
}

#[test]
fn a_compressed_block_has_fewer_states_than_tokens() {
    let spec = json!({"kind": "compressed", "data_bytes": 2, "scale_bytes": 1,
                      "tokens_per_state": 2});
    let document = one(spec, json!({}));
    assert_eq!(offset(&document, 0, [0, 1, 1], [0, 1, 0, 0, 0]), 6 + 4 + 1);
}

fn mamba2(layout: &str) -> Value {
    json!([
        {"kind": "mamba2_conv", "d_inner": 4, "heads": 2, "groups": 1, "state_size": 3,
         "conv_kernel": 3, "dtype": "u8", "conv_layout": layout},
        {"kind": "mamba2_ssm", "heads": 2, "head_dim": 2, "state_size": 3, "dtype": "f32"},
    ])
}

#[test]
fn a_mamba2_page_in_both_layouts() {
    const B: u64 = 1;
    // On each of two ranks 2 channels of x, 3 of B and 3 of C, two states each; then one head of
    // 2 * 3 floats.
    let sides = json!({"tp": 2});
    let ds = deployment(mamba2("DS"), json!({}), sides.clone());
    let sd = deployment(mamba2("SD"), json!({}), sides);
    assert_eq!(offset(&ds, 1, [0, 0, 0], [0, B, 0, 1, 1]), 3 * 2 + 1);
    assert_eq!(offset(&sd, 1, [0, 0, 0], [0, B, 0, 1, 1]), 8 + 3);
    for document in [ds, sd] {
        assert_eq!(offset(&document, 1, [0, 0, 0], [0, 0, 1, 0, 0]), 0);
        assert_eq!(offset(&document, 1, [0, 0, 0], [1, 0, 1, 1, 2]), 16 + 4 * 5);
        assert_eq!(offset(&document, 1, [1, 1, 0], [1, 0, 1, 0, 0]), 4 * 40 + 16);
    }
}

#[test]
fn strides_offsets_and_allocations() {
    let spec = attention(1, 1, 1, "u8");
    // A page has 8 bytes.
    let padded = one(spec.clone(), json!({"block_stride": 10, "offset": 100}));
    assert_eq!(offset(&padded, 0, [1, 2, 3], [0, V, 0, 0, 0]), 100 + 30 + 20 + 7);
    let apart = one(spec.clone(), json!({"block_stride": 10, "layer_stride": 50}));
    assert_eq!(offset(&apart, 0, [1, 2, 0], [0, K, 0, 0, 0]), 70);
    let blocks_outside = one(spec.clone(), json!({"order": "BLSHC", "block_stride": 30, "layer_stride": 9}));
    assert_eq!(offset(&blocks_outside, 0, [1, 2, 0], [0, K, 0, 0, 0]), 69);
    let own = one(spec, json!({"order": "BLSHC", "allocation": "per_layer", "offset": 5}));
    assert_eq!(at(&own, 0, [1, 2, 0], [0, K, 0, 0, 0]), Address { allocation: 1, offset: 5 + 16 });
}

#[test]
fn pipeline_ranks_split_layers_as_vllm_does() {
    let ranks = |layers: u64, pp: u64| {
        let document = deployment(
            json!([attention(1, 1, 1, "u8")]),
            json!({"layers": format!("0-{}", layers - 1)}),
            json!({"pp": pp}),
        );
        let side = Side::read(&document).unwrap();
        side.stages.iter().map(|s| s.end - s.start).collect::<Vec<_>>()
    };
    assert_eq!(ranks(61, 4), [15, 15, 16, 15]);
    assert_eq!(ranks(62, 4), [15, 16, 16, 15]);
    assert_eq!(ranks(63, 4), [16, 16, 16, 15]);
    assert_eq!(ranks(3, 2), [2, 1]);
    // Slots count the layers of the rank: with blocks outside, a shorter rank has nearer blocks.
    let uneven =
        deployment(json!([attention(1, 1, 1, "u8")]), json!({"layers": "0-2", "order": "BLSHC"}), json!({"pp": 2}));
    assert_eq!(offset(&uneven, 0, [1, 1, 0], [0, K, 0, 0, 0]), 16 + 8);
    assert_eq!(offset(&uneven, 1, [2, 1, 0], [0, K, 0, 0, 0]), 8);
}

fn ask(start: u64, tokens: u64) -> Request {
    Request { start, tokens, ..Request::default() }
}

fn states(spec: Value, start: u64, tokens: u64) -> Vec<u64> {
    let document = one(spec, json!({"layers": "0", "block_size": 8, "num_blocks": 9}));
    let routes = oracle::transfer(&document, &document, &ask(start, tokens)).unwrap();
    let mut states = routes.iter().flat_map(|r| r.bytes.iter().map(|m| m.state)).collect::<Vec<_>>();
    states.sort_unstable();
    states.dedup();
    states
}

#[test]
fn only_what_the_window_still_needs_travels() {
    let windowed = |key: &str, tokens: u64, start: u64, count: u64| {
        let mut spec = attention(1, 1, 1, "u8");
        spec[key] = json!(tokens);
        states(spec, start, count)
    };
    assert_eq!(windowed("sliding_window", 4, 0, 10), [7, 8, 9]);
    assert_eq!(windowed("sliding_window", 4, 8, 2), [8, 9]);
    assert_eq!(windowed("sliding_window", 1, 0, 10), [0; 0]);
    assert_eq!(windowed("sliding_window", 50, 3, 3), [3, 4, 5]);
    assert_eq!(windowed("chunk_size", 4, 0, 10), [8, 9]);
    assert_eq!(windowed("chunk_size", 4, 9, 1), [9]);
    assert_eq!(windowed("chunk_size", 5, 0, 10), [0; 0]);
}

#[test]
fn a_state_travels_with_its_last_token() {
    let spec = json!({"kind": "compressed", "data_bytes": 1, "scale_bytes": 1,
                      "tokens_per_state": 4});
    assert_eq!(states(spec.clone(), 2, 11), [0, 1, 2]);
    assert_eq!(states(spec.clone(), 4, 9), [1, 2]);
    assert_eq!(states(spec.clone(), 0, 16), [0, 1, 2, 3]);
    assert_eq!(states(spec, 0, 3), [0; 0]);
}

fn senders(routes: &[Route], dst_rank: u64) -> Vec<u64> {
    let to = routes.iter().filter(|r| r.dst_rank == dst_rank);
    to.map(|r| r.src_rank).collect()
}

fn over(tp: u64, specs: Value) -> Value {
    deployment(specs, json!({"layers": "0"}), json!({"tp": tp}))
}

#[test]
fn more_ranks_than_heads() {
    let heads = |tp| over(tp, json!([attention(2, 1, 1, "u8")]));
    let routes = |from, to| oracle::transfer(&heads(from), &heads(to), &ask(0, 4)).unwrap();
    let gathered = routes(8, 1);
    assert_eq!(senders(&gathered, 0), [0, 4]);
    let spread = routes(1, 8);
    assert_eq!(spread.len(), 8);
    // Rank 5 holds head 1: bytes 2 and 3 of each state.
    assert_eq!(spread[5].bytes[0].src.offset, 2);
    // Four replicas for one reader, and two readers a replica.
    assert_eq!(senders(&routes(8, 2), 1), [4]);
    let doubled = routes(4, 8);
    let by = (0..8).map(|r| senders(&doubled, r)[0]).collect::<Vec<_>>();
    assert_eq!(by, [0, 0, 1, 1, 2, 2, 3, 3]);
    // Three readers of two replicas: floor(j * 2 / 3).
    let one_head = |tp| over(tp, json!([attention(1, 1, 1, "u8")]));
    let thirds = oracle::transfer(&one_head(2), &one_head(3), &ask(0, 4)).unwrap();
    let by = (0..3).map(|r| senders(&thirds, r)[0]).collect::<Vec<_>>();
    assert_eq!(by, [0, 0, 1]);
}

/// Returns the source rank that sends each (layer, state) to a destination rank.
fn shares(from: &Value, to: &Value, tokens: u64, dst_rank: u64) -> BTreeMap<(u64, u64), u64> {
    let routes = oracle::transfer(from, to, &ask(0, tokens)).unwrap();
    let mut shares = BTreeMap::new();
    for route in routes.iter().filter(|route| route.dst_rank == dst_rank) {
        for moved in &route.bytes {
            let before = shares.insert((moved.name.layer, moved.state), route.src_rank);
            assert!(before.is_none_or(|rank| rank == route.src_rank));
        }
    }
    shares
}

#[test]
fn replicas_share_out_layers_or_tokens() {
    let latent = |tp: u64, more: Value| {
        let mut side = json!({"tp": tp});
        side.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = json!([{"kind": "mla", "latent": 1, "dtype": "u8"}]);
        deployment(spec, json!({"layers": "0-4", "block_size": 4, "num_blocks": 4}), side)
    };
    let by = |from: &Value, to: &Value, tokens, dst_rank| {
        let shares = shares(from, to, tokens, dst_rank);
        let of = |layer, state| shares[&(layer, state)];
        let layers = (0..5).map(|layer| of(layer, 0)).collect::<Vec<_>>();
        let tokens = (0..tokens).map(|state| of(0, state)).collect::<Vec<_>>();
        (layers, tokens)
    };
    let (four, two) = (latent(4, json!({})), latent(2, json!({})));
    // Ranks 0 and 1 serve the first reader, 2 and 3 the second: layers 0 to 2, and 3 and 4.
    assert_eq!(by(&four, &two, 3, 0), (vec![0, 0, 0, 1, 1], vec![0; 3]));
    assert_eq!(by(&four, &two, 3, 1), (vec![2, 2, 2, 3, 3], vec![2; 3]));
    // The destination's blocks lie outside its layers, whatever the source's do.
    let blocks = latent(2, json!({"order": "BLSHC"}));
    let (layers, tokens) = by(&four, &blocks, 10, 0);
    assert_eq!((layers, tokens), (vec![0; 5], vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 1]));
    let (layers, _) = by(&latent(4, json!({"order": "BLSHC"})), &two, 10, 0);
    assert_eq!(layers, [0, 0, 0, 1, 1]);
    // One block is not divided by tokens.
    assert_eq!(by(&four, &blocks, 4, 0).0, [0, 0, 0, 1, 1]);
    // Fewer layers than replicas.
    let (layers, tokens) = by(&latent(8, json!({})), &latent(1, json!({})), 16, 0);
    assert_eq!(layers, [0; 5]);
    assert_eq!(tokens, [0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6]);
}

#[test]
fn an_empty_overlap_is_no_route() {
    let heads = |tp| over(tp, json!([attention(4, 1, 1, "u8")]));
    let routes = oracle::transfer(&heads(2), &heads(2), &ask(0, 4)).unwrap();
    let pairs = routes.iter().map(|r| (r.src_rank, r.dst_rank)).collect::<Vec<_>>();
    assert_eq!(pairs, [(0, 0), (1, 1)]);
    let stages = |pp| deployment(json!([attention(4, 1, 1, "u8")]), json!({}), json!({"pp": pp}));
    let routes = oracle::transfer(&stages(2), &stages(2), &ask(0, 4)).unwrap();
    let pairs = routes.iter().map(|r| (r.src_rank, r.dst_rank)).collect::<Vec<_>>();
    assert_eq!(pairs, [(0, 0), (1, 1)]);
}

#[test]
fn mamba2_with_one_group_from_one_rank_to_two() {
    // At the source 4 channels of x, 3 of B, 3 of C, then two heads of 24 bytes.
    for layout in ["DS", "SD"] {
        let from = over(1, mamba2(layout));
        let to = over(2, mamba2(layout));
        let routes = oracle::transfer(&from, &to, &ask(0, 1)).unwrap();
        assert_eq!(routes.len(), 2);
        for route in &routes {
            // Half of x; B and C whole on both ranks; one head of the state.
            assert_eq!(route.bytes.len(), 2 * 2 + 3 * 2 + 3 * 2 + 24);
        }
        let second = routes[1].map();
        let reads = |dst| second[&Address { allocation: 0, offset: dst }].offset;
        match layout {
            "DS" => {
                // x from channel 2; B and C from channel 4 on.
                assert_eq!((reads(0), reads(4), reads(15)), (4, 8, 19));
                assert_eq!(lengths(&routes[0]), [4, 12 + 24], "C runs into the state of the first head");
                assert_eq!(lengths(&routes[1]), [16, 24], "x, B and C are one");
            }
            _ => {
                // The same in each of two states of 10 and 8 channels.
                assert_eq!((reads(0), reads(2), reads(7)), (2, 4, 9));
                assert_eq!((reads(8), reads(10), reads(15)), (12, 14, 19));
                // C of state 0 meets x of state 1: a stitch that a planner may leave.
                assert_eq!(lengths(&routes[0]), [2, 6 + 2, 6 + 24]);
                assert_eq!(lengths(&routes[1]), [8, 8, 24]);
            }
        }
        assert_eq!((reads(16), reads(39)), (20 + 24, 20 + 47));
    }
}

fn lengths(route: &Route) -> Vec<u64> {
    chunks::fewest(route).iter().map(|c| c.len).collect()
}

fn tables(request: Request, src: &[u64], dst: &[u64]) -> Request {
    let table = |blocks: &[u64]| {
        let entries = blocks.iter().copied().map(Some).collect();
        [("g".to_owned(), entries)].into()
    };
    Request { src_blocks: table(src), dst_blocks: table(dst), ..request }
}

/// Returns block ids of which no two neighbours are consecutive: 0, 2, 4, ..., 1, 3, ...
fn scattered(blocks: u64) -> Vec<u64> {
    (0..blocks).step_by(2).chain((1..blocks).step_by(2)).collect()
}

/// Returns the canonical case with a state and head of 1 byte where it has 512; nothing else is scaled. One
/// decode rank's chunks, and the length of each.
fn canonical(from: (u64, u64, &str), to: (u64, u64, &str)) -> (usize, u64) {
    let side = |(tp, block_size, order): (u64, u64, &str)| {
        deployment(
            json!([{"kind": "opaque", "heads": 8, "entry_bytes": 1}]),
            json!({"layers": "0-79", "order": order}),
            json!({"tp": tp, "block_size": block_size, "num_blocks": 2048 / block_size}),
        )
    };
    let src = scattered(2048 / from.1);
    let mut dst = scattered(2048 / to.1);
    if from.1 == to.1 {
        // Otherwise the two tables are the same.
        dst.reverse();
    }
    let request = tables(ask(0, 2048), &src, &dst);
    let routes = oracle::transfer_to(&side(from), &side(to), &request, to.0 - 1).unwrap();
    let [route] = &routes[..] else { panic!("one rank sends") };
    let chunks = chunks::fewest(route);
    assert!(chunks.iter().all(|c| c.len == chunks[0].len));
    (chunks.len(), chunks[0].len * 512)
}

#[test]
fn the_canonical_case_has_the_chunks_that_it_is_known_for() {
    let nhd = canonical((4, 16, "LBSHC"), (8, 64, "LBHSC"));
    assert_eq!(nhd, (163_840, 512));
    let hnd = canonical((4, 16, "LBHSC"), (8, 64, "LBHSC"));
    assert_eq!(hnd, (10_240, 8 << 10));
    let heads_first = canonical((4, 16, "BHLSC"), (8, 16, "BHLSC"));
    assert_eq!(heads_first, (128, 640 << 10));
    let pages = canonical((4, 16, "BLSHC"), (4, 16, "BLSHC"));
    assert_eq!(pages, (128, 1280 << 10));
}

#[test]
fn what_may_stay_apart_and_what_may_not() {
    // Blocks of 8 bytes; three in each of two layers.
    let document = one(attention(1, 1, 1, "u8"), json!({}));
    let moved = |blocks: &[u64]| {
        let tokens = 4 * blocks.len() as u64;
        let request = tables(ask(0, tokens), blocks, blocks);
        let mut routes = oracle::transfer(&document, &document, &request).unwrap();
        routes.remove(0)
    };
    let list = |parts: &[(u64, u64)]| {
        let part = |&(offset, len)| {
            let address = Address { allocation: 0, offset };
            Chunk { src: address, dst: address, len }
        };
        parts.iter().map(part).collect::<Vec<_>>()
    };
    // Blocks 0 and 2: the last block of layer 0 meets the first of layer 1.
    let holes = moved(&[2, 0]);
    assert_eq!(chunks::fewest(&holes), list(&[(0, 8), (16, 16), (40, 8)]));
    let tally = chunks::check(Demand::Chunks, &holes, &list(&[(0, 8), (16, 8), (24, 8), (40, 8)])).unwrap();
    assert_eq!((tally.chunks, tally.fewest, tally.unmerged()), (4, 3, 1));
    let fault = |route: &Route, parts: &[(u64, u64)]| chunks::check(Demand::Chunks, route, &list(parts)).unwrap_err();
    assert!(fault(&holes, &[(0, 4), (4, 4), (16, 16), (40, 8)]).contains("state"));
    assert!(fault(&holes, &[(0, 8), (16, 16)]).contains("never"));
    assert!(fault(&holes, &[(0, 9), (16, 16), (40, 8)]).contains("not be touched"));
    assert!(fault(&holes, &[(0, 8), (16, 16), (40, 8), (0, 1)]).contains("second"));
    // All blocks, in whatever order: the layers chain.
    let whole = moved(&[1, 2, 0]);
    assert_eq!(chunks::fewest(&whole), list(&[(0, 48)]));
    assert!(fault(&whole, &[(0, 24), (24, 24)]).contains("layer"));
    // Neighbouring blocks are one.
    let pair = moved(&[1, 0]);
    assert_eq!(chunks::fewest(&pair), list(&[(0, 16), (24, 16)]));
    assert!(fault(&pair, &[(0, 8), (8, 8), (24, 16)]).contains("had to be one"));
}

/// The source's order has blocks inside of states. The destination has one state in each block, in the order of the
/// source's memory. So whole rows of blocks are contiguous, while listing each state would take far too many chunks.
#[test]
fn states_one_by_one_are_too_many() {
    let spec = || attention(1, 4, 4, "u8");
    let from = one(spec(), json!({"order": "LSBHC", "block_size": 16, "num_blocks": 8}));
    let to = one(spec(), json!({"block_size": 1, "num_blocks": 64}));
    let table = (0..64).map(|t| t % 16 * 4 + t / 16).collect::<Vec<_>>();
    let request = tables(ask(0, 64), &[0, 1, 2, 3], &table);
    let routes = oracle::transfer(&from, &to, &request).unwrap();
    let fewest = chunks::fewest(&routes[0]);
    assert_eq!(fewest.len(), 2 * 16);
    assert!(chunks::check(Demand::Chunks, &routes[0], &fewest).is_ok());
    let states = fewest.iter().flat_map(|chunk| {
        (0..chunk.len).step_by(8).map(|at| {
            let mut state = *chunk;
            state.src.offset += at;
            state.dst.offset += at;
            state.len = 8;
            state
        })
    });
    let states = states.collect::<Vec<Chunk>>();
    assert!(chunks::check(Demand::Chunks, &routes[0], &states).is_err());
}

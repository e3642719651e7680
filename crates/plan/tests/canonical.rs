//! The canonical case (Llama-3-70B, 2,048 tokens, TP 4 to TP 8), with known chunk counts.

use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
use transload_plan::codec::Codec;
use transload_plan::{BlockTable, Plan, PlanDigest, Request, Route, Side, Tables};

fn side(tp: u32, block: u32, order: &str) -> Deployment {
    let spec = Spec::attention(8, 128, Dtype::Bf16);
    Deployment::builder()
        .tp(tp.into())
        .block_size(block.into())
        .num_blocks(512)
        .order(order)
        .group(Group::builder("attn", "0-79", spec))
        .build()
        .unwrap()
}

/// Returns a table that never joins with one of another step: no two consecutive entries are neighbouring blocks.
fn scattered(entries: u32, step: u32) -> Tables {
    let blocks = (0..entries).map(|i| i * step % 509).collect();
    Tables(vec![BlockTable::List(blocks)])
}

fn chunks(src: (u32, u32, &str), dst: (u32, u32, &str)) -> (u64, u64) {
    let src_tables = scattered(2048 / src.1, 37);
    let dst_tables = scattered(2048 / dst.1, 41);
    let (src, dst) = (side(src.0, src.1, src.2), side(dst.0, dst.1, dst.2));
    let plan = Plan::compile(&src, &dst, &Request::tokens(2048)).unwrap();
    let bound = plan.bind(&src_tables, &dst_tables).unwrap();
    assert_eq!(bound.bytes(), 2048 * 80 * 8 * 512);
    let lengths: Vec<u64> = bound.histogram().into_keys().collect();
    assert_eq!(lengths.len(), 1);
    (bound.chunks() / u64::from(dst.tp()), lengths[0])
}

#[test]
fn chunks_are_as_few_as_the_strides_allow() {
    assert_eq!(chunks((4, 16, "LBSHC"), (8, 64, "LBSHC")), (163_840, 512));
    assert_eq!(chunks((4, 16, "LBHSC"), (8, 64, "LBSHC")), (10_240, 8192));
    assert_eq!(chunks((4, 16, "BLSHC"), (4, 16, "BLSHC")), (128, 1_310_720));
    assert_eq!(chunks((4, 16, "BHLSC"), (8, 16, "BHLSC")), (128, 655_360));
}

#[test]
fn neighbouring_blocks_merge_in_whatever_order_they_are_listed() {
    let (src, dst) = (side(8, 16, "BLSHC"), side(8, 16, "BLSHC"));
    let plan = Plan::compile(&src, &dst, &Request::tokens(2048)).unwrap();
    let descending = Tables(vec![BlockTable::List((0..128).rev().collect())]);
    for tables in [Tables::identity(&plan), descending] {
        assert_eq!(plan.bind(&tables, &tables).unwrap().chunks(), 8);
    }
}

#[test]
fn both_halves_of_a_stream_have_its_length() {
    let (src, dst) = (side(4, 16, "LBSHC"), side(8, 64, "LBHSC"));
    let request = Request { start: 5, tokens: 1000, by_layer: true, codec: Codec::Exact };
    let plan = Plan::compile(&src, &dst, &request).unwrap();
    for route in plan.routes() {
        let gather = plan.bind_stream(route, Side::Source, &scattered(63, 37)).unwrap();
        let scatter = plan.bind_stream(route, Side::Destination, &scattered(16, 41)).unwrap();
        assert_eq!(gather.bytes(), 1000 * 80 * 512);
        assert_eq!(scatter.bytes(), gather.bytes());
        assert_eq!(plan.route_bytes(route), gather.bytes());
        assert_eq!(gather.sections.len(), 80);
    }
}

#[test]
fn a_peer_that_plans_its_own_routes_only_gets_the_same_digests() {
    let (src, dst) = (side(4, 16, "LBSHC"), side(8, 64, "LBHSC"));
    let request = Request::tokens(100);
    let plan = Plan::compile(&src, &dst, &request).unwrap();
    for route in plan.routes() {
        let (s, d) = (route.src_rank, route.dst_rank);
        let for_source = Plan::compile_for(&src, &dst, &request, Side::Source, &[s]).unwrap();
        let alone = Plan::compile_route(&src, &dst, &request, s, d).unwrap();
        for own in [for_source, alone] {
            let twin = own.route(s, d).unwrap();
            assert_eq!(own.route_digest(twin), plan.route_digest(route));
        }
    }
    let ranks = [Rank(1), Rank(6)];
    let some = Plan::compile_for(&src, &dst, &request, Side::Destination, &ranks).unwrap();
    let own = plan.routes().iter();
    let own = own.filter(|route| ranks.contains(&route.dst_rank));
    assert_eq!(digests(&some, some.routes()), digests(&plan, own));
    let none = Plan::compile_for(&src, &dst, &request, Side::Source, &[]).unwrap();
    assert_eq!(none.routes(), []);
}

fn digests<'r>(plan: &Plan, routes: impl IntoIterator<Item = &'r Route>) -> Vec<PlanDigest> {
    let routes = routes.into_iter();
    routes.map(|route| plan.route_digest(route)).collect()
}

/// Tokens that are dealt out travel in chunks of a stripe, by loops: no block has more places than with whole blocks.
#[test]
fn tokens_are_dealt_out_in_loops() {
    let side = |tp: u64, dcp: u64, interleave: u64, block: u64| {
        let side = Deployment::builder().tp(tp).dcp(dcp).interleave(interleave).block_size(block).num_blocks(512);
        side.order("LBHSC").group(Group::builder("attn", "0-79", Spec::attention(1, 128, Dtype::Bf16))).build().unwrap()
    };
    let whole = || side(8, 1, 1, 16);
    // Chunks of how many tokens, and routes.
    for (src, dst, tokens, routes) in [
        (whole(), whole(), 16, 8),
        (whole(), side(8, 8, 16, 16), 16, 8),
        (whole(), side(8, 8, 1, 16), 1, 8),
        (side(8, 8, 16, 16), whole(), 16, 64),
        (side(8, 4, 1, 16), side(8, 4, 1, 16), 16, 8),
        (side(8, 4, 1, 16), side(8, 8, 1, 16), 1, 8),
        (side(8, 2, 16, 64), side(8, 8, 16, 16), 16, 8),
        (side(8, 2, 16, 64), side(8, 8, 1, 16), 1, 16),
        (side(16, 2, 16, 16), side(4, 2, 16, 16), 16, 16),
    ] {
        let about = format!("{:?} to {:?}", src.document(), dst.document());
        let plan = Plan::compile(&src, &dst, &Request::tokens(4096)).unwrap();
        assert_eq!(plan.routes().len(), routes, "{about}");
        let readers = u64::from(dst.tp() / dst.groups()[0].dcp());
        assert_eq!(plan.distinct_bytes(), 4096 * 80 * 512, "{about}");
        let tables = [(&src, 37), (&dst, 41)];
        let [src_tables, dst_tables] =
            tables.map(|(side, step)| scattered((4096 / side.groups()[0].entry_tokens()) as u32, step));
        let bound = plan.bind(&src_tables, &dst_tables).unwrap();
        assert_eq!(bound.bytes(), readers * 4096 * 80 * 512, "{about}");
        assert_eq!(bound.histogram().into_keys().collect::<Vec<_>>(), [tokens * 512], "{about}");
        for route in &bound.routes {
            // 4,096 tokens are 256 blocks of a rank with all of them.
            assert!(route.program().placed.len() <= 256, "{about}: {} places", route.program().placed.len());
        }
    }
}

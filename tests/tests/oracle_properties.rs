//! Properties of the oracle itself, of the check and of the generators, in any case.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::Value;
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::chunks::{self, Chunk};
use transload_tests::oracle::{self, Address, Side};
use transload_tests::planner::{Demand, Slow, check};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_byte_of_a_cache_has_a_place_of_its_own(case in cases(Reach::Disputed)) {
        for document in [&case.from, &case.to] {
            let side = Side::read(document).unwrap();
            for group in &side.groups {
                for rank in [0, side.ranks() - 1] {
                    let (count, size) = oracle::allocations(document, rank, &group.name).unwrap();
                    let places = oracle::addresses(document, rank, &group.name).unwrap();
                    let mut seen = places.values().copied().collect::<Vec<_>>();
                    seen.sort_unstable();
                    seen.dedup();
                    prop_assert_eq!(seen.len(), places.len());
                    for address in seen {
                        prop_assert!(address.allocation < count);
                        let offset = side.stated(rank, group).unwrap().offset;
                        prop_assert!(address.offset >= offset && address.offset < size);
                    }
                }
            }
        }
    }

    #[test]
    fn every_destination_rank_gets_all_that_it_holds(case in cases(Reach::Disputed)) {
        let request = &case.request;
        let end = request.start + request.tokens;
        let routes = oracle::transfer(&case.from, &case.to, request).unwrap();
        let to = Side::read(&case.to).unwrap();
        for group in &to.groups {
            for rank in 0..to.ranks() {
                let mut expected = 0;
                for spec in &group.specs {
                    let indices = 0..if request.tokens > 0 { end } else { 0 };
                    let states = indices.filter(|&s| spec.travels(s, request.start, end));
                    let states = states.filter(|&s| to.owns(rank, group, group.locate(spec, s)[2])).count();
                    for component in &spec.components {
                        let units = to.units_of(rank, component).unwrap();
                        expected += states as u64
                            * to.layers_of(rank, group).len() as u64
                            * (units.end - units.start)
                            * component.extents[0]
                            * component.extents[1]
                            * component.element;
                    }
                }
                let here = routes.iter().filter(|r| r.dst_rank == rank && r.group == group.name);
                let bytes = here.flat_map(|r| &r.bytes);
                let targets = bytes.map(|m| (m.dst, m.name)).collect::<BTreeMap<_, _>>();
                prop_assert_eq!(targets.len() as u64, expected);
            }
        }
    }

    #[test]
    fn the_check_accepts_the_fewest_chunks_and_no_change_of_them(
        case in cases(Reach::Disputed),
        at in any::<prop::sample::Index>(),
        change in 0..4,
    ) {
        let tally = check(Demand::Chunks, &Slow, &case.from, &case.to, &case.request).unwrap();
        prop_assert_eq!(tally.unmerged(), 0);
        let routes = oracle::transfer(&case.from, &case.to, &case.request).unwrap();
        let Some(route) = routes.first() else { return Ok(()) };
        let good = chunks::fewest(route);
        let mut bad = good.clone();
        let at = at.index(bad.len());
        let shift = |a: Address| Address { offset: a.offset + 1, ..a };
        match change {
            0 => drop(bad.remove(at)),
            1 => bad[at].src = shift(bad[at].src),
            2 => bad[at].len += 1,
            _ if bad[at].len > 1 => {
                // One byte off the end: always inside an element or a chain of them, or a stitch.
                let Chunk { src, dst, len } = bad[at];
                let one = |a: Address| Address { offset: a.offset + len - 1, ..a };
                bad[at].len -= 1;
                bad.push(Chunk { src: one(src), dst: one(dst), len: 1 });
                if let Ok(tally) = chunks::check(Demand::Chunks, route, &bad) {
                    prop_assert_eq!(tally.unmerged(), 1);
                }
                return Ok(());
            }
            _ => bad.push(bad[at]),
        }
        prop_assert!(chunks::check(Demand::Chunks, route, &bad).is_err());
    }
}

/// The generators reach every corner that they are meant to reach.
#[test]
fn the_cases_are_varied() {
    let mut rng = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    let mut seen = BTreeMap::<String, u64>::new();
    let mut most = 0;
    const CASES: u64 = 1500;
    for _ in 0..CASES {
        let tape = (0..400).map(|_| rng.next_u32() as u16).collect::<Vec<_>>();
        let case = Case::read(&tape, Reach::Settled);
        assert!(case.disputed.is_empty());
        let routes = oracle::transfer(&case.from, &case.to, &case.request);
        let routes = routes.unwrap_or_else(|e| panic!("{e}: {case:?}"));
        let bytes = routes.iter().map(|r| r.bytes.len()).sum::<usize>();
        most = most.max(bytes);
        for feature in features(&case, bytes).into_iter().chain(shared(&case, &routes)) {
            *seen.entry(feature).or_default() += 1;
        }
    }
    println!("{CASES} cases, at most {most} bytes: {seen:#?}");
    let kinds = "attention mla compressed indexer opaque mamba2_conv mamba2_ssm gdn_conv gdn_ssm \
                 mamba1_conv mamba1_ssm linear";
    let others = "replicated-source replicated-destination both-replicated from-pp to-pp pp_layers \
                  per_layer offset block_stride layer_stride stage-offset stage-block_stride \
                  stage-layer_stride order-array order-sub-axes \
                  order-bracket order-letters sliding_window chunk_size v_head_dim two-groups \
                  recurrent-and-token conv-layouts-differ block-sizes-do-not-divide start ragged \
                  src-table dst-table null-entries nothing-moves tp-16 dtypes-f32 \
                  uneven-pipeline groups-swapped deployment-order order-pages \
                  dcp-source dcp-destination dcp-both dcp-interleave-1 dcp-interleave-block dcp-interleave-other \
                  dcp-8 dcp-whole-group dcp-interleaves-differ \
                  attention-in-a-page two-windows-in-a-page no-tokens null-block-0 shared-layers \
                  shared-tokens";
    for feature in kinds.split_whitespace().chain(others.split_whitespace()) {
        let times = seen.get(feature).copied().unwrap_or(0);
        assert!(times >= 8, "{feature}: {times} times in {CASES}");
    }
}

/// Returns whether several replicas send one destination rank the same unit of different layers, or of different
/// tokens.
fn shared(case: &Case, routes: &[oracle::Route]) -> BTreeSet<String> {
    let tp = Side::read(&case.from).unwrap().tp;
    let mut by_unit = BTreeMap::<_, BTreeMap<u64, BTreeSet<u64>>>::new();
    for route in routes {
        for moved in &route.bytes {
            let oracle::Name { layer, spec, component, unit, .. } = moved.name;
            let of = (route.dst_rank, route.src_rank / tp, &route.group, spec, component, unit);
            let senders = by_unit.entry(of).or_default();
            senders.entry(layer).or_default().insert(route.src_rank);
        }
    }
    let mut found = BTreeSet::new();
    for layers in by_unit.values() {
        let all = layers.values().flatten().collect::<BTreeSet<_>>();
        if layers.values().any(|senders| senders.len() > 1) {
            found.insert("shared-tokens".to_owned());
        } else if all.len() > 1 {
            found.insert("shared-layers".to_owned());
        }
    }
    found
}

fn features(case: &Case, bytes: usize) -> Vec<String> {
    let mut all = BTreeSet::new();
    let sides = [&case.from, &case.to].map(|d| Side::read(d).unwrap());
    let dealt = sides.each_ref().map(|side| side.groups.iter().find(|group| group.dcp > 1));
    for group in dealt.into_iter().flatten() {
        all.insert(match group.interleave {
            1 => "dcp-interleave-1".to_owned(),
            tokens if tokens == group.block_size => "dcp-interleave-block".to_owned(),
            _ => "dcp-interleave-other".to_owned(),
        });
    }
    for (name, yes) in [
        ("dcp-source", dealt[0].is_some()),
        ("dcp-destination", dealt[1].is_some()),
        ("dcp-both", dealt.iter().all(Option::is_some)),
        ("dcp-8", dealt.iter().flatten().any(|group| group.dcp == 8)),
        ("dcp-whole-group", [&case.from, &case.to].iter().any(|side| side.to_string().contains("\"whole\""))),
        ("dcp-interleaves-differ", matches!(dealt, [Some(a), Some(b)] if a.interleave != b.interleave)),
    ] {
        if yes {
            all.insert(name.to_owned());
        }
    }
    let mut replicated = [false, false];
    for (index, (side, document)) in sides.iter().zip([&case.from, &case.to]).enumerate() {
        if side.tp == 16 {
            all.insert("tp-16".to_owned());
        }
        if side.stages.len() > 1 {
            all.insert(["from-pp", "to-pp"][index].to_owned());
            let counts = side.stages.iter().map(|s| s.end - s.start).collect::<Vec<_>>();
            if counts.iter().any(|c| *c != counts[0]) {
                all.insert("uneven-pipeline".into());
            }
        }
        for key in ["pp_layers", "num_layers"] {
            if document.get(key).is_some() {
                all.insert(key.into());
            }
        }
        if document.get("order").is_some() {
            all.insert("deployment-order".into());
        }
        for group in document["group"].as_array().unwrap() {
            for key in ["offset", "block_stride", "layer_stride"] {
                if group.get(key).is_some() {
                    all.insert(key.into());
                }
                let mut stages = group["stage"].as_array().into_iter().flatten();
                if stages.any(|stage| stage.get(key).is_some()) {
                    all.insert(format!("stage-{key}"));
                }
            }
            if group["allocation"] == "per_layer" {
                all.insert("per_layer".into());
            }
            let order = match group.get("order") {
                Some(Value::Array(_)) => Some("order-array"),
                Some(Value::String(s)) if s.contains('[') => Some("order-bracket"),
                Some(Value::String(s)) if s.contains('K') => Some("order-sub-axes"),
                Some(Value::String(s)) if s == "LB" => Some("order-pages"),
                Some(_) => Some("order-letters"),
                None => None,
            };
            all.extend(order.map(str::to_owned));
            let specs = group["spec"].as_array().unwrap();
            let attention = specs.iter().filter(|spec| spec["kind"] == "attention");
            match attention.count() {
                1 if specs.len() > 1 => drop(all.insert("attention-in-a-page".into())),
                2 => drop(all.insert("two-windows-in-a-page".into())),
                _ => {}
            }
            for spec in group["spec"].as_array().unwrap() {
                all.insert(spec["kind"].as_str().unwrap().to_owned());
                for key in ["sliding_window", "chunk_size", "v_head_dim"] {
                    if spec.get(key).is_some() {
                        all.insert(key.into());
                    }
                }
                if spec["dtype"] == "f32" {
                    all.insert("dtypes-f32".into());
                }
            }
        }
        for component in side.groups.iter().flat_map(|g| &g.specs).flat_map(|s| &s.components) {
            replicated[index] |= component.name != "latent" && component.units < side.tp;
        }
    }
    for (name, yes) in [
        ("replicated-source", replicated[0]),
        ("replicated-destination", replicated[1]),
        ("both-replicated", replicated[0] && replicated[1]),
        ("two-groups", sides[0].groups.len() > 1),
        ("start", case.request.start > 0),
        ("nothing-moves", bytes == 0),
        ("no-tokens", case.request.tokens == 0),
        ("src-table", !case.request.src_blocks.is_empty()),
        ("dst-table", !case.request.dst_blocks.is_empty()),
    ] {
        if yes {
            all.insert(name.into());
        }
    }
    let tables = case.request.src_blocks.values();
    for table in tables.chain(case.request.dst_blocks.values()) {
        if table.contains(&None) {
            all.insert("null-entries".into());
        }
        if table.iter().filter(|entry| **entry == Some(0)).count() > 1 {
            all.insert("null-block-0".into());
        }
    }
    if sides[0].groups[0].name != sides[1].groups[0].name {
        all.insert("groups-swapped".into());
    }
    let recurrent = |g: &oracle::Group| g.specs[0].tokens_per_state.is_none();
    let groups = &sides[0].groups;
    if groups.iter().any(recurrent) && !groups.iter().all(recurrent) {
        all.insert("recurrent-and-token".into());
    }
    for group in &sides[0].groups {
        let other = sides[1].group(&group.name).unwrap();
        let (a, b) = (group.block_size, other.block_size);
        if a % b != 0 && b % a != 0 {
            all.insert("block-sizes-do-not-divide".into());
        }
        if !(case.request.start + case.request.tokens).is_multiple_of(a) {
            all.insert("ragged".into());
        }
    }
    let layouts = |d: &Value| {
        let text = d.to_string();
        (text.contains("\"DS\""), text.contains("\"SD\""))
    };
    if layouts(&case.from) != layouts(&case.to) {
        all.insert("conv-layouts-differ".into());
    }
    all.into_iter().collect()
}

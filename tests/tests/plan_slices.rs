//! Compares the planner with whole caches that are sliced and chunked view by view.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use transload_layout::{
    Axis, ComponentView, Deployment, Rank, Side, TpRank, make_meta_kv_cache, slice_for_tp_transfer,
};
use transload_tests::cases::{Case, Reach, cases};
use transload_tests::compiled::deployment;
use transload_transfer::plan::program::Program;
use transload_transfer::plan::{PairError, jointly_contiguous_chunks};
use transload_transfer::{Plan, Request, Tables};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400,
        rng_seed: proptest::test_runner::RngSeed::Fixed(3), ..ProptestConfig::default() })]

    /// Both give the same bytes, for all pairs of ranks.
    #[test]
    fn slices_are_those_of_the_planner(case in cases(Reach::Settled)) {
        for group in 0..case.from["group"].as_array().unwrap().len() {
            let (from, to) = whole_caches(&case, group);
            let (src, dst) = (deployment(&from).unwrap(), deployment(&to).unwrap());
            agree(&src, &dst).map_err(|why| TestCaseError::fail(format!("{why}\n{from}\n{to}")))?;
        }
    }
}

/// Reduces both sides to one group, in blocks of one size, all of which travel.
fn whole_caches(case: &Case, group: usize) -> (Json, Json) {
    let name = &case.from["group"][group]["name"];
    let size = |key: &str| {
        let own = case.from["group"][group].get(key);
        own.unwrap_or(&case.from[key]).as_u64().unwrap()
    };
    let (block_size, num_blocks) = (size("block_size"), size("num_blocks").min(3));
    let one_group = |document: &Json| {
        let mut document = document.clone();
        let whole = deployment(&document).unwrap();
        document["num_layers"] = json!(whole.stage_layers(whole.pp() - 1).end);
        // Slices do not know which of the tokens a rank has.
        document.as_object_mut().unwrap().remove("dcp");
        let groups = document["group"].as_array_mut().unwrap();
        groups.retain(|group| group["name"] == *name);
        let group = groups[0].as_object_mut().unwrap();
        group.remove("block_stride");
        group.remove("layer_stride");
        group.remove("stage");
        group.insert("block_size".into(), json!(block_size));
        group.insert("num_blocks".into(), json!(num_blocks));
        for spec in group["spec"].as_array_mut().unwrap() {
            let spec = spec.as_object_mut().unwrap();
            spec.remove("sliding_window");
            spec.remove("chunk_size");
        }
        document
    };
    (one_group(&case.from), one_group(&case.to))
}

fn agree(src: &Deployment, dst: &Deployment) -> Result<(), String> {
    let group = &src.groups()[0];
    let tokens = group.block_size() * u64::from(group.num_blocks());
    let plan = Plan::compile(src, dst, &Request::tokens(tokens)).map_err(|e| e.to_string())?;
    let tables = Tables::identity(&plan);
    let bound = plan.bind(&tables, &tables).map_err(|e| e.to_string())?;
    for dst_rank in dst.ranks() {
        let (mut held, mut written) = (BTreeSet::new(), BTreeSet::new());
        for src_rank in src.ranks() {
            let mut routes = bound.routes.iter();
            let route = routes.find(|route| (route.src_rank, route.dst_rank) == (src_rank, dst_rank));
            let planned = route.map_or(Vec::new(), |route| joined(&route.program()));
            let (reads, writes) = slices((src, src_rank), (dst, dst_rank))?;
            let sliced = jointly_contiguous_chunks(&reads, &writes).map_err(|e| e.to_string())?;
            let sliced = joined(&sliced);
            let (all, sent) = (bytes(&sliced), bytes(&planned));
            // Replicas have the same slices, and share out what they send of them.
            let shared = sent.len() < all.len() && sent.is_subset(&all);
            if sliced != planned && !shared {
                return Err(format!("rank {src_rank} to rank {dst_rank}: {sliced:?} is not {planned:?}"));
            }
            held.extend(all.into_iter().map(|(dst, _)| dst));
            for (dst, _) in sent {
                if !written.insert(dst) {
                    return Err(format!("rank {dst_rank}: {dst} is written twice"));
                }
            }
        }
        if held != written {
            return Err(format!("rank {dst_rank} is not sent all that it shares"));
        }
    }
    Ok(())
}

/// Returns the source and the destination of each byte of the chunks.
fn bytes(chunks: &[(u64, u64, u64)]) -> BTreeSet<(u64, u64)> {
    let each = |&(dst, src, len): &(u64, u64, u64)| (0..len).map(move |at| (dst + at, src + at));
    chunks.iter().flat_map(each).collect()
}

/// Returns the parts of two ranks' caches that both hold, of the layers that both hold.
fn slices(
    (src, src_rank): (&Deployment, Rank),
    (dst, dst_rank): (&Deployment, Rank),
) -> Result<(Vec<ComponentView>, Vec<ComponentView>), String> {
    let part = |side: &Deployment, rank: Rank| {
        let (rank, stage) = side.split_rank(rank);
        let tp_rank = TpRank { tp: side.tp(), rank };
        (tp_rank, side.groups()[0].stage_slots(stage))
    };
    let ((src_tp, src_slots), (dst_tp, dst_slots)) = (part(src, src_rank), part(dst, dst_rank));
    let slots = src_slots.start.max(dst_slots.start)..src_slots.end.min(dst_slots.end);
    if slots.is_empty() {
        return Ok(Default::default());
    }
    let views = |side: &Deployment, rank, first: usize| {
        let views = make_meta_kv_cache(side, rank).swap_remove(0).into_iter();
        let narrowed = views.map(|mut mine| {
            let layers = (slots.start - first) as u64..(slots.end - first) as u64;
            mine.view = mine.view.narrow(Axis::Layer, layers);
            if side.groups()[0].is_recurrent() {
                // The state of a sequence is in its first block.
                mine.view = mine.view.narrow(Axis::Block, 0..1);
            }
            mine
        });
        narrowed.collect::<Vec<_>>()
    };
    let slice = |mine: &[ComponentView], side, me, other: &Deployment, rank| {
        let specs = other.groups()[0].specs();
        let slices = slice_for_tp_transfer(mine, side, me, specs, rank);
        slices.map(|slices| slices.to_vec()).map_err(|e| e.to_string())
    };
    let reads = views(src, src_rank, src_slots.start);
    let writes = views(dst, dst_rank, dst_slots.start);
    Ok((slice(&reads, Side::Source, src_tp, dst, dst_tp)?, slice(&writes, Side::Destination, dst_tp, src, src_tp)?))
}

/// Returns chunks by destination, joined where they follow one another on both sides.
fn joined(program: &Program) -> Vec<(u64, u64, u64)> {
    let mut chunks = Vec::new();
    program.for_each_chunk(|src, dst, len| chunks.push((dst, src, len)));
    chunks.sort_unstable();
    chunks.dedup_by(|next, last| {
        let follows = (last.0 + last.2, last.1 + last.2) == (next.0, next.1);
        if follows {
            last.2 += next.2;
        }
        follows
    });
    chunks
}

fn attention(tp: u32) -> Deployment {
    let document = json!({"schema": "transload.deployment/1", "tp": tp, "block_size": 4,
        "num_blocks": 2, "group": [{"name": "g", "layers": "0-1", "spec": [
            {"kind": "attention", "heads": 4, "head_dim": 8, "dtype": "bf16"}]}]});
    deployment(&document).unwrap()
}

#[test]
fn views_of_other_things_do_not_pair() {
    let side = attention(2);
    let caches = [0, 1].map(|rank| make_meta_kv_cache(&side, Rank(rank)).swap_remove(0));
    assert!(jointly_contiguous_chunks(&caches[0], &caches[0]).is_ok());
    // As wide, but the heads of another rank.
    let other = jointly_contiguous_chunks(&caches[0], &caches[1]);
    let units = PairError::Units { index: 0, src: 0..2, dst: 2..4 };
    assert_eq!(other, Err(units));
    // As wide, but values for keys.
    let swapped: Vec<_> = caches[0].iter().rev().cloned().collect();
    let component = PairError::Component { index: 0, src: (0, 0), dst: (0, 1) };
    assert_eq!(jointly_contiguous_chunks(&caches[0], &swapped), Err(component));
    let missing = jointly_contiguous_chunks(&caches[0], &caches[0][..1]);
    assert_eq!(missing, Err(PairError::Count { src: 2, dst: 1 }));
}

#[test]
fn only_the_ranks_own_views_are_sliced() {
    use transload_layout::SliceError;

    let (side, other) = (attention(2), attention(4));
    let mine = make_meta_kv_cache(&side, Rank(1)).swap_remove(0);
    let specs = other.groups()[0].specs();
    let slice = |tp, rank, specs, others| {
        let other = TpRank { tp: 4, rank: others };
        slice_for_tp_transfer(&mine, Side::Source, TpRank { tp, rank }, specs, other)
    };
    assert_eq!(slice(2, 1, specs, 2).unwrap().len(), 2);
    assert!(slice(2, 1, specs, 0).unwrap().is_empty(), "nothing in common");
    for (tp, rank) in [(2, 0), (4, 0), (1, 0)] {
        let found = slice(tp, rank, specs, 2);
        assert!(matches!(found, Err(SliceError::NotMine { view: 0, .. })), "{found:?}");
    }
    for found in [slice(2, 2, specs, 2), slice(2, 1, specs, 4), slice(3, 1, specs, 2)] {
        assert!(matches!(found, Err(SliceError::Partition(_))), "{found:?}");
    }
    let found = slice(2, 1, &[], 2);
    assert!(matches!(found, Err(SliceError::NoSuchSpec { .. })), "{found:?}");
    let mla = transload_layout::spec::Mla { latent: 8, dtype: transload_layout::Dtype::Bf16, sliding_window: None };
    let found = slice(2, 1, &[transload_layout::Spec::Mla(mla)], 2);
    assert!(matches!(found, Err(SliceError::NotMine { .. })), "{found:?}");
}

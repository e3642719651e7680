//! Plans that are too large are refused before anything is allocated, for any documents.

use serde_json::{Value as Json, json};
use transload_layout::document::Value;
use transload_layout::{Deployment, Rank, Side};
use transload_plan::{BindError, BlockTable, MAX_PLACES, MAX_SLICES, Plan, PlanError, Request, Tables};

fn side(fields: Json) -> Deployment {
    let mut document = json!({"schema": "transload.deployment/1", "block_size": 16, "num_blocks": 4});
    let all = document.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    let document: Value = serde_json::from_value(document).unwrap();
    Deployment::from_value(&document).unwrap()
}

/// Returns groups of latents, which every rank has, each for all layers.
fn groups(groups: u32, layers: u32) -> Json {
    let group = |index| {
        json!({"name": format!("g{index}"), "layers": format!("0-{}", layers - 1),
               "spec": [{"kind": "mla", "latent": 8, "dtype": "bf16"}]})
    };
    (0..groups).map(group).collect()
}

#[test]
fn the_largest_documents_are_told_what_a_plan_may_have() {
    let groups = groups(64, 1024);
    let stages = side(json!({"pp": 4096, "group": groups}));
    let ranks = side(json!({"tp": 4096, "group": groups}));
    let request = Request::tokens(64);
    // Each of 1,024 stages that have a layer has it in 64 groups; and there are 4,096 readers or replicas.
    let slices = 1024 * 64 * 4096;
    // Replicas cut each of theirs in three at most.
    for (src, dst, slices) in [(&stages, &ranks, slices), (&ranks, &stages, 3 * slices)] {
        let found = Plan::compile(src, dst, &request).unwrap_err();
        assert_eq!(found, PlanError::TooManySlices { slices });
    }
    // Tokens that are dealt out: 16 in a row are on 16 ranks of the other side.
    let dealt = |interleave| side(json!({"tp": 4096, "dcp": 64, "interleave": interleave, "group": groups}));
    let found = Plan::compile(&dealt(1), &dealt(16), &request).unwrap_err();
    assert_eq!(found, PlanError::TooManySlices { slices: 64 * 4096 * 16 });
    // An agent's one rank may have as many.
    let found = Plan::compile_for(&ranks, &stages, &request, Side::Source, &[Rank(0)]);
    // The first replica sends the first block of each layer; four of 4,096 have one to send.
    assert_eq!(found.map(|plan| plan.routes().len()), Ok(1024));
    let found = Plan::compile_for(&stages, &ranks, &request, Side::Destination, &[Rank(7)]);
    assert_eq!(found.map(|plan| plan.routes().len()), Ok(1024));
    assert_eq!(MAX_SLICES, 64 * 4096);
    let found = Plan::compile_for(&stages, &ranks, &request, Side::Source, &[Rank(4000)]);
    assert_eq!(found.map(|plan| plan.routes().len()), Ok(4096));
}

/// Pairs of ranks and stages that share nothing cost nothing.
#[test]
fn many_stages_and_ranks_with_little_to_move_are_planned() {
    let wide = |tp, pp| side(json!({"tp": tp, "pp": pp, "group": groups(2, 4096)}));
    let plan = Plan::compile(&wide(1, 4096), &wide(1, 4096), &Request::tokens(64)).unwrap();
    assert_eq!(plan.routes().len(), 4096);
    let plan = Plan::compile(&wide(4096, 1), &wide(4096, 1), &Request::tokens(64)).unwrap();
    assert_eq!(plan.routes().len(), 4096);
}

#[test]
fn tokens_in_very_many_pieces_are_refused_before_they_are_cut() {
    let side = |block_stride| {
        let group = json!({"name": "g", "layers": "0", "block_size": 1, "num_blocks": u32::MAX,
            "block_stride": block_stride, "spec": [{"kind": "mla", "latent": 1, "dtype": "u8"}]});
        side(json!({"group": [group]}))
    };
    let plan = |tokens| Plan::compile(&side(2), &side(3), &Request::tokens(tokens)).unwrap();
    let most = plan(MAX_PLACES + 1);
    assert_eq!(most.segments(), MAX_PLACES + 1);
    let tables = Tables(vec![BlockTable::Identity]);
    assert_eq!(most.bind(&tables, &tables), Err(BindError::TooManyPlaces));
    assert_eq!(plan(1000).bind(&tables, &tables).unwrap().bytes(), 1000);
}

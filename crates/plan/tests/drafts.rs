//! Groups of drafts, which one side may have alone.

use transload_layout::{Deployment, Dtype, Group, Side, Spec};
use transload_plan::{BindError, BlockTable, Plan, PlanError, Request, Tables, unpaired};

/// Returns a model of four layers, before or behind the group of its drafts, which has heads of this many elements.
fn side(block_size: u64, draft_width: Option<u64>, drafts_first: bool) -> Deployment {
    let main = Group::builder("attention", "0-3", Spec::attention(2, 8, Dtype::Bf16));
    let draft =
        draft_width.map(|width| Group::builder("draft", "4", Spec::attention(2, width, Dtype::Bf16)).draft(true));
    let mut groups = vec![main];
    groups.extend(draft);
    if drafts_first {
        groups.reverse();
    }
    let side = Deployment::builder().block_size(block_size).num_blocks(8);
    groups.into_iter().fold(side, |side, group| side.group(group)).build().unwrap()
}

#[test]
fn drafts_of_one_side_alone_are_left_out() {
    let request = Request::tokens(50);
    let plain = Plan::compile(&side(16, None, false), &side(32, None, false), &request).unwrap();
    for (src, dst) in [(None, Some(8)), (Some(8), None)] {
        for first in [false, true] {
            let (src, dst) = (side(16, src, first), side(32, dst, first));
            let plan = Plan::compile(&src, &dst, &request).unwrap();
            assert_eq!(plan.digest(), plain.digest(), "each side makes the plan of two without drafts");
            assert_eq!(plan.group_names().collect::<Vec<_>>(), ["attention"]);
            for (side, deployment) in [(Side::Source, &src), (Side::Destination, &dst)] {
                let (index, _) = deployment.group("attention").unwrap();
                assert_eq!(plan.group_of(side, 0), index);
                // Tables are those of a side's own groups.
                let mut own = vec![BlockTable::List(vec![7]); deployment.groups().len()];
                own[index] = BlockTable::List(vec![3, 2, 1, 0]);
                let wanted = Tables(vec![own[index].clone()]);
                assert_eq!(plan.arrange(side, &Tables(own.clone())), Ok(wanted));
                own.push(BlockTable::Identity);
                assert!(matches!(plan.arrange(side, &Tables(own)), Err(BindError::TableCount { .. })));
            }
            assert_eq!(unpaired(&src, &dst).chain(unpaired(&dst, &src)).collect::<Vec<_>>(), ["draft"]);
        }
    }
    let both = Plan::compile(&side(16, Some(8), false), &side(32, Some(8), true), &request).unwrap();
    assert_eq!(both.group_names().count(), 2);
    assert_ne!(both.digest(), plain.digest());
}

#[test]
fn drafts_that_differ_are_refused_by_the_field() {
    let refused = |src: &Deployment, dst: &Deployment| match Plan::compile(src, dst, &Request::tokens(5)) {
        Err(PlanError::Bridge(differs)) => differs.field,
        other => panic!("{other:?}"),
    };
    let (narrow, wide) = (side(16, Some(8), false), side(16, Some(16), false));
    assert_eq!(refused(&narrow, &wide), "group \"draft\": spec[0].head_dim");
    let own = |draft| {
        let spec = Spec::attention(2, 8, Dtype::Bf16);
        let main = Group::builder("attention", "0-3", spec.clone());
        let side = Deployment::builder().block_size(16).num_blocks(8).group(main);
        side.group(Group::builder("draft", "4", spec).draft(draft)).build().unwrap()
    };
    assert_eq!(refused(&own(true), &own(false)), "group \"draft\": draft");
    // A group that is not marked as one of drafts must be on both sides.
    assert_eq!(refused(&own(false), &side(16, None, false)), "group names");
    assert_eq!(refused(&side(16, None, false), &own(false)), "group names");
    // Drafts alone are no cache.
    let mut drafts = narrow.document().clone();
    drafts.groups.remove(0);
    let drafts = Deployment::from_document(drafts).unwrap();
    assert_eq!(refused(&drafts, &narrow), "group names");
    drafts.groups().iter().for_each(|group| assert!(group.is_draft()));
    assert_eq!(refused(&drafts, &drafts.clone()), "group names");
}

//! The routes between the ranks of two pipeline stages.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use transload_layout::{Axis, ComponentView, Rank, Side};

use crate::group::GroupPlan;
use crate::nest::{self, Origin};
use crate::ranks::{Ranks, hull};
use crate::route::{Class, Route, RouteGroup, Slice};
use crate::share::divide;
use crate::sides::{SIDES, Sides, both};

/// A pipeline stage of each side, with the views of their groups paired up.
pub(crate) struct Stages<'a> {
    tp: Sides<u32>,
    stages: Sides<u32>,
    groups: Vec<StageGroup<'a>>,
}

struct StageGroup<'a> {
    index: usize,
    plan: &'a GroupPlan,
    layers: Arc<[u32]>,
    pairs: Vec<ViewPair>,
}

/// A component's views on TP rank 0 of both sides. Other ranks differ only in their units.
struct ViewPair {
    slice: Slice,
    blocks_outside: bool,
}

impl StageGroup<'_> {
    /// Groups slices that travel for some of the layers by the layers that they travel for.
    fn by_layers(&self, slices: SmallVec<[(Range<u64>, Slice); 2]>) -> impl Iterator<Item = RouteGroup> {
        let ends = slices.iter().flat_map(|(slots, _)| [slots.start, slots.end]);
        let mut ends: SmallVec<[u64; 4]> = ends.collect();
        ends.sort_unstable();
        ends.dedup();
        let pairs = 0..ends.len().saturating_sub(1);
        pairs.filter_map(move |i| {
            let (first, end) = (ends[i], ends[i + 1]);
            let here = slices.iter().filter(|(slots, _)| slots.contains(&first));
            let here = here.map(|(_, slice)| Slice { at: slice.at_slot(first), ..slice.clone() });
            let slices: SmallVec<[Slice; 2]> = here.collect();
            (!slices.is_empty()).then(|| RouteGroup {
                group: self.index,
                in_common: self.layers.clone(),
                slots: first as usize..end as usize,
                slices,
            })
        })
    }
}

impl<'a> Stages<'a> {
    pub(crate) fn new(ranks: &Sides<Ranks<'_>>, stages: Sides<u32>, groups: &'a [GroupPlan]) -> Self {
        let mut paired = Vec::with_capacity(groups.len());
        for (index, plan) in groups.iter().enumerate() {
            let (starts, both) = plan.slots_in_common(ranks, &stages);
            if both.is_empty() {
                continue;
            }
            let first = starts.map(|start| (both.start - start) as u64);
            let group = |side| &ranks[side].deployment.groups()[plan.index[side]];
            let views = Sides::of(|side| group(side).views(0, stages[side]));
            let pairs = views.src.zip(views.dst).enumerate();
            paired.push(StageGroup {
                index,
                plan,
                layers: group(Side::Source).layers().ids()[both].into(),
                pairs: pairs.map(|(component, (src, dst))| pair(component, plan, Sides { src, dst }, first)).collect(),
            });
        }
        Self { tp: Sides::of(|side| ranks[side].deployment.tp()), stages, groups: paired }
    }

    /// Returns the smallest range of the source's TP ranks that contains all senders to a TP rank of the destination.
    pub(crate) fn senders(&self, dst_rank: u32) -> Range<u32> {
        let senders = self.groups.iter().flat_map(|group| {
            let partitions = group.plan.partitions();
            partitions.flat_map(|partition| group.plan.senders(partition, self.tp, dst_rank))
        });
        hull(senders.map(|(ranks, _)| ranks))
    }

    pub(crate) fn route(&self, src_rank: u32, dst_rank: u32) -> Option<Route> {
        let ranks = Sides { src: src_rank, dst: dst_rank };
        let mut groups = Vec::new();
        for group in &self.groups {
            let Some((plain, own)) = group.plan.plain(self.tp, ranks) else {
                continue;
            };
            let mut slices: SmallVec<[(Range<u64>, Slice); 2]> = SmallVec::new();
            for (component, pair) in group.plan.components.iter().zip(&group.pairs) {
                // The check of the deployments has ensured that both TP sizes fit the units.
                let Ok(Some(served)) = component.partition.served(plain.src, plain.dst) else {
                    continue;
                };
                let mut slice = pair.slice.clone();
                for side in SIDES {
                    slice.class.range.deal[side].rank = own[side];
                }
                let layers = group.layers.len() as u64;
                let (slots, range) = divide(served.share, layers, slice.class.range, pair.blocks_outside);
                if slots.is_empty() || range.count() == 0 {
                    continue;
                }
                slice.class.range = range;
                let units = served.units;
                for side in SIDES {
                    let owned = component.partition.owned(self.tp[side], ranks[side]);
                    let first = owned.map_or(0, |owned| owned.start);
                    slice.at[side].base += (units.start - first) * slice.units.stride(side);
                }
                slice.units.count = units.end - units.start;
                slices.push((slots, slice));
            }
            groups.extend(group.by_layers(slices));
        }
        (!groups.is_empty()).then(|| Route {
            src_rank: Rank(self.stages.src * self.tp.src + src_rank),
            dst_rank: Rank(self.stages.dst * self.tp.dst + dst_rank),
            groups,
        })
    }
}

/// Pairs two views of one component, without units, blocks and states.
fn pair(component: usize, plan: &GroupPlan, views: Sides<ComponentView>, first_layers: Sides<u64>) -> ViewPair {
    let strides = |axis| nest::strides(&views.src, &views.dst, axis);
    let step = |axis| Sides::of(|side| views[side].view.dim(axis).stride);
    let range = plan.ranges[plan.components[component].range];
    let (mut blocks, mut states) = (step(Axis::Block), step(Axis::State));
    let layers = strides(Axis::Layer);
    let blocks_outside = blocks.dst > layers.dst;
    let single_block = plan.num_blocks.map(|blocks| blocks == 1);
    for side in SIDES {
        // With a single block there is no step from block to block, so any stride works. Use one that is the same for
        // all components.
        if single_block[side] {
            blocks[side] = 0;
        }
        // With one state in a block there is no step between states.
        if range.block[side] == 1 {
            states[side] = blocks[side];
        }
    }
    let inner = views.src.view.dims.iter().map(|dim| dim.axis);
    let loops = inner
        .filter(|axis| matches!(axis, Axis::Content(_) | Axis::Byte))
        .map(strides)
        .filter(|l| l.count > 1)
        .collect();
    let class = Class {
        range,
        linear: Sides::of(|side| single_block[side] || blocks[side] == states[side] * range.block[side]),
        states_outside: both(|side| blocks[side] <= states[side] && !single_block[side]) && blocks != states,
    };
    ViewPair {
        slice: Slice {
            component,
            class,
            at: Sides::of(|side| Origin {
                base: views[side].view.offset + first_layers[side] * layers.stride(side),
                block_stride: blocks[side],
                state_stride: states[side],
            }),
            layers,
            units: strides(Axis::Unit),
            loops,
        },
        blocks_outside,
    }
}

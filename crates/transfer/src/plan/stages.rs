//! From two pipeline stages to the routes between their ranks.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use transload_layout::view::{Axis, ComponentView};
use transload_layout::{Deployment, Rank};

use super::group::GroupPlan;
use super::nest::Origin;
use super::program::Loop;
use super::route::{Class, Route, RouteGroup, Slice, Steps};
use super::share::divide;

/// One pipeline stage of each side, with the views of their groups paired up.
pub(super) struct Stages<'a> {
    src: &'a Deployment,
    src_stage: u32,
    dst: &'a Deployment,
    dst_stage: u32,
    groups: Vec<StageGroup<'a>>,
}

struct StageGroup<'a> {
    index: usize,
    plan: &'a GroupPlan,
    layers: Arc<[u32]>,
    pairs: Vec<ViewPair>,
}

/// A component's views on TP rank 0 of both sides; other ranks differ only in which units they hold.
struct ViewPair {
    slice: Slice,
    /// Byte stride of units on each side.
    unit_strides: (u64, u64),
    /// Units per rank on each side.
    units: (u64, u64),
    /// Whether blocks lie outside layers at the destination.
    blocks_outside: bool,
}

impl StageGroup<'_> {
    /// Slices that travel for some of the layers each, put together where they travel for the same.
    fn by_layers(
        &self,
        slices: SmallVec<[(Range<u64>, Slice); 2]>,
    ) -> impl Iterator<Item = RouteGroup> {
        let ends = slices
            .iter()
            .flat_map(|(slots, _)| [slots.start, slots.end]);
        let mut ends: SmallVec<[u64; 4]> = ends.collect();
        ends.sort_unstable();
        ends.dedup();
        let pairs = 0..ends.len().saturating_sub(1);
        pairs.filter_map(move |i| {
            let (first, end) = (ends[i], ends[i + 1]);
            let here = slices.iter().filter(|(slots, _)| slots.contains(&first));
            let here = here.map(|(_, slice)| {
                let mut slice = slice.clone();
                slice.src.base += first * slice.layers.src;
                slice.dst.base += first * slice.layers.dst;
                slice
            });
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
    pub(super) fn new(
        src: &'a Deployment,
        src_stage: u32,
        dst: &'a Deployment,
        dst_stage: u32,
        groups: &'a [GroupPlan],
    ) -> Self {
        let mut paired = Vec::with_capacity(groups.len());
        for (index, plan) in groups.iter().enumerate() {
            let group = &src.groups()[plan.src_group];
            let other = &dst.groups()[plan.dst_group];
            let (mine, theirs) = (group.stage_slots(src_stage), other.stage_slots(dst_stage));
            let both = mine.start.max(theirs.start)..mine.end.min(theirs.end);
            if both.is_empty() {
                continue;
            }
            let first = (both.start - mine.start, both.start - theirs.start);
            let views = group.views(0, src_stage).zip(other.views(0, dst_stage));
            paired.push(StageGroup {
                index,
                plan,
                layers: group.layers().ids()[both].into(),
                pairs: views
                    .enumerate()
                    .map(|(component, (a, b))| pair(component, plan, &a, &b, first))
                    .collect(),
            });
        }
        Self {
            src,
            src_stage,
            dst,
            dst_stage,
            groups: paired,
        }
    }

    /// The source's TP ranks among which are all that send anything to a TP rank of the destination.
    pub(super) fn senders(&self, dst_rank: u32) -> Range<u32> {
        let partitions = self.groups.iter().flat_map(|group| group.plan.partitions());
        let senders = partitions.filter_map(|partition| {
            let senders = partition.senders(self.src.tp(), (self.dst.tp(), dst_rank));
            senders.ok()
        });
        let all = senders.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        all.unwrap_or(0..0)
    }

    /// The route between two TP ranks of these stages, if they share anything.
    pub(super) fn route(&self, src_rank: u32, dst_rank: u32) -> Option<Route> {
        let (src, dst) = ((self.src.tp(), src_rank), (self.dst.tp(), dst_rank));
        let mut groups = Vec::new();
        for group in &self.groups {
            let mut slices: SmallVec<[(Range<u64>, Slice); 2]> = SmallVec::new();
            for (component, pair) in group.plan.components.iter().zip(&group.pairs) {
                // Units went into both TP sizes when the deployments were checked.
                let Ok(Some(served)) = component.partition.served(src, dst) else {
                    continue;
                };
                let mut slice = pair.slice.clone();
                let layers = group.layers.len() as u64;
                let (slots, range) =
                    divide(served.share, layers, slice.class.range, pair.blocks_outside);
                if slots.is_empty() || range.first >= range.end {
                    continue;
                }
                slice.class.range = range;
                let units = served.units;
                let first_unit = |(tp, rank): (u32, u32)| {
                    component
                        .partition
                        .owned(tp, rank)
                        .map_or(0, |owned| owned.start)
                };
                slice.src.base += (units.start - first_unit(src)) * pair.unit_strides.0;
                slice.dst.base += (units.start - first_unit(dst)) * pair.unit_strides.1;
                let count = units.end - units.start;
                if count > 1 {
                    debug_assert!(count <= pair.units.0.min(pair.units.1));
                    slice.loops.push(Loop {
                        count,
                        src: pair.unit_strides.0,
                        dst: pair.unit_strides.1,
                    });
                }
                slices.push((slots, slice));
            }
            groups.extend(group.by_layers(slices));
        }
        (!groups.is_empty()).then(|| Route {
            src_rank: Rank(self.src_stage * self.src.tp() + src_rank),
            dst_rank: Rank(self.dst_stage * self.dst.tp() + dst_rank),
            groups,
        })
    }
}

/// Pairs two views of one component, leaving out units, blocks and states.
fn pair(
    component: usize,
    plan: &GroupPlan,
    a: &ComponentView,
    b: &ComponentView,
    first_layers: (usize, usize),
) -> ViewPair {
    let strides = |axis| {
        let (a, b) = (a.view.dim(axis), b.view.dim(axis));
        Loop {
            count: a.extent,
            src: a.stride,
            dst: b.stride,
        }
    };
    let range = plan.ranges[plan.components[component].range];
    let (mut blocks, mut states) = (strides(Axis::Block), strides(Axis::State));
    let layers = strides(Axis::Layer);
    let blocks_outside = blocks.dst > layers.dst;
    // Where there is one block, there is no step from block to block: any stride will do, and this one
    // is the same for all components.
    let alone = (plan.num_blocks.0 == 1, plan.num_blocks.1 == 1);
    if alone.0 {
        blocks.src = 0;
    }
    if alone.1 {
        blocks.dst = 0;
    }
    // Where a block holds one state, there is no step from state to state inside it.
    if range.src_block == 1 {
        states.src = blocks.src;
    }
    if range.dst_block == 1 {
        states.dst = blocks.dst;
    }
    let units = strides(Axis::Unit);
    let inner = a.view.dims.iter().map(|dim| dim.axis);
    let loops = inner
        .filter(|axis| matches!(axis, Axis::Content(_) | Axis::Byte))
        .map(strides)
        .filter(|l| l.count > 1)
        .collect();
    ViewPair {
        slice: Slice {
            component,
            class: Class {
                range,
                steps: Steps {
                    linear: (
                        alone.0 || blocks.src == states.src * range.src_block,
                        alone.1 || blocks.dst == states.dst * range.dst_block,
                    ),
                    states_outside: blocks.src <= states.src
                        && blocks.dst <= states.dst
                        && (blocks.src, blocks.dst) != (states.src, states.dst)
                        && !(alone.0 || alone.1),
                },
            },
            src: Origin {
                base: a.view.offset + first_layers.0 as u64 * layers.src,
                block_stride: blocks.src,
                state_stride: states.src,
            },
            dst: Origin {
                base: b.view.offset + first_layers.1 as u64 * layers.dst,
                block_stride: blocks.dst,
                state_stride: states.dst,
            },
            layers,
            loops,
        },
        unit_strides: (units.src, units.dst),
        units: (a.units.end - a.units.start, b.units.end - b.units.start),
        blocks_outside,
    }
}

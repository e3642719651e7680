//! Routes: the slices that one source rank sends to one destination rank.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use transload_layout::partition::Partition;
use transload_layout::view::{Axis, ComponentView};
use transload_layout::{Deployment, Rank, Side, Spec};

use super::bridge::pair_groups;
use super::error::{MAX_TOKENS, PlanError};
use super::nest::{ComponentSet, Origin, Strided, fuse, simplify};
use super::program::Loop;
use super::request::Request;
use super::share::divide;
use super::tokens::StateRange;

/// What one source rank sends one destination rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    /// For each group that has anything for this route.
    pub(super) groups: Vec<RouteGroup>,
}

/// The slices of one group on one route that travel for the same layers.
///
/// Most groups have one on each route. Where replicas share out layers, components that are replicated
/// travel for fewer layers than others, and the group has several, each for layers of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RouteGroup {
    /// Index of the group in the plan.
    pub(super) group: usize,
    /// The global layers that two stages have in common; the same for all routes between them.
    in_common: Arc<[u32]>,
    /// Which of them travel.
    slots: Range<usize>,
    /// The slices.
    pub(super) slices: SmallVec<[Slice; 2]>,
}

/// A component's units that both ranks hold, with strides on both sides. Blocks and states are left
/// to block tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slice {
    pub(super) component: usize,
    pub(super) class: Class,
    pub(super) src: Origin,
    pub(super) dst: Origin,
    /// Layers; kept apart from the other loops since streams may go layer by layer.
    pub(super) layers: Loop,
    /// Units, content and bytes.
    pub(super) loops: SmallVec<[Loop; 4]>,
}

/// How slices are placed along the token axis. Those of one class may share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    /// The states that travel.
    pub(super) range: StateRange,
    /// How blocks and states lie.
    pub(super) steps: Steps,
}

/// How the blocks of both sides, and the states in them, lie to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Steps {
    /// For each side: whether states and blocks step alike, so that a state's place is linear in
    /// `block * states_per_block + state`.
    pub(super) linear: (bool, bool),
    /// Whether blocks lie closer together than the states of one block: on both sides, or on one where
    /// the blocks of the other hold one state each.
    pub(super) states_outside: bool,
}

/// A stretch of states that slices of some classes move all alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) range: StateRange,
    pub(super) steps: Steps,
    pub(super) classes: SmallVec<[Class; 2]>,
}

/// What all routes of a group have in common.
#[derive(Clone, Debug)]
pub(super) struct GroupPlan {
    pub(super) name: String,
    pub(super) src_group: usize,
    pub(super) dst_group: usize,
    pub(super) num_blocks: (u32, u32),
    components: Vec<ComponentPlan>,
    /// The distinct ranges of states that its specs move.
    pub(super) ranges: Vec<StateRange>,
}

#[derive(Clone, Debug)]
struct ComponentPlan {
    name: &'static str,
    /// Index of its spec, if that is attention, whose keys and values are known as kv together.
    attention: Option<usize>,
    partition: Partition,
    /// How many destination ranks need each unit.
    readers: u64,
    /// Index into the group's `ranges`.
    range: usize,
}

/// Pairs the groups and works out which states of each travel.
pub(super) fn groups(
    src: &Deployment,
    dst: &Deployment,
    request: &Request,
) -> Result<Vec<GroupPlan>, PlanError> {
    let end = request.start.checked_add(request.tokens);
    if end.is_none_or(|end| end > MAX_TOKENS) {
        return Err(PlanError::TooManyTokens {
            start: request.start,
            tokens: request.tokens,
        });
    }
    let mut groups = Vec::new();
    for (src_index, (group, other)) in pair_groups(src, dst)?.into_iter().enumerate() {
        let mut ranges = Vec::new();
        let mut components = Vec::new();
        for (index, spec) in group.specs().iter().enumerate() {
            let attention = matches!(spec, Spec::Attention(_)).then_some(index);
            let range = StateRange::of(spec, request, group.block_size(), other.block_size());
            let known = ranges.iter().position(|known| *known == range);
            let range = known.unwrap_or_else(|| {
                ranges.push(range);
                ranges.len() - 1
            });
            for component in spec.geometry().components {
                components.push(ComponentPlan {
                    name: component.name,
                    attention,
                    partition: component.partition,
                    readers: (u64::from(dst.tp()) / component.partition.units().max(1)).max(1),
                    range,
                });
            }
        }
        groups.push(GroupPlan {
            name: group.name().to_owned(),
            src_group: src_index,
            dst_group: dst.group(group.name()).map_or(0, |(index, _)| index),
            num_blocks: (group.num_blocks(), other.num_blocks()),
            components,
            ranges,
        });
    }
    Ok(groups)
}

impl GroupPlan {
    pub(super) fn entries(&self, side: Side) -> Range<u64> {
        let touched = self.ranges.iter().map(|range| {
            range.entries(match side {
                Side::Source => range.src_block,
                Side::Destination => range.dst_block,
            })
        });
        touched
            .filter(|entries| !entries.is_empty())
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
            .unwrap_or(0..0)
    }

    pub(super) fn segments(&self) -> u64 {
        self.ranges.iter().map(|range| range.segments()).sum()
    }

    /// How many destination ranks need each unit of a component.
    pub(super) fn readers(&self, component: usize) -> u64 {
        self.components[component].readers
    }

    /// How each component is shared out among ranks, of those that move anything.
    pub(super) fn partitions(&self) -> impl Iterator<Item = Partition> {
        let moving = self.components.iter().filter(|component| {
            let range = self.ranges[component.range];
            range.first < range.end
        });
        moving.map(|component| component.partition)
    }

    pub(super) fn component_names(&self, set: ComponentSet) -> String {
        let chosen = self.components.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| set.contains(*index));
        let mut names: Vec<&str> = Vec::new();
        let mut before = None;
        for (_, component) in chosen {
            let own = component.attention.map(|spec| (spec, component.name));
            match (before, own) {
                (Some((of_k, "k")), Some((of_v, "v"))) if of_k == of_v => {
                    names.pop();
                    names.push("kv");
                }
                _ => names.push(component.name),
            }
            before = own;
        }
        names.join("+")
    }
}

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
    let StateRange {
        src_block,
        dst_block,
        ..
    } = range;
    let (mut blocks, mut states) = (strides(Axis::Block), strides(Axis::State));
    let layers = strides(Axis::Layer);
    let blocks_outside = blocks.dst > layers.dst;
    // Where there is one block, there is no step from block to block: any stride will do, and this one
    // is the same for all components.
    let single = |num_blocks| num_blocks == 1;
    let alone = (single(plan.num_blocks.0), single(plan.num_blocks.1));
    if alone.0 {
        blocks.src = 0;
    }
    if alone.1 {
        blocks.dst = 0;
    }
    // Where a block holds one state, there is no step from state to state inside it.
    if src_block == 1 {
        states.src = blocks.src;
    }
    if dst_block == 1 {
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
                        alone.0 || blocks.src == states.src * src_block,
                        alone.1 || blocks.dst == states.dst * dst_block,
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

/// How many steps a nest takes along layers, states and blocks, and where it may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub(super) states: u64,
    /// Neighbouring blocks of both sides that the nest goes through, each with `states` states.
    pub(super) blocks: u64,
    /// For each side: whether the nest starts at state 0 of a block wherever it is placed.
    pub(super) zero: (bool, bool),
}

/// The nests of a class for each extent that occurs: few extents repeat over many segments.
#[derive(Default)]
pub(super) struct NestsByExtent {
    /// With the index that the first of the nests has in a program.
    made: Vec<(Extent, u32, SmallVec<[Strided; 4]>)>,
    /// Of all that is made beyond the first few, which are looked through faster.
    by_extent: HashMap<Extent, usize>,
}

impl NestsByExtent {
    /// The nests for an extent, made where they are needed for the first time.
    pub(super) fn get(
        &mut self,
        extent: Extent,
        make: impl FnOnce() -> (u32, SmallVec<[Strided; 4]>),
    ) -> (u32, &[Strided]) {
        const FEW: usize = 8;
        let made = &mut self.made;
        let few = made
            .iter()
            .take(FEW)
            .position(|(known, ..)| *known == extent);
        let index = few.unwrap_or_else(|| {
            let next = made.len();
            let index = match next < FEW {
                true => next,
                false => *self.by_extent.entry(extent).or_insert(next),
            };
            if index == next {
                let (first, nests) = make();
                made.push((extent, first, nests));
            }
            index
        });
        let (_, first, nests) = &self.made[index];
        (*first, nests)
    }
}

/// What one source rank sends one destination rank of a group, as if it started at 0 on both sides: what
/// routes have in common that differ in ranks only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RouteShape {
    group: usize,
    /// For each stretch of layers, how many they are, and the slices.
    parts: SmallVec<[(usize, SmallVec<[Slice; 2]>); 1]>,
}

impl RouteShape {
    /// The shape of one group on a route, and where that starts on each side.
    pub(super) fn of(parts: &[RouteGroup]) -> (Self, (u64, u64)) {
        let slices = || parts.iter().flat_map(|part| &part.slices);
        let least = |base: fn(&Slice) -> u64| slices().map(base).min().unwrap_or(0);
        let start = (least(|slice| slice.src.base), least(|slice| slice.dst.base));
        let at_zero = |part: &RouteGroup| {
            let mut slices = part.slices.clone();
            for slice in &mut slices {
                slice.src.base -= start.0;
                slice.dst.base -= start.1;
            }
            (part.layers().len(), slices)
        };
        let shape = Self {
            group: parts.first().map_or(0, |part| part.group),
            parts: parts.iter().map(at_zero).collect(),
        };
        (shape, start)
    }
}

impl RouteGroup {
    /// The global layers that travel.
    pub(super) fn layers(&self) -> &[u32] {
        &self.in_common[self.slots.clone()]
    }

    /// The fewest nests that move `extent` of the slices of these classes, whose steps are the same;
    /// with `layer`, of that layer slot only.
    pub(super) fn nests(
        &self,
        classes: &[Class],
        extent: Extent,
        layer: Option<u64>,
    ) -> SmallVec<[Strided; 4]> {
        let mut nests = SmallVec::new();
        for slice in self.slices.iter().filter(|s| classes.contains(&s.class)) {
            let linear = slice.class.steps.linear;
            let mut loops: SmallVec<[Loop; 8]> = slice.loops.iter().copied().collect();
            let (mut src, mut dst) = (slice.src, slice.dst);
            match layer {
                None => loops.push(Loop {
                    count: self.layers().len() as u64,
                    ..slice.layers
                }),
                Some(slot) => {
                    src.base += slot * slice.layers.src;
                    dst.base += slot * slice.layers.dst;
                }
            }
            loops.push(Loop {
                count: extent.states,
                src: src.state_stride,
                dst: dst.state_stride,
            });
            let step = |linear: bool, origin: Origin| match linear {
                true => extent.states * origin.state_stride,
                false => origin.block_stride,
            };
            loops.push(Loop {
                count: extent.blocks,
                src: step(linear.0, src),
                dst: step(linear.1, dst),
            });
            nests.push(Strided {
                components: ComponentSet::one(slice.component),
                src,
                dst,
                nest: simplify(loops, 1),
            });
        }
        if nests.len() > 1 {
            fuse(&mut nests, extent.zero);
        }
        nests
    }

    /// The most places in which its nests can start, whatever the tables.
    pub(super) fn most_places(&self) -> u64 {
        let places = self.slices.iter().map(|slice| {
            let Class { range, steps } = slice.class;
            match steps.states_outside {
                true => range.end - range.first,
                false => range.segments(),
            }
        });
        places.fold(0, u64::saturating_add)
    }

    /// How many bytes it moves.
    pub(super) fn bytes(&self) -> u64 {
        self.slices
            .iter()
            .map(|slice| self.slice_bytes(slice))
            .sum()
    }

    /// How many of them are one slice's.
    pub(super) fn slice_bytes(&self, slice: &Slice) -> u64 {
        let range = slice.class.range;
        let per_state: u64 = slice.loops.iter().map(|l| l.count).product();
        (range.end - range.first) * per_state * self.layers().len() as u64
    }

    /// The distinct classes of its slices, in order.
    pub(super) fn classes(&self) -> SmallVec<[Class; 2]> {
        let mut classes = SmallVec::new();
        for slice in &self.slices {
            if !classes.contains(&slice.class) {
                classes.push(slice.class);
            }
        }
        classes
    }

    /// The states that travel, cut so that slices of different ranges can move together wherever they
    /// move the same part of a block.
    ///
    /// Most groups have one range, and are one piece for each class. Where there are more, the blocks in
    /// which one begins or ends are pieces of their own.
    pub(super) fn pieces(&self) -> SmallVec<[Piece; 2]> {
        let classes = self.classes();
        let mut pieces: SmallVec<[Piece; 2]> = SmallVec::new();
        for class in &classes {
            let range = class.range;
            let mut ends: SmallVec<[u64; 8]> = SmallVec::new();
            for other in &classes {
                let of = other.range;
                if other.steps == class.steps && of != range && of.blocks() == range.blocks() {
                    for bound in [range.first, range.end, of.first, of.end] {
                        ends.extend([of.block_end_from(bound), of.block_end_until(bound)]);
                    }
                }
            }
            ends.push(range.end);
            ends.retain(|end| range.first < *end && *end <= range.end);
            ends.sort_unstable();
            ends.dedup();
            let mut first = range.first;
            for end in ends {
                let range = StateRange {
                    first,
                    end,
                    ..range
                };
                first = end;
                let steps = class.steps;
                let alike = |piece: &&mut Piece| (piece.range, piece.steps) == (range, steps);
                match pieces.iter_mut().find(alike) {
                    Some(piece) => piece.classes.push(*class),
                    None => pieces.push(Piece {
                        range,
                        steps,
                        classes: SmallVec::from_elem(*class, 1),
                    }),
                }
            }
        }
        pieces
    }
}

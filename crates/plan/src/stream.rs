//! Binding of a plan to one side's block tables, which gives that side's half of a byte stream.
//!
//! The plan alone determines the order of a route's bytes. So each peer gathers or scatters with its own block table
//! and does not need the other's. The order is by group, then by segment in token order, then by fused slice. In plans
//! [by layer](crate::Request::by_layer) the layer comes first. In plans with a [codec](crate::Request::codec) each of
//! these has [pieces](crate::pieces).

use transload_layout::Side;

use crate::codec::Codec;
use crate::extent::NestsByExtent;
use crate::group::GroupPlan;
use crate::pieces::{self, Coded, Pieces};
use crate::plan::Plan;
use crate::program::{Placed, Program, StreamProgram};
use crate::route::{Route, RouteGroup, Slice};
use crate::table::{BindError, Lookup, Tables};

/// One side's half of the byte stream of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStream {
    /// The codec of the parts that a codec encodes.
    pub codec: Codec,
    /// The consecutive parts of the stream.
    pub sections: Vec<Section>,
}

/// A part of a stream that comes from or goes to one group's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The index of the group in the plan.
    pub group: usize,
    /// The global layer, if the plan is by layer.
    pub layer: Option<u32>,
    /// The stream offset of its first byte.
    pub start: u64,
    /// The program for its bytes, with stream offsets counted from `start`.
    pub program: StreamProgram,
    /// The division into pieces, if the plan has a codec.
    pub pieces: Option<Pieces>,
}

impl RouteStream {
    /// Returns the length of the whole stream in bytes.
    pub fn bytes(&self) -> u64 {
        let last = self.sections.last();
        last.map_or(0, |section| section.start + section.program.bytes())
    }
}

impl Plan {
    /// Binds a route to the block tables of one side.
    ///
    /// # Errors
    /// Returns an error if a table is too short, lists a missing block, or would write a block twice.
    pub fn bind_stream(&self, route: &Route, side: Side, tables: &Tables) -> Result<RouteStream, BindError> {
        let lookups = Lookup::of_plan(self, side, tables)?;
        let mut order: Vec<(Option<u32>, usize, Option<u64>)> = Vec::new();
        for (index, group) in route.groups.iter().enumerate() {
            match self.request.by_layer {
                false => order.push((None, index, None)),
                true => {
                    let slots = (0..).zip(group.layers());
                    order.extend(slots.map(|(slot, layer)| (Some(*layer), index, Some(slot))));
                }
            }
        }
        order.sort_unstable();
        let mut stream = RouteStream { codec: self.request.codec, sections: Vec::new() };
        for (layer, index, slot) in order {
            let part = &route.groups[index];
            let (planned, lookup) = (&self.groups[part.group], &lookups[part.group]);
            let sections = match stream.codec.is_exact() {
                true => {
                    let program = half(part, side, slot, lookup);
                    vec![section(part, layer, program, None)]
                }
                false => pieces(part, planned, layer, side, slot, lookup),
            };
            for section in sections {
                if section.program.bytes() > 0 {
                    let start = stream.bytes();
                    stream.sections.push(Section { start, ..section });
                }
            }
        }
        Ok(stream)
    }

    /// Returns the maximum number of places that binding a route to a stream takes. Each takes 24 bytes and some
    /// nanoseconds. Costs O(slices).
    pub fn most_places(&self, route: &Route) -> u64 {
        let of_group = |group: &RouteGroup| {
            let layers = group.layers().len() as u64;
            let components = &self.groups[group.group].components;
            let of_slice = |slice: &Slice| {
                let coded = !self.request.codec.is_exact();
                match coded && components[slice.component].rows.is_some() {
                    true => pieces::most_places(slice, layers),
                    false if self.request.by_layer => slice.class.range.most_cuts(1).saturating_mul(layers),
                    false => slice.class.range.most_cuts(1),
                }
            };
            let places = group.slices.iter().map(of_slice);
            places.fold(0, u64::saturating_add)
        };
        let of_groups = route.groups.iter().map(of_group);
        of_groups.fold(0, u64::saturating_add)
    }
}

fn section(group: &RouteGroup, layer: Option<u32>, program: StreamProgram, pieces: Option<Pieces>) -> Section {
    Section { group: group.group, layer, start: 0, program, pieces }
}

fn pieces(
    group: &RouteGroup,
    planned: &GroupPlan,
    layer: Option<u32>,
    side: Side,
    slot: Option<u64>,
    lookup: &Lookup<'_>,
) -> Vec<Section> {
    let rows = |component: usize| planned.components[component].rows;
    let slots = slot.map_or(0..group.layers().len() as u64, |slot| slot..slot + 1);
    let coded = group.slices.iter().filter_map(|slice| {
        let (rows, slots) = (rows(slice.component)?, slots.clone());
        Some(Coded { slice, rows, slots })
    });
    let coded = coded.flat_map(|coded| coded.programs(side, lookup));
    let coded = coded.map(|(program, pieces)| section(group, layer, program, Some(pieces)));
    let plain = group.with_components(|component| rows(component).is_none());
    let plain = half(&plain, side, slot, lookup);
    let plain = section(group, layer, plain, Some(Pieces::PLAIN));
    coded.chain([plain]).collect()
}

fn half(group: &RouteGroup, side: Side, slot: Option<u64>, lookup: &Lookup<'_>) -> StreamProgram {
    let (mut program, mut end) = (Program::default(), 0);
    for class in group.classes() {
        let mut by_extent = NestsByExtent::default();
        for cut in class.range.cuts() {
            let nests = by_extent.get(&cut, |extent| {
                let nests = group.nests(&[class], extent, slot);
                let first = program.nests.len() as u32;
                let dense = nests.iter().map(|strided| strided.nest.dense(side));
                program.nests.extend(dense);
                (first, nests)
            });
            for (nest, strided) in nests {
                program.placed.push(Placed { nest, src: strided.at[side].at(lookup.place(cut.at[side])), dst: end });
                end += program.nests[nest as usize].bytes();
            }
        }
    }
    StreamProgram::made_dense(program, end)
}

//! Binding a plan to one side's block tables: that side's half of a byte stream.
//!
//! The bytes of a route travel in an order that the plan alone decides, so that each peer gathers or
//! scatters with its own block table and never learns the other's: group by group, in each segment by
//! segment in token order, in each the fused slices one after another. Plans
//! [by layer](super::request::Request::by_layer) put the layers outside of all that.

use smallvec::SmallVec;
use transload_layout::Side;

use super::compile::Plan;
use super::extent::{Extent, NestsByExtent};
use super::program::{Loop, Nest, Placed, Program, StreamProgram};
use super::route::{Route, RouteGroup};
use super::table::{BindError, Lookup, Tables};

/// One side's half of the byte stream of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteStream {
    /// What lies one after another in the stream.
    pub sections: Vec<Section>,
}

/// A stretch of a stream that comes from or goes to one group's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Index of the group in the plan.
    pub group: usize,
    /// The global layer, if the plan goes by layer.
    pub layer: Option<u32>,
    /// Stream offset of its first byte.
    pub start: u64,
    /// Its bytes, with stream offsets counted from `start`.
    pub program: StreamProgram,
}

impl RouteStream {
    /// Length of the whole stream in bytes.
    pub fn bytes(&self) -> u64 {
        let last = self.sections.last();
        last.map_or(0, |section| section.start + section.program.bytes())
    }
}

impl Plan {
    /// Binds a route to the block tables of one side.
    ///
    /// # Errors
    /// When a table is too short, lists a block that does not exist, or would write one twice.
    pub fn bind_stream(
        &self,
        route: &Route,
        side: Side,
        tables: &Tables,
    ) -> Result<RouteStream, BindError> {
        let mut lookups = Vec::with_capacity(self.groups.len());
        for group in 0..self.groups.len() {
            lookups.push(Lookup::new(self, group, side, tables)?);
        }
        let mut stream = RouteStream::default();
        let mut push = |group: &RouteGroup, slot: Option<u64>| {
            let program = half(group, side, slot, &lookups[group.group]);
            if program.bytes() > 0 {
                stream.sections.push(Section {
                    group: group.group,
                    layer: slot.map(|slot| group.layers()[slot as usize]),
                    start: stream.bytes(),
                    program,
                });
            }
        };
        if !self.request.by_layer {
            route.groups.iter().for_each(|group| push(group, None));
            return Ok(stream);
        }
        let mut layers: Vec<(u32, usize, u64)> = Vec::new();
        for (index, group) in route.groups.iter().enumerate() {
            let slots = (0..).zip(group.layers());
            layers.extend(slots.map(|(slot, layer)| (*layer, index, slot)));
        }
        layers.sort_unstable();
        for (_, index, slot) in layers {
            push(&route.groups[index], Some(slot));
        }
        Ok(stream)
    }
}

/// One group's part of a stream.
fn half(group: &RouteGroup, side: Side, slot: Option<u64>, lookup: &Lookup<'_>) -> StreamProgram {
    let mut half = Half {
        side,
        program: Program::default(),
        end: 0,
    };
    for class in group.classes() {
        let mut by_extent = NestsByExtent::default();
        for cut in class.range.cuts() {
            let extent = Extent {
                states: cut.states,
                blocks: 1,
                zero: (cut.src_state == 0, cut.dst_state == 0),
            };
            let (first, nests) = by_extent.get(extent, || {
                let nests = group.nests(&[class], extent, slot);
                let first = half.program.nests.len() as u32;
                let dense = nests.iter().map(|strided| half.dense(&strided.nest));
                let dense: SmallVec<[Nest; 4]> = dense.collect();
                half.program.nests.extend(dense);
                (first, nests)
            });
            for (nest, strided) in (first..).zip(nests) {
                let place = match side {
                    Side::Source => {
                        let block = lookup.block(cut.src_entry);
                        strided.src.at(block, cut.src_state)
                    }
                    Side::Destination => {
                        let block = lookup.block(cut.dst_entry);
                        strided.dst.at(block, cut.dst_state)
                    }
                };
                half.push(nest, place);
            }
        }
    }
    StreamProgram::made_dense(half.program, half.end)
}

struct Half {
    side: Side,
    program: Program,
    end: u64,
}

impl Half {
    /// A joint nest as this side sees it: its own strides, and a dense stream in loop order. Loops that
    /// chain in this side's memory merge, since they always do in the stream.
    fn dense(&self, nest: &Nest) -> Nest {
        let mut dense = Nest {
            loops: SmallVec::new(),
            run: nest.run,
        };
        let mut stream = nest.run;
        for l in nest.loops.iter().rev() {
            let stride = match self.side {
                Side::Source => l.src,
                Side::Destination => l.dst,
            };
            match dense.loops.last_mut() {
                None if stride == dense.run => dense.run *= l.count,
                Some(inner) if stride == inner.src * inner.count => inner.count *= l.count,
                _ => dense.loops.push(Loop {
                    count: l.count,
                    src: stride,
                    dst: stream,
                }),
            }
            stream *= l.count;
        }
        dense.loops.reverse();
        dense
    }

    fn push(&mut self, nest: u32, place: u64) {
        let bytes = self.program.nests[nest as usize].bytes();
        self.program.placed.push(Placed {
            nest,
            src: place,
            dst: self.end,
        });
        self.end += bytes;
    }
}

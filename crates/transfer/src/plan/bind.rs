//! Binding a plan to the block tables of both sides.

use std::collections::HashMap;

use smallvec::SmallVec;
use transload_layout::Rank;

use super::Plan;
use super::nest::ComponentSet;
use super::program::{Nest, Placed, Program};
use super::route::{Extent, GroupPlan, NestsByExtent, RouteGroup};
use super::table::{BindError, Lookup, Side, Tables};
use super::tokens::StateRange;

/// A plan with the block tables of both sides: what one process can run that reaches both memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlan {
    /// One for each route and group that has anything to move.
    pub routes: Vec<BoundRoute>,
}

/// What one source rank copies to one destination rank in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRoute {
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    /// Index of the group in the plan.
    pub group: usize,
    /// What to copy, in the addresses of that rank and group on each side.
    pub program: Program,
    /// For each of the program's nests, the components that it moves.
    pub components: Vec<ComponentSet>,
}

impl BoundPlan {
    /// How many bytes move.
    pub fn bytes(&self) -> u64 {
        self.routes.iter().map(|route| route.program.bytes()).sum()
    }

    /// In how many chunks.
    pub fn chunks(&self) -> u64 {
        self.routes.iter().map(|route| route.program.chunks()).sum()
    }
}

/// A stretch of states in one block of each side, or in neighbouring blocks of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    src_block: u64,
    src_state: u64,
    dst_block: u64,
    dst_state: u64,
    states: u64,
    blocks: u64,
}

/// A class of slices (see [`Slice::class`](super::route::Slice::class)) of one group.
type ClassKey = (usize, (usize, (bool, bool)));

impl Plan {
    /// Binds all routes to the block tables of both sides. Runs merge across blocks that are
    /// neighbours on both sides, in whatever order the tables list them.
    ///
    /// # Errors
    /// When a table is too short, lists a block that does not exist, or would write one twice.
    pub fn bind(&self, src: &Tables, dst: &Tables) -> Result<BoundPlan, BindError> {
        let mut lookups = Vec::with_capacity(self.groups.len());
        for group in 0..self.groups.len() {
            lookups.push((
                Lookup::new(self, group, Side::Source, src)?,
                Lookup::new(self, group, Side::Destination, dst)?,
            ));
        }
        // Routes differ in units only, so they share their segments.
        let mut segments: SmallVec<[(ClassKey, Vec<Segment>); 4]> = SmallVec::new();
        let mut routes = Vec::with_capacity(self.routes.len());
        for route in &self.routes {
            for group in &route.groups {
                let mut binder = Binder::default();
                for class in group.classes() {
                    let key = (group.group, class);
                    let known = segments.iter().position(|(known, _)| *known == key);
                    let index = known.unwrap_or_else(|| {
                        let planned = &self.groups[group.group];
                        let made = make_segments(planned, class, &lookups[group.group]);
                        segments.push((key, made));
                        segments.len() - 1
                    });
                    binder.place(group, class, &segments[index].1);
                }
                binder.join_neighbours();
                routes.push(BoundRoute {
                    src_rank: route.src_rank,
                    dst_rank: route.dst_rank,
                    group: group.group,
                    program: binder.program,
                    components: binder.components,
                });
            }
        }
        Ok(BoundPlan { routes })
    }
}

/// Cuts the token axis at both sides' blocks, and joins what lies together on both sides again.
fn make_segments(
    planned: &GroupPlan,
    (range, (src_linear, dst_linear)): (usize, (bool, bool)),
    (src, dst): &(Lookup<'_>, Lookup<'_>),
) -> Vec<Segment> {
    let range: StateRange = planned.ranges[range];
    let (src_size, dst_size) = (range.src_block, range.dst_block);
    let mut cut: Vec<Segment> = range
        .cuts()
        .map(|cut| Segment {
            src_block: src.block(cut.src_entry),
            src_state: cut.src_state,
            dst_block: dst.block(cut.dst_entry),
            dst_state: cut.dst_state,
            states: cut.states,
            blocks: 1,
        })
        .collect();
    let place = |s: &Segment| (s.src_block, s.src_state);
    if !cut.is_sorted_by_key(place) {
        cut.sort_unstable_by_key(place);
    }
    // Joined along states: the next stretch starts where this one ends. Where states and blocks step
    // alike, that may be in the next block.
    let along_states = |last: &Segment, next: &Segment| {
        let joined = |linear, size, (block, state), (next_block, next_state)| {
            let end = block * size + state + last.states;
            end == next_block * size + next_state && (linear || block == next_block)
        };
        let (a, b) = (
            (last.src_block, last.src_state),
            (next.src_block, next.src_state),
        );
        let (c, d) = (
            (last.dst_block, last.dst_state),
            (next.dst_block, next.dst_state),
        );
        joined(src_linear, src_size, a, b) && joined(dst_linear, dst_size, c, d)
    };
    join(&mut cut, along_states, |last, next| {
        last.states += next.states
    });
    if src_linear && dst_linear {
        return cut;
    }
    // Joined along blocks: whole blocks on the sides where states and blocks step differently.
    let along_blocks = |last: &Segment, next: &Segment| {
        let joined = |linear, size, (block, state), (next_block, next_state)| match linear {
            true => {
                let end = block * size + state + last.states * last.blocks;
                end == next_block * size + next_state
            }
            false => {
                let whole = state == 0 && next_state == 0 && last.states == size;
                whole && next_block == block + last.blocks
            }
        };
        let (a, b) = (
            (last.src_block, last.src_state),
            (next.src_block, next.src_state),
        );
        let (c, d) = (
            (last.dst_block, last.dst_state),
            (next.dst_block, next.dst_state),
        );
        last.states == next.states
            && joined(src_linear, src_size, a, b)
            && joined(dst_linear, dst_size, c, d)
    };
    join(&mut cut, along_blocks, |last, next| {
        last.blocks += next.blocks
    });
    cut
}

fn join(
    segments: &mut Vec<Segment>,
    joined: impl Fn(&Segment, &Segment) -> bool,
    extend: impl Fn(&mut Segment, &Segment),
) {
    segments.dedup_by(|next, last| {
        let join = joined(last, next);
        if join {
            extend(last, next);
        }
        join
    });
}

/// Collects the nests of one route and group, and where they go.
#[derive(Default)]
struct Binder {
    program: Program,
    components: Vec<ComponentSet>,
}

impl Binder {
    fn place(&mut self, group: &RouteGroup, class: (usize, (bool, bool)), segments: &[Segment]) {
        self.program.placed.reserve(segments.len());
        let mut by_extent = NestsByExtent::default();
        for segment in segments {
            let extent = Extent {
                states: segment.states,
                blocks: segment.blocks,
                zero: (segment.src_state == 0, segment.dst_state == 0),
            };
            let (first, nests) = by_extent.get(extent, || {
                let nests = group.nests(class, extent, None);
                let first = self.program.nests.len() as u32;
                for strided in &nests {
                    self.program.nests.push(strided.nest.clone());
                    self.components.push(strided.components);
                }
                (first, nests)
            });
            for (nest, strided) in (*first..).zip(nests) {
                self.program.placed.push(Placed {
                    nest,
                    src: strided.src.at(segment.src_block, segment.src_state),
                    dst: strided.dst.at(segment.dst_block, segment.dst_state),
                });
            }
        }
    }

    /// Joins chunks without loops that lie together on both sides: what segments of different classes
    /// or extents leave between them.
    fn join_neighbours(&mut self) {
        let whole = |p: &Placed| self.program.nests[p.nest as usize].loops.is_empty();
        if self.program.placed.iter().filter(|p| whole(p)).count() < 2 {
            return;
        }
        let (mut runs, looped): (Vec<Placed>, Vec<Placed>) =
            self.program.placed.iter().partition(|p| whole(p));
        runs.sort_unstable_by_key(|p| (p.src, p.dst));
        let mut joined: Vec<(Placed, u64, ComponentSet)> = Vec::with_capacity(runs.len());
        for p in runs {
            let run = self.program.nests[p.nest as usize].run;
            let components = self.components[p.nest as usize];
            match joined.last_mut() {
                Some((last, length, set))
                    if last.src + *length == p.src && last.dst + *length == p.dst =>
                {
                    *length += run;
                    set.0 |= components.0;
                }
                _ => joined.push((p, run, components)),
            }
        }
        let mut program = Program {
            nests: Vec::new(),
            placed: Vec::with_capacity(joined.len() + looped.len()),
        };
        let mut components = Vec::new();
        let mut by_run: HashMap<(u64, ComponentSet), u32> = HashMap::new();
        for (placed, run, set) in joined {
            let nest = *by_run.entry((run, set)).or_insert_with(|| {
                program.nests.push(Nest {
                    loops: SmallVec::new(),
                    run,
                });
                components.push(set);
                program.nests.len() as u32 - 1
            });
            program.placed.push(Placed { nest, ..placed });
        }
        let mut kept: HashMap<u32, u32> = HashMap::new();
        for placed in looped {
            let nest = *kept.entry(placed.nest).or_insert_with(|| {
                let old = placed.nest as usize;
                program.nests.push(self.program.nests[old].clone());
                components.push(self.components[old]);
                program.nests.len() as u32 - 1
            });
            program.placed.push(Placed { nest, ..placed });
        }
        self.program = program;
        self.components = components;
    }
}

//! Binding a plan to the block tables of both sides.

use transload_layout::{Rank, Side};

use super::Plan;
use super::join::join_neighbours;
use super::nest::ComponentSet;
use super::program::{Placed, Program};
use super::route::{Extent, NestsByExtent, Piece, RouteGroup};
use super::segments::{self, Segment};
use super::table::{BindError, Lookup, Tables};

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
        let mut segments: Vec<(usize, bool, Piece, Vec<Segment>)> = Vec::new();
        let mut routes = Vec::with_capacity(self.routes.len());
        for route in &self.routes {
            for group in &route.groups {
                let mut binder = Binder::default();
                let planned = &self.groups[group.group];
                let pieces = group.pieces(planned);
                let several = pieces.len() > 1;
                for piece in pieces {
                    let known = segments.iter().position(|(of, open, known, _)| {
                        (*of, *open) == (group.group, several)
                            && (known.range, known.steps) == (piece.range, piece.steps)
                    });
                    let index = known.unwrap_or_else(|| {
                        let (src, dst) = &lookups[group.group];
                        let made = segments::make(piece.range, piece.steps, several, src, dst);
                        segments.push((group.group, several, piece.clone(), made));
                        segments.len() - 1
                    });
                    binder.place(group, &piece, &segments[index].3);
                }
                join_neighbours(&mut binder.program, &mut binder.components);
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

/// Collects the nests of one route and group, and where they go.
#[derive(Default)]
struct Binder {
    program: Program,
    components: Vec<ComponentSet>,
}

impl Binder {
    fn place(&mut self, group: &RouteGroup, piece: &Piece, segments: &[Segment]) {
        self.program.placed.reserve(segments.len());
        let mut by_extent = NestsByExtent::default();
        for segment in segments {
            let extent = Extent {
                states: segment.states,
                blocks: segment.blocks,
                zero: (segment.src.state == 0, segment.dst.state == 0),
            };
            let (first, nests) = by_extent.get(extent, || {
                let nests = group.nests(&piece.classes, extent, None);
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
                    src: strided.src.at(segment.src.block, segment.src.state),
                    dst: strided.dst.at(segment.dst.block, segment.dst.state),
                });
            }
        }
    }
}

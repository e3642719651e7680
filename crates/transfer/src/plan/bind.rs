//! Binding a plan to the block tables of both sides.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use transload_layout::{Rank, Side};

use super::compile::Plan;
use super::extent::{Extent, NestsByExtent};
use super::join::join_neighbours;
use super::nest::ComponentSet;
use super::program::{Placed, Program};
use super::route::{Piece, RouteGroup, RouteShape};
use super::segments::{self, Segment};
use super::table::{BindError, Lookup, MAX_PLACES, Tables};

/// A plan with the block tables of both sides: what one process can run that reaches both memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlan {
    /// One for each route and group that has anything to move.
    pub routes: Vec<BoundRoute>,
}

/// What one source rank copies to one destination rank in one group.
///
/// Routes that differ in nothing but where they start share their places, so counting them costs
/// O(nests) each, however long a sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRoute {
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    /// Index of the group in the plan.
    pub group: usize,
    shape: Arc<BoundShape>,
    /// Where the shape starts on each side.
    start: (u64, u64),
}

/// What routes alike do, as if they started at 0 on both sides.
#[derive(Debug, Default, PartialEq, Eq)]
struct BoundShape {
    program: Program,
    /// For each nest, the components that it moves.
    components: Vec<ComponentSet>,
    /// For each nest, in how many places it runs.
    places: Vec<u64>,
}

/// Chunks of one length, of the same components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCount {
    /// The components that travel in each.
    pub components: ComponentSet,
    /// Bytes of each.
    pub length: u64,
    /// How many there are.
    pub chunks: u64,
}

impl BoundRoute {
    /// What to copy, in the addresses of that rank and group on each side. Costs O(places).
    pub fn program(&self) -> Program {
        let mut program = self.shape.program.clone();
        for place in &mut program.placed {
            place.src += self.start.0;
            place.dst += self.start.1;
        }
        program
    }

    /// For each nest of the [program](Self::program), the components that it moves.
    pub fn components(&self) -> &[ComponentSet] {
        &self.shape.components
    }

    /// Its chunks, counted nest by nest.
    pub fn chunk_counts(&self) -> impl Iterator<Item = ChunkCount> + '_ {
        let shape = &*self.shape;
        let nests = shape.program.nests.iter().zip(&shape.components);
        nests
            .zip(&shape.places)
            .map(|((nest, components), places)| ChunkCount {
                components: *components,
                length: nest.run,
                chunks: nest.chunks() * places,
            })
    }

    /// How many bytes it moves.
    pub fn bytes(&self) -> u64 {
        self.chunk_counts()
            .map(|count| count.length * count.chunks)
            .sum()
    }

    /// In how many chunks.
    pub fn chunks(&self) -> u64 {
        self.chunk_counts().map(|count| count.chunks).sum()
    }
}

impl BoundPlan {
    /// How many bytes move.
    pub fn bytes(&self) -> u64 {
        self.routes.iter().map(BoundRoute::bytes).sum()
    }

    /// In how many chunks.
    pub fn chunks(&self) -> u64 {
        self.routes.iter().map(BoundRoute::chunks).sum()
    }

    /// How many chunks there are of each length in bytes.
    pub fn histogram(&self) -> BTreeMap<u64, u64> {
        let mut chunks = BTreeMap::new();
        for count in self.routes.iter().flat_map(BoundRoute::chunk_counts) {
            *chunks.entry(count.length).or_default() += count.chunks;
        }
        chunks
    }
}

impl Plan {
    /// Binds all routes to the block tables of both sides. Runs merge across blocks that are
    /// neighbours on both sides, in whatever order the tables list them.
    ///
    /// # Errors
    /// When a table is too short, lists a block that does not exist, or would write one twice; or there are
    /// more than [`MAX_PLACES`].
    pub fn bind(&self, src: &Tables, dst: &Tables) -> Result<BoundPlan, BindError> {
        let mut lookups = Vec::with_capacity(self.groups.len());
        for group in 0..self.groups.len() {
            lookups.push((
                Lookup::new(self, group, Side::Source, src)?,
                Lookup::new(self, group, Side::Destination, dst)?,
            ));
        }
        // Most routes differ in units only, so they share their shapes, or at least their segments.
        let mut shapes: HashMap<RouteShape, Arc<BoundShape>> = HashMap::new();
        let mut segments = Vec::new();
        let mut places = 0u64;
        let mut routes = Vec::with_capacity(self.routes.len());
        for route in &self.routes {
            for parts in route.groups.chunk_by(|a, b| a.group == b.group) {
                let (shape, start) = RouteShape::of(parts);
                let group = parts[0].group;
                let shape = match shapes.entry(shape) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let more = parts.iter().map(RouteGroup::most_places);
                        places = more.fold(places, u64::saturating_add);
                        if places > MAX_PLACES {
                            return Err(BindError::TooManyPlaces);
                        }
                        let (src, dst) = &lookups[group];
                        let mut shape = BoundShape::make(parts, (src, dst), &mut segments);
                        shape.program.placed.iter_mut().for_each(|place| {
                            place.src -= start.0;
                            place.dst -= start.1;
                        });
                        new.insert(Arc::new(shape))
                    }
                };
                routes.push(BoundRoute {
                    src_rank: route.src_rank,
                    dst_rank: route.dst_rank,
                    group,
                    shape: shape.clone(),
                    start,
                });
            }
        }
        Ok(BoundPlan { routes })
    }
}

/// Segments that are made already: of which group and piece, and whether their ends are open.
type Segments = Vec<(usize, bool, Piece, Vec<Segment>)>;

impl BoundShape {
    fn make(
        parts: &[RouteGroup],
        (src, dst): (&Lookup<'_>, &Lookup<'_>),
        segments: &mut Segments,
    ) -> Self {
        let mut shape = Self::default();
        for part in parts {
            let pieces = part.pieces();
            let several = pieces.len() > 1;
            for piece in pieces {
                let known = segments.iter().position(|(of, open, known, _)| {
                    (*of, *open) == (part.group, several)
                        && (known.range, known.steps) == (piece.range, piece.steps)
                });
                let index = known.unwrap_or_else(|| {
                    let made = segments::make(piece.range, piece.steps, several, src, dst);
                    segments.push((part.group, several, piece.clone(), made));
                    segments.len() - 1
                });
                shape.place(part, &piece, &segments[index].3);
            }
        }
        join_neighbours(&mut shape.program, &mut shape.components);
        shape.places = vec![0; shape.program.nests.len()];
        for place in &shape.program.placed {
            shape.places[place.nest as usize] += 1;
        }
        shape
    }

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
            for (nest, strided) in (first..).zip(nests) {
                self.program.placed.push(Placed {
                    nest,
                    src: strided.src.at(segment.src.block, segment.src.state),
                    dst: strided.dst.at(segment.dst.block, segment.dst.state),
                });
            }
        }
    }
}

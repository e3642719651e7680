//! Binding a plan to the block tables of both sides.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use transload_layout::{Rank, Side};

use crate::extent::NestsByExtent;
use crate::join::join_neighbours;
use crate::nest::ComponentSet;
use crate::plan::Plan;
use crate::program::{Placed, Program};
use crate::route::{Class, Piece, RouteGroup, RouteShape};
use crate::segments;
use crate::sides::Sides;
use crate::table::{BindError, Lookup, MAX_PLACES, Tables};
use crate::tokens::Segment;

/// A plan with the block tables of both sides. A process that reaches both memories can run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlan {
    /// One entry for each route and group that has anything to move.
    pub routes: Vec<BoundRoute>,
}

/// The copies from one source rank to one destination rank in one group.
///
/// Routes that differ only in their start addresses share their places. So counting costs O(nests) for each of them,
/// however long a sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRoute {
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    /// The index of the group in the plan.
    pub group: usize,
    shape: Arc<BoundShape>,
    start: Sides<u64>,
}

/// The common part of routes of the same shape, as if they started at 0 on both sides.
#[derive(Debug, Default, PartialEq, Eq)]
struct BoundShape {
    program: Program,
    components: Vec<ComponentSet>,
    /// For each nest, the number of places where it runs.
    places: Vec<u64>,
}

/// The number of chunks with the same length and components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkCount {
    /// The components in each chunk.
    pub components: ComponentSet,
    /// The bytes of each chunk.
    pub length: u64,
    /// The number of chunks.
    pub chunks: u64,
}

impl BoundRoute {
    /// Returns the program of the copies, in the addresses of this rank and group on each side. Costs O(places).
    pub fn program(&self) -> Program {
        let mut program = self.shape.program.clone();
        for place in &mut program.placed {
            place.src += self.start.src;
            place.dst += self.start.dst;
        }
        program
    }

    /// Returns, for each nest of the [program](Self::program), the components that it moves.
    pub fn components(&self) -> &[ComponentSet] {
        &self.shape.components
    }

    /// Returns the route's chunks, counted for each nest.
    pub fn chunk_counts(&self) -> impl Iterator<Item = ChunkCount> + '_ {
        let shape = &*self.shape;
        let nests = shape.program.nests.iter().zip(&shape.components);
        nests.zip(&shape.places).map(|((nest, components), places)| ChunkCount {
            components: *components,
            length: nest.run,
            chunks: nest.chunks() * places,
        })
    }

    /// Returns the number of bytes that it moves.
    pub fn bytes(&self) -> u64 {
        self.chunk_counts().map(|count| count.length * count.chunks).sum()
    }

    /// Returns the number of chunks that it moves.
    pub fn chunks(&self) -> u64 {
        self.chunk_counts().map(|count| count.chunks).sum()
    }
}

impl BoundPlan {
    /// Returns the number of bytes that the whole plan moves.
    pub fn bytes(&self) -> u64 {
        self.routes.iter().map(BoundRoute::bytes).sum()
    }

    /// Returns the number of chunks of the whole transfer.
    pub fn chunks(&self) -> u64 {
        self.routes.iter().map(BoundRoute::chunks).sum()
    }

    /// Returns the number of chunks of each length in bytes.
    pub fn histogram(&self) -> BTreeMap<u64, u64> {
        let mut chunks = BTreeMap::new();
        for count in self.routes.iter().flat_map(BoundRoute::chunk_counts) {
            *chunks.entry(count.length).or_default() += count.chunks;
        }
        chunks
    }
}

impl Plan {
    /// Binds all routes to the block tables of both sides. Runs are merged across blocks that are neighbours on both
    /// sides, whatever their order in the tables.
    ///
    /// # Errors
    /// Returns an error if a table is too short, lists a missing block, or would write a block twice; or if there are
    /// more than [`MAX_PLACES`].
    pub fn bind(&self, src: &Tables, dst: &Tables) -> Result<BoundPlan, BindError> {
        let tables = Sides { src, dst };
        let lookups = Sides::try_of(|side| Lookup::of_plan(self, side, tables[side]))?;
        // Most routes differ only in their units, so they share their shapes or at least their segments.
        let mut shapes: HashMap<RouteShape, Arc<BoundShape>> = HashMap::new();
        let mut segments = Segments::new();
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
                        let shape = BoundShape::make(parts, &lookups, &mut segments, start);
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

/// Segments made so far, by group, class, and whether their ends are open.
type Segments = HashMap<(usize, Class, bool), Vec<Segment>>;

impl BoundShape {
    fn make(
        parts: &[RouteGroup],
        lookups: &Sides<Vec<Lookup<'_>>>,
        segments: &mut Segments,
        start: Sides<u64>,
    ) -> Self {
        let mut shape = Self::default();
        for part in parts {
            let pieces = part.pieces();
            let open = pieces.len() > 1;
            for piece in pieces {
                let made = segments.entry((part.group, piece.class, open));
                let made = made.or_insert_with(|| {
                    let lookups = Sides::of(|side| lookups[side][part.group]);
                    segments::make(piece.class, open, lookups)
                });
                shape.place(part, &piece, made, start);
            }
        }
        join_neighbours(&mut shape.program, &mut shape.components);
        shape.places = vec![0; shape.program.nests.len()];
        for place in &shape.program.placed {
            shape.places[place.nest as usize] += 1;
        }
        shape
    }

    fn place(&mut self, group: &RouteGroup, piece: &Piece, segments: &[Segment], start: Sides<u64>) {
        self.program.placed.reserve(segments.len());
        let mut by_extent = NestsByExtent::default();
        for segment in segments {
            let nests = by_extent.get(segment, |extent| {
                let nests = group.nests(&piece.classes, extent, None);
                let first = self.program.nests.len() as u32;
                for strided in &nests {
                    self.program.nests.push(strided.nest.clone());
                    self.components.push(strided.components);
                }
                (first, nests)
            });
            for (nest, strided) in nests {
                let own = |side| strided.at[side].at(segment.at[side]) - start[side];
                self.program.placed.push(Placed { nest, src: own(Side::Source), dst: own(Side::Destination) });
            }
        }
    }
}

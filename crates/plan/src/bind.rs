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
    start: Sides<u64>,
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
            place.src += self.start.src;
            place.dst += self.start.dst;
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
        nests.zip(&shape.places).map(|((nest, components), places)| ChunkCount {
            components: *components,
            length: nest.run,
            chunks: nest.chunks() * places,
        })
    }

    /// How many bytes it moves.
    pub fn bytes(&self) -> u64 {
        self.chunk_counts().map(|count| count.length * count.chunks).sum()
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
        let tables = Sides { src, dst };
        let lookups = Sides::try_of(|side| Lookup::of_plan(self, side, tables[side]))?;
        // Most routes differ in units only, so they share their shapes, or at least their segments.
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

/// Segments that are made already: of which group and class, and whether their ends are open.
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

//! The report of a plan: `transload.plan/1` and its table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use transload::layout::{Allocation, Deployment, Group, Spec};
use transload::transfer::Plan;
use transload::transfer::plan::program::{Program, split_address};
use transload::transfer::plan::{BoundPlan, BoundRoute, ComponentSet};

use super::link::Estimate;
use super::suggest::Suggestions;
use crate::show::histogram::{Bar, histogram};
use crate::show::table::Table;
use crate::show::{deployment, number};

pub(in crate::commands) struct Report<'a> {
    pub(in crate::commands) src: &'a Deployment,
    pub(in crate::commands) dst: &'a Deployment,
    pub(in crate::commands) plan: &'a Plan,
    pub(in crate::commands) bound: &'a BoundPlan,
    /// The time to compile and bind, from two checked deployments.
    pub(in crate::commands) compile: Duration,
    pub(in crate::commands) svg: Option<&'a Path>,
    pub(in crate::commands) estimate: Option<Estimate>,
    pub(in crate::commands) suggestions: Option<Suggestions>,
}

/// The schema `transload.plan/1`.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Json<'a> {
    schema: &'static str,
    digest: String,
    compile_ns: u128,
    request: Asked,
    totals: Totals,
    links: Links,
    /// The number of chunks of each length: `[bytes, chunks]`, ascending.
    histogram: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
    routes: Vec<Row<'a>>,
    /// The traffic between ranks: `[source rank, destination rank, bytes, chunks]`.
    matrix: Vec<[u64; 4]>,
    descriptors: DescriptorLists,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Estimate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestions: Option<Suggestions>,
}

/// The descriptor lists of an engine that lists every chunk.
#[derive(Debug, Serialize)]
struct DescriptorLists {
    /// The entries of each side's lists, over all ranks.
    each_side: u64,
    /// The memory of both sides' lists in bytes.
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Asked {
    start: u64,
    tokens: u64,
}

/// The pairs of a source rank and a destination rank.
#[derive(Debug, Serialize)]
struct Links {
    all: u64,
    idle: u64,
    idle_sources: Vec<u32>,
}

impl Links {
    fn text(&self, sources: u64) -> String {
        let idle = match self.idle_sources.len() {
            0 => "every source rank sends".to_owned(),
            1 => format!("source rank {} sends nothing", self.idle_sources[0]),
            n => format!("{n} of {sources} source ranks send nothing"),
        };
        format!("{} of {} have no traffic; {idle}", number::grouped(self.idle), number::count(self.all, "link"))
    }
}

#[derive(Debug, Serialize)]
struct Totals {
    bytes: u64,
    /// The bytes, counting those that several destination ranks need once.
    distinct_bytes: u64,
    chunks: u64,
    segments: u64,
    wire_bytes: u64,
}

/// The traffic from one source rank to one destination rank for one group, in chunks of the same components.
#[derive(Debug, Serialize)]
struct Row<'a> {
    src_rank: u32,
    dst_rank: u32,
    group: String,
    component: String,
    bytes: u64,
    chunks: u64,
    chunk_bytes: Range,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<List<'a>>,
}

#[derive(Debug, Serialize)]
struct Range {
    min: u64,
    max: u64,
}

/// Returns whether a cache with scales has an order that was made for caches without. Such an order is accepted, since
/// it may be intended, but it was probably copied.
fn mixes_scales(group: &Group) -> bool {
    let mut specs = group.specs().iter();
    specs.len() == 1
        && specs.any(|spec| matches!(spec, Spec::Compressed(_) | Spec::Indexer(_)))
        && group.physical_order().apart.is_none()
}

/// An entry of NIXL's lists: address, length and device, 8 bytes each.
const DESCRIPTOR_BYTES: u64 = 24;

/// The most routes that a table lists individually, and the most ranks of a matrix.
const MOST_ROWS: usize = 64;
const MOST_COLUMNS: usize = 16;

/// The bytes and chunks from each source rank to each destination rank.
type Matrix = BTreeMap<(u32, u32), (u64, u64)>;

impl<'a> Report<'a> {
    pub(in crate::commands) fn json(&self, list: bool) -> Json<'a> {
        let matrix = self.matrix();
        Json {
            schema: "transload.plan/1",
            digest: self.plan.digest().to_string(),
            compile_ns: self.compile.as_nanos(),
            request: Asked { start: self.plan.request().start, tokens: self.plan.request().tokens },
            links: self.links(&matrix),
            totals: Totals {
                bytes: self.bound.bytes(),
                distinct_bytes: self.plan.distinct_bytes(),
                chunks: self.bound.chunks(),
                segments: self.plan.segments(),
                wire_bytes: self.wire_bytes(),
            },
            histogram: (self.bound.histogram().into_iter()).map(|(length, chunks)| [length, chunks]).collect(),
            svg: self.svg.map(|file| file.display().to_string()),
            routes: self.rows(list),
            matrix: (matrix.into_iter())
                .map(|((src, dst), (bytes, chunks))| [src.into(), dst.into(), bytes, chunks])
                .collect(),
            descriptors: DescriptorLists {
                each_side: self.bound.chunks(),
                bytes: self.bound.chunks() * 2 * DESCRIPTOR_BYTES,
            },
            link: self.estimate,
            suggestions: self.suggestions.clone(),
        }
    }

    pub(in crate::commands) fn csv(&self) -> String {
        let mut text = String::from("src_rank,dst_rank,group,component,bytes,chunks,min_chunk_bytes,max_chunk_bytes\n");
        for row in self.rows(false) {
            // Names of groups contain neither commas nor quotes.
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{}",
                row.src_rank,
                row.dst_rank,
                row.group,
                row.component,
                row.bytes,
                row.chunks,
                row.chunk_bytes.min,
                row.chunk_bytes.max
            );
        }
        text
    }

    fn links(&self, matrix: &Matrix) -> Links {
        let (sources, destinations) = (self.src.ranks(), self.dst.ranks().count() as u64);
        let busy: BTreeSet<u32> = matrix.keys().map(|(src, _)| *src).collect();
        let all = sources.size_hint().0 as u64 * destinations;
        Links {
            all,
            idle: all - matrix.len() as u64,
            idle_sources: sources.map(|rank| rank.0).filter(|rank| !busy.contains(rank)).collect(),
        }
    }

    /// Sums over all groups.
    fn matrix(&self) -> Matrix {
        let mut matrix = BTreeMap::new();
        for route in &self.bound.routes {
            let ranks = (route.src_rank.0, route.dst_rank.0);
            let cell: &mut (u64, u64) = matrix.entry(ranks).or_default();
            cell.0 += route.bytes();
            cell.1 += route.chunks();
        }
        matrix
    }

    /// Formats the matrix as a table with a row for each source rank and a column for each destination rank. Returns
    /// `None` if that says no more than the routes do, or does not fit.
    fn matrix_table(&self, matrix: &Matrix) -> Option<String> {
        let [sources, destinations] = [self.src, self.dst].map(|side| side.ranks().count() as u32);
        let drawn = 2..=MOST_COLUMNS as u32;
        if !drawn.contains(&destinations) || sources > MOST_COLUMNS as u32 {
            return None;
        }
        let columns = (0..destinations).map(|rank| format!("|>to {rank}"));
        let mut table = Table::new(&(">from".to_owned() + &columns.collect::<String>()));
        for src in 0..sources {
            let cells = (0..destinations).map(|dst| match matrix.get(&(src, dst)) {
                Some((bytes, _)) => number::bytes(*bytes),
                None => "·".to_owned(),
            });
            table.row(std::iter::once(src.to_string()).chain(cells));
        }
        Some(table.finish())
    }

    pub(in crate::commands) fn table(&self) -> String {
        let mut text = deployment::sides([("source", self.src), ("destination", self.dst)]);
        let mut routes = Table::new(">from|>to|group|component|>bytes|>chunks|>chunk length");
        let rows = self.rows(false);
        let more = rows.len().saturating_sub(MOST_ROWS);
        for row in rows.into_iter().take(MOST_ROWS) {
            let Range { min, max } = row.chunk_bytes;
            let lengths = match min == max {
                true => number::bytes(min),
                false => format!("{} to {}", number::bytes(min), number::bytes(max)),
            };
            routes.row([
                row.src_rank.to_string(),
                row.dst_rank.to_string(),
                row.group,
                row.component,
                number::grouped(row.bytes),
                number::grouped(row.chunks),
                lengths,
            ]);
        }
        let (moved, chunks) = (self.bound.bytes(), self.bound.chunks());
        let bars = self.bound.histogram().into_iter();
        let bars: Vec<Bar> = bars.map(|(length, chunks)| Bar { length, chunks }).collect();
        let mut routes = routes.finish();
        if more > 0 {
            let _ = writeln!(routes, " and {} more; --format csv lists all", number::count(more as u64, "row"));
        }
        let matrix = self.matrix();
        if let Some(table) = self.matrix_table(&matrix) {
            let _ = write!(routes, "\n{table}");
        }
        let _ = write!(
            text,
            "\n{}\n{}\n {} from position {}: {} in {}, over {}\n \
             {} of them distinct; {}\n \
             planned in {}; on the wire the plan itself is {}; digest {:.16}\n",
            routes,
            histogram(&bars),
            number::count(self.plan.request().tokens, "token"),
            number::grouped(self.plan.request().start),
            number::count(moved, "byte"),
            number::count(chunks, "chunk"),
            number::count(self.plan.segments(), "segment"),
            match self.plan.distinct_bytes() {
                all if all == moved => "all".to_owned(),
                some => number::count(some, "byte"),
            },
            self.links(&matrix).text(self.src.ranks().count() as u64),
            number::time(self.compile),
            number::count(self.wire_bytes(), "byte"),
            self.plan.digest().to_string(),
        );
        let _ = writeln!(
            text,
            " an engine that lists every chunk needs {} on each side, {} of lists",
            number::count(chunks, "descriptor"),
            number::bytes(chunks * 2 * DESCRIPTOR_BYTES)
        );
        if let Some(estimate) = &self.estimate {
            text.push_str(&estimate.text());
        }
        if let Some(suggestions) = &self.suggestions {
            let _ = write!(text, "\n{}", suggestions.table());
        }
        if moved == 0 {
            text.push_str(" nothing is transferred: no state has its last token in the range\n");
        }
        if let Some(file) = self.svg {
            let _ = writeln!(text, " picture: {}", file.display());
        }
        // A warning and not an error, since an engine may really store scales in this way.
        for (side, deployment) in [("the source", self.src), ("the destination", self.dst)] {
            for group in deployment.groups().iter().filter(|group| mixes_scales(group)) {
                let _ = writeln!(
                    text,
                    " warning: in {side}'s group {}, the scales of each state directly follow its data, according to \
                     the order {};\n most engines store all data of a block before all its scales, as in LB[SD,SD]",
                    group.name(),
                    group.physical_order(),
                );
            }
        }
        text
    }

    /// Returns the bytes that the two sides exchange so that each can compile the plan alone and verify that both are
    /// equal: both documents, the token range and the digest.
    fn wire_bytes(&self) -> u64 {
        let documents = [self.src, self.dst].map(|side| postcard::to_allocvec(side.document()));
        let documents: usize = documents.iter().flatten().map(Vec::len).sum();
        let request = self.plan.request();
        let request = postcard::to_allocvec(&(request.start, request.tokens, request.by_layer));
        (documents + request.map_or(0, |r| r.len()) + self.plan.digest().0.len()) as u64
    }

    fn rows(&self, list: bool) -> Vec<Row<'a>> {
        self.bound.routes.iter().flat_map(|route| self.rows_of(route, list)).collect()
    }

    fn rows_of(&self, route: &BoundRoute, list: bool) -> Vec<Row<'a>> {
        let mut rows: BTreeMap<u64, (ComponentSet, Total)> = BTreeMap::new();
        for count in route.chunk_counts() {
            let row = rows.entry(count.components.0);
            let (_, total) = row.or_insert((count.components, Total::default()));
            total.add(count.length, count.chunks);
        }
        let group = self.plan.group_names().nth(route.group).unwrap_or_default();
        let layers = Layers::new(self, route, group);
        let program = list.then(|| route.program());
        let rows = rows.into_values().map(|(components, total)| Row {
            src_rank: route.src_rank.0,
            dst_rank: route.dst_rank.0,
            group: group.to_owned(),
            component: self.plan.component_names(route.group, components),
            bytes: total.bytes,
            chunks: total.chunks,
            chunk_bytes: Range { min: total.min.unwrap_or(0), max: total.max },
            list: program
                .as_ref()
                .map(|program| List { program: only(program, route.components(), components), layers }),
        });
        rows.collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    bytes: u64,
    chunks: u64,
    min: Option<u64>,
    max: u64,
}

impl Total {
    fn add(&mut self, length: u64, chunks: u64) {
        self.bytes += length * chunks;
        self.chunks += chunks;
        self.min = Some(self.min.map_or(length, |min| min.min(length)));
        self.max = self.max.max(length);
    }
}

/// Returns the part of a program that moves these components.
fn only(program: &Program, of: &[ComponentSet], components: ComponentSet) -> Program {
    let placed = program.placed.iter();
    let placed = placed.filter(|place| of[place.nest as usize] == components);
    Program { placed: placed.copied().collect(), nests: program.nests.clone() }
}

/// A list of every chunk, as offsets, or as layers and offsets.
#[derive(Clone, Debug)]
struct List<'a> {
    program: Program,
    layers: Layers<'a>,
}

/// The global layer ids of each side's allocations, if a side has one for each layer.
#[derive(Clone, Copy, Debug)]
struct Layers<'a>([Option<&'a [u32]>; 2]);

impl<'a> Layers<'a> {
    fn new(report: &Report<'a>, route: &BoundRoute, group: &str) -> Self {
        let side = |deployment: &'a Deployment, rank| {
            let (_, group): (usize, &'a Group) = deployment.group(group)?;
            let (_, stage) = deployment.split_rank(rank);
            let per_layer = group.allocation() == Allocation::PerLayer;
            per_layer.then(|| &group.layers().ids()[group.stage_slots(stage)])
        };
        Self([side(report.src, route.src_rank), side(report.dst, route.dst_rank)])
    }

    /// Returns the layer of a chunk from the allocations that contain it. If one side stores layers separately no chunk
    /// crosses layers, so the other side's layer is the same.
    fn of(self, slots: [usize; 2]) -> Option<u64> {
        let mut sides = self.0.into_iter().zip(slots);
        sides.find_map(|(layers, slot)| layers?.get(slot).copied().map(u64::from))
    }
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut result = Ok(());
        self.program.for_each_chunk(|src, dst, bytes| {
            if result.is_err() {
                return;
            }
            let ((src_slot, src), (dst_slot, dst)) = (split_address(src), split_address(dst));
            result = match self.layers.of([src_slot, dst_slot]) {
                None => list.serialize_element(&[src, dst, bytes]),
                Some(layer) => list.serialize_element(&[layer, src, layer, dst, bytes]),
            };
        });
        result?;
        list.end()
    }
}

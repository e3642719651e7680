//! A group of a transfer in a shape small enough to see: the same orders, ratios and kinds, fewer of each.

mod notes;
mod sizes;
mod specs;

use std::ops::Range;

use transload::layout::document::{Document, GroupDocument};
use transload::layout::{Deployment, Rank};
use transload::transfer::plan::{BlockTable, BoundPlan, Plan, Request, Side, Tables};

use self::sizes::{Ranks, Size};
use super::cells::{Blocks, Memory, grains};

/// The most cells of one side that a picture shows.
const MOST_CELLS: u128 = 160;

/// The most that it shows where a smaller shape tells the same.
const GOOD_CELLS: u128 = 64;

/// The most ranks of one side.
const MOST_RANKS: usize = 8;

/// A transfer: both sides, the plan between them, and its block tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) src: &'a Deployment,
    pub(crate) dst: &'a Deployment,
    pub(crate) plan: &'a Plan,
    pub(crate) bound: &'a BoundPlan,
    /// Those that `bound` is bound to.
    pub(crate) tables: (&'a Tables, &'a Tables),
}

/// What a picture of one group shows.
#[derive(Debug)]
pub(super) struct Miniature {
    pub(super) src: Deployment,
    pub(super) dst: Deployment,
    /// Its plan's groups are those of the two deployments.
    pub(super) plan: Plan,
    pub(super) bound: BoundPlan,
    /// Which of the plan's groups is shown.
    pub(super) group: usize,
    pub(super) blocks: (Blocks, Blocks),
    /// The ranks that are shown.
    pub(super) ranks: (Vec<Rank>, Vec<Rank>),
    /// What was made smaller, in words; empty where it is drawn as it is.
    pub(super) scaled: Vec<String>,
}

impl Miniature {
    /// The group number `group` of a plan, as it is if that can be seen, else smaller.
    pub(super) fn new(scene: &Scene<'_>, group: usize) -> Option<Self> {
        if let Some(real) = Self::as_it_is(scene, group) {
            return Some(real);
        }
        let all: Vec<usize> = (0..scene.plan.group_names().len()).collect();
        let mut best: Option<Self> = None;
        for ranks in [true, false].map(|strict| Ranks::of(scene, &all, strict)) {
            for size in Size::candidates(scene, group, &ranks) {
                let Some(made) = Self::scaled(scene, group, &ranks, &size) else {
                    continue;
                };
                let cells = made.cells();
                if cells <= GOOD_CELLS {
                    return Some(made);
                }
                if best.as_ref().is_none_or(|best| cells < best.cells()) {
                    best = Some(made);
                }
            }
        }
        best.map(Self::with_fewer_ranks)
    }

    fn as_it_is(scene: &Scene<'_>, group: usize) -> Option<Self> {
        // Before anything large is copied.
        if [scene.src, scene.dst]
            .iter()
            .any(|side| side.ranks().count() > MOST_RANKS)
        {
            return None;
        }
        let entries = |side, tables: &Tables| {
            let table = tables.0.get(group);
            let entries = scene.plan.table_entries(group, side);
            // What no picture could hold is not listed either.
            let entries = entries.start..entries.end.min(entries.start + MOST_CELLS as u64 + 1);
            entries
                .filter_map(|entry| Some((entry, block(table?, entry)?)))
                .collect()
        };
        let made = Self {
            src: scene.src.clone(),
            dst: scene.dst.clone(),
            plan: scene.plan.clone(),
            bound: BoundPlan { routes: Vec::new() },
            group,
            blocks: (
                entries(Side::Source, scene.tables.0),
                entries(Side::Destination, scene.tables.1),
            ),
            ranks: (scene.src.ranks().collect(), scene.dst.ranks().collect()),
            scaled: Vec::new(),
        };
        made.is_small().then(|| Self {
            bound: scene.bound.clone(),
            ..made
        })
    }

    fn scaled(scene: &Scene<'_>, group: usize, ranks: &Ranks, size: &Size) -> Option<Self> {
        let side = |side| {
            let real = match side {
                Side::Source => scene.src,
                Side::Destination => scene.dst,
            };
            let index = scene.plan.group_of(side, group);
            let (tp, pp) = ranks.of_side(side);
            let (block_size, num_blocks) = size.blocks(side);
            let document = real.document().groups.get(index)?;
            let room = match scattered(scene, group, side) {
                true => 2 * num_blocks,
                // Blocks that the request does not touch keep others apart, such as those of two layers.
                false => {
                    num_blocks + u64::from(document.num_blocks > touched(scene, group, side).end)
                }
            };
            let document = Document {
                name: real.name().to_owned(),
                model: None,
                tp: tp.into(),
                pp: pp.into(),
                num_layers: Some(size.layers),
                pp_layers: None,
                groups: vec![GroupDocument {
                    layers: format!("0-{}", size.layers - 1),
                    block_size,
                    num_blocks: room,
                    offset: 0,
                    block_stride: None,
                    layer_stride: None,
                    specs: specs::smaller(&document.specs, ranks, size),
                    ..document.clone()
                }],
            };
            Deployment::from_document(document).ok()
        };
        let (src, dst) = (side(Side::Source)?, side(Side::Destination)?);
        let request = Request {
            start: size.start,
            ..Request::tokens(size.tokens)
        };
        let plan = Plan::compile(&src, &dst, &request).ok()?;
        let blocks = |side| -> Blocks {
            let (_, blocks) = size.blocks(side);
            let entries = 0..blocks as u32;
            match scattered(scene, group, side) {
                true => (0..).zip(apart(blocks as u32, side)).collect(),
                false => entries.map(|entry| (entry.into(), entry)).collect(),
            }
        };
        let blocks = (blocks(Side::Source), blocks(Side::Destination));
        let table = |blocks: &Blocks| {
            let blocks: Vec<u32> = blocks.iter().map(|(_, block)| *block).collect();
            Tables(vec![blocks.into()])
        };
        let bound = plan.bind(&table(&blocks.0), &table(&blocks.1)).ok()?;
        let mut made = Self {
            blocks,
            ranks: (src.ranks().collect(), dst.ranks().collect()),
            src,
            dst,
            plan,
            bound,
            group: 0,
            scaled: Vec::new(),
        };
        made.scaled = notes::differences(scene, group, &made);
        if made.splits_content() {
            made.scaled.push("a few elements of each".to_owned());
        }
        Some(made)
    }

    /// One side's memory.
    pub(super) fn memory(&self, side: Side) -> Memory<'_> {
        let (deployment, blocks) = match side {
            Side::Source => (&self.src, &self.blocks.0),
            Side::Destination => (&self.dst, &self.blocks.1),
        };
        Memory {
            deployment,
            group: &deployment.groups()[self.plan.group_of(side, self.group)],
            blocks,
        }
    }

    /// The ranks of one side that are shown.
    pub(super) fn shown(&self, side: Side) -> &[Rank] {
        match side {
            Side::Source => &self.ranks.0,
            Side::Destination => &self.ranks.1,
        }
    }

    /// Whether the elements of a content lie apart on one of the sides.
    fn splits_content(&self) -> bool {
        let grains = grains(&self.memory(Side::Source), &self.memory(Side::Destination));
        grains.iter().any(|grain| !grain.axes.is_empty())
    }

    /// Of the side that has more.
    fn cells(&self) -> u128 {
        let (src, dst) = (self.memory(Side::Source), self.memory(Side::Destination));
        let grains = grains(&src, &dst);
        let of = |memory: Memory<'_>, ranks: &[Rank]| -> u128 {
            ranks.iter().map(|rank| memory.count(*rank, &grains)).sum()
        };
        of(src, &self.ranks.0).max(of(dst, &self.ranks.1))
    }

    fn is_small(&self) -> bool {
        let ranks = self.ranks.0.len().max(self.ranks.1.len());
        ranks <= MOST_RANKS && self.cells() <= MOST_CELLS
    }

    /// As many destination ranks as can be seen, and the sources that they read from.
    fn with_fewer_ranks(mut self) -> Self {
        let (src, dst) = std::mem::take(&mut self.ranks);
        for rank in &dst {
            let reads = |from: &&Rank| self.plan.route(**from, *rank).is_some();
            let sources: Vec<Rank> = src.iter().filter(reads).copied().collect();
            let before = self.ranks.clone();
            self.ranks.1.push(*rank);
            self.ranks.0.extend(sources);
            self.ranks.0.sort_unstable();
            self.ranks.0.dedup();
            if !self.is_small() && !before.1.is_empty() {
                self.ranks = before;
                break;
            }
        }
        for (shown, all, of) in [
            (self.ranks.0.len(), src.len(), "source"),
            (self.ranks.1.len(), dst.len(), "destination"),
        ] {
            if shown < all {
                self.scaled.push(format!("{shown} of {all} {of} ranks"));
            }
        }
        self
    }
}

/// Entries of a side's table that the request touches.
fn touched(scene: &Scene<'_>, group: usize, side: Side) -> Range<u64> {
    scene.plan.table_entries(group, side)
}

/// Whether a table lists blocks that do not follow one another.
fn scattered(scene: &Scene<'_>, group: usize, side: Side) -> bool {
    let tables = match side {
        Side::Source => scene.tables.0,
        Side::Destination => scene.tables.1,
    };
    let Some(BlockTable::List(blocks)) = tables.0.get(group) else {
        return false;
    };
    let touched = touched(scene, group, side);
    let end = usize::try_from(touched.end)
        .unwrap_or(usize::MAX)
        .min(blocks.len());
    let start = usize::try_from(touched.start)
        .unwrap_or(usize::MAX)
        .min(end);
    let mut pairs = blocks[start..end].windows(2);
    pairs.any(|two| two[0].checked_add(1) != Some(two[1]))
}

/// So many blocks out of twice as many, no two of them neighbours, and in no order: another on each side.
fn apart(blocks: u32, side: Side) -> Vec<u32> {
    let (odd, even) = ((1..blocks).step_by(2), (0..blocks).step_by(2));
    let mut apart: Vec<u32> = odd.chain(even).map(|block| 2 * block).collect();
    if side == Side::Destination {
        apart.reverse();
    }
    apart
}

/// The block of an entry of a table.
fn block(table: &BlockTable, entry: u64) -> Option<u32> {
    match table {
        BlockTable::Identity => u32::try_from(entry).ok(),
        BlockTable::List(blocks) => {
            let block = blocks.get(usize::try_from(entry).ok()?);
            block.copied().filter(|block| *block != BlockTable::NONE)
        }
    }
}

//! Conversion between an engine's layout and pieces, for one group on one rank.
//!
//! The archive's layout is one more deployment: the engine's own ranks, one block of 256 tokens, and an order in which
//! every piece is contiguous in each layer. A plan between the two moves the bytes. Differences in TP and PP between
//! saver and reader do not matter, because pieces belong to no rank.

use std::ops::Range;

use transload_layout::document::Document;
use transload_layout::spec::{ConvLayout, States};
use transload_layout::{Allocation, Axis, ComponentView, Deployment, Dim, Rank, Spec};
use transload_memory::Memory;
use transload_plan::codec::{Codec, Rows};
use transload_plan::{BlockTable, Plan, Request, Tables};

use crate::ArchiveError;
use crate::cache::{Cache, copy};
use crate::key::TOKEN_CHUNK;
use crate::record::Piece;
use crate::shape::{GroupShape, Growth};

#[derive(Clone, Debug)]
pub(crate) struct RankGroup {
    engine: Deployment,
    archive: Deployment,
    rank: Rank,
    recurrent: bool,
    /// The layers that this rank holds, as indices into the group's layers.
    pub(crate) layers: Range<u32>,
    pub(crate) classes: Vec<RankClass>,
    bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct RankClass {
    pub(crate) units: Range<u64>,
    /// Whether this rank is the first of those that hold these units. The first one saves them.
    pub(crate) first: bool,
    pub(crate) members: Vec<Member>,
}

/// The location of a component in the archive block, or of several that are adjacent in every state.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    offset: u64,
    unit_stride: u64,
    layer_stride: u64,
    /// The bytes of one state of one unit. States are contiguous.
    pub(crate) state: u64,
    /// The tokens of one state; 0 if one state stands for the whole sequence.
    tokens: u64,
    /// How a codec interprets the states; `None` if no codec encodes them.
    pub(crate) rows: Option<Rows>,
}

/// The tokens `[from, to)` of one group within one token chunk; see [`Segment`](crate::record::Segment).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl RankGroup {
    /// Returns the group on `rank`, or `None` if that rank holds none of its layers.
    pub(crate) fn new(shape: &GroupShape, deployment: &Deployment, rank: Rank) -> Result<Option<Self>, ArchiveError> {
        let (tp_rank, stage) = deployment.split_rank(rank);
        let position = deployment.groups().iter().position(|group| group.name() == shape.name);
        let Some(position) = position else {
            return Err(ArchiveError::NoGroup { group: shape.name.clone() });
        };
        // With packed heads, the heads of an entry depend on the TP size, and their bytes cannot be separated.
        let packed = |spec: &Spec| matches!(spec, Spec::Opaque(spec) if spec.packed_heads.is_some());
        if deployment.tp() > 1 && shape.specs.iter().any(packed) {
            return Err(ArchiveError::layout(&shape.name, "heads lie inside its entries (packed_heads), and tp > 1"));
        }
        if deployment.groups()[position].dcp() > 1 {
            return Err(ArchiveError::layout(&shape.name, "its tokens are dealt out to several ranks (dcp)"));
        }
        let slots = deployment.groups()[position].stage_slots(stage);
        if slots.is_empty() {
            return Ok(None);
        }
        let engine = single_group(deployment, position, |_| {})?;
        let archive = single_group(deployment, position, |document| {
            let group = &mut document.groups[0];
            group.block_size = TOKEN_CHUNK;
            group.num_blocks = 1;
            group.allocation = Allocation::One;
            group.offset = 0;
            group.drop_strides();
            group.order = piece_order(group.specs.as_slice());
            for spec in &mut group.specs {
                if let Some(layout) = spec.conv_layout_mut() {
                    *layout = ConvLayout::Ds;
                }
            }
        })?;
        let placed = &archive.groups()[0];
        let views: Vec<ComponentView> = placed.views(tp_rank, stage).collect();
        let classes = shape.classes.iter().map(|class| {
            let of_class = |view: &&ComponentView| class.members.contains(&(view.spec, view.component));
            let views: Vec<&ComponentView> = views.iter().filter(of_class).collect();
            let (spec, component) = class.members[0];
            let partition = shape.specs[spec].geometry().components[component].partition;
            let holders = partition.holders(deployment.tp(), views[0].units.start);
            Ok(RankClass {
                units: views[0].units.clone(),
                first: holders.is_ok_and(|holders| holders.start == tp_rank),
                members: members(shape, &views)?,
            })
        });
        let bytes = placed.placement(stage).allocation_bytes;
        Ok(Some(Self {
            classes: classes.collect::<Result<_, ArchiveError>>()?,
            bytes: usize::try_from(bytes).map_err(|_| ArchiveError::layout(&shape.name, "too large"))?,
            layers: slots.start as u32..slots.end as u32,
            recurrent: shape.growth == Growth::Recurrent,
            engine,
            archive,
            rank,
        }))
    }

    pub(crate) fn block(&self) -> Result<Memory, ArchiveError> {
        Ok(Memory::allocate(&[self.bytes])?)
    }

    pub(crate) fn gather(
        &self,
        span: Span,
        (cache, table): (&Cache, &BlockTable),
        block: &Memory,
    ) -> Result<(), ArchiveError> {
        let plan = self.plan(&self.engine, &self.archive, span)?;
        let tables = (&Tables(vec![table.clone()]), &self.block_table(span));
        run(&plan, tables, cache, &block.clone().into())
    }

    pub(crate) fn scatter(
        &self,
        span: Span,
        block: &Memory,
        (cache, table): (&Cache, &BlockTable),
    ) -> Result<(), ArchiveError> {
        let plan = self.plan(&self.archive, &self.engine, span)?;
        let tables = (&self.block_table(span), &Tables(vec![table.clone()]));
        run(&plan, tables, &block.clone().into(), cache)
    }

    pub(crate) fn has(&self, span: Span, table: &BlockTable) -> Result<bool, ArchiveError> {
        let plan = self.plan(&self.engine, &self.archive, span)?;
        let BlockTable::List(blocks) = table else {
            return Ok(true);
        };
        let entries = plan.table_entries(0, transload_layout::Side::Source);
        let held = |entry: u64| {
            let block = usize::try_from(entry).ok().and_then(|entry| blocks.get(entry));
            block.is_some_and(|block| *block != BlockTable::NONE)
        };
        Ok(entries.into_iter().all(held))
    }

    /// Checks that the engine's table has a separate block for each entry that a range of tokens uses.
    pub(crate) fn check_table(&self, span: Span, table: &BlockTable) -> Result<(), ArchiveError> {
        let plan = self.plan(&self.engine, &self.engine, span)?;
        let tables = Tables(vec![table.clone()]);
        plan.bind(&tables, &tables)?;
        Ok(())
    }

    pub(crate) fn unit_bytes(&self, class: usize, layers: u32, span: Span) -> u64 {
        let members = self.classes[class].members.iter();
        let layer = members.map(|member| {
            let (first, end) = member.states(span);
            (end - first) * member.state
        });
        layer.sum::<u64>() * u64::from(layers)
    }

    /// Reads the bytes of some units over all layers of this rank. They are ordered by unit, then layer, then component
    /// of the class, then state, then content.
    pub(crate) fn read_piece(
        &self,
        block: &Memory,
        class: usize,
        units: Range<u64>,
        span: Span,
    ) -> Result<Vec<u8>, ArchiveError> {
        let layers = self.layers.end - self.layers.start;
        let bytes = self.unit_bytes(class, layers, span) * (units.end - units.start);
        let mut piece = vec![0; bytes as usize];
        let mut rest = piece.as_mut_slice();
        for unit in units {
            for (address, len) in self.runs(class, unit, 0..layers, span) {
                let (run, behind) = rest.split_at_mut(len);
                block.read(address, run)?;
                rest = behind;
            }
        }
        Ok(piece)
    }

    /// Writes this rank's share of a piece into an archive block. `data` has the length of the piece.
    pub(crate) fn write_piece(
        &self,
        block: &Memory,
        piece: &Piece,
        span: Span,
        data: &[u8],
    ) -> Result<(), ArchiveError> {
        let Some((units, layers)) = self.share(piece) else {
            return Ok(());
        };
        let class = piece.class as usize;
        let unit_bytes = self.unit_bytes(class, piece.layers, span);
        let before = self.unit_bytes(class, layers.start - piece.layer, span);
        let own = layers.start - self.layers.start..layers.end - self.layers.start;
        for unit in units {
            let mut at = ((unit - piece.unit) * unit_bytes + before) as usize;
            for (address, len) in self.runs(class, unit, own.clone(), span) {
                block.write(address, &data[at..at + len])?;
                at += len;
            }
        }
        Ok(())
    }

    pub(crate) fn share(&self, piece: &Piece) -> Option<(Range<u64>, Range<u32>)> {
        let own = &self.classes[piece.class as usize].units;
        let units = piece.unit.max(own.start)..(piece.unit + piece.units).min(own.end);
        let end = piece.layer + piece.layers;
        let layers = piece.layer.max(self.layers.start)..end.min(self.layers.end);
        (!units.is_empty() && !layers.is_empty()).then_some((units, layers))
    }

    /// Returns the location of a unit in the archive block as (address, bytes), with neighbours joined.
    fn runs(&self, class: usize, unit: u64, layers: Range<u32>, span: Span) -> Vec<(u64, usize)> {
        let class = &self.classes[class];
        let unit = unit - class.units.start;
        let mut runs: Vec<(u64, usize)> = Vec::new();
        for layer in layers {
            for member in &class.members {
                let (first, end) = member.states(span);
                let address = member.offset
                    + unit * member.unit_stride
                    + u64::from(layer) * member.layer_stride
                    + first * member.state;
                let len = ((end - first) * member.state) as usize;
                match runs.last_mut() {
                    Some((start, so_far)) if *start + *so_far as u64 == address => *so_far += len,
                    _ => runs.push((address, len)),
                }
            }
        }
        runs
    }

    fn plan(&self, src: &Deployment, dst: &Deployment, span: Span) -> Result<Plan, ArchiveError> {
        // A recurrent state is part of the transfer of any token, so request all from the first on.
        let start = if self.recurrent { 0 } else { span.from };
        let request = Request { start, tokens: span.to - start, by_layer: false, codec: Codec::Exact };
        Ok(Plan::compile_route(src, dst, &request, self.rank, self.rank)?)
    }

    fn block_table(&self, span: Span) -> Tables {
        let chunk = if self.recurrent { 0 } else { (span.to - 1) / TOKEN_CHUNK };
        let mut blocks = vec![BlockTable::NONE; chunk as usize];
        blocks.push(0);
        Tables(vec![BlockTable::List(blocks)])
    }
}

impl Member {
    /// Returns the states of a token chunk that a span contains. A state of k tokens belongs to the span with its last
    /// token.
    pub(crate) fn states(&self, span: Span) -> (u64, u64) {
        if self.tokens == 0 {
            return (0, 1);
        }
        let chunk = (span.to - 1) / TOKEN_CHUNK * TOKEN_CHUNK;
        ((span.from - chunk) / self.tokens, (span.to - chunk) / self.tokens)
    }
}

fn run(plan: &Plan, (src, dst): (&Tables, &Tables), from: &Cache, to: &Cache) -> Result<(), ArchiveError> {
    for route in plan.bind(src, dst)?.routes {
        copy(&route.program(), from, to)?;
    }
    Ok(())
}

/// Returns the deployment with only one of its groups, without windows, because this crate decides which tokens to
/// move.
fn single_group(
    deployment: &Deployment,
    group: usize,
    change: impl FnOnce(&mut Document),
) -> Result<Deployment, ArchiveError> {
    let mut document = deployment.document().clone();
    // Keep the split into pipeline stages of the whole model.
    let layers = (0..deployment.pp()).map(|stage| deployment.stage_layers(stage));
    document.pp_layers = Some(layers.map(|layers| layers.len() as u64).collect());
    document.num_layers = Some(u64::from(deployment.stage_layers(deployment.pp() - 1).end));
    document.groups = vec![document.groups.swap_remove(group)];
    for spec in &mut document.groups[0].specs {
        *spec = spec.without_window();
    }
    change(&mut document);
    Ok(Deployment::from_document(document)?)
}

/// Returns an order in which the bytes of one unit are contiguous in each layer.
fn piece_order(specs: &[Spec]) -> Option<String> {
    let [spec] = specs else {
        return None;
    };
    let geometry = spec.geometry();
    match (geometry.states, geometry.components_apart) {
        (States::Sequence, _) => None,
        (States::PerTokens(_), false) => Some("BHLSC".to_owned()),
        (States::PerTokens(_), true) => {
            let apart = vec!["SD"; geometry.components.len()];
            Some(format!("BHL[{}]", apart.join(",")))
        }
    }
}

/// Returns the components of a class. Those that are adjacent in every state are joined.
fn members(shape: &GroupShape, views: &[&ComponentView]) -> Result<Vec<Member>, ArchiveError> {
    let mut members = Vec::new();
    let mut views = views.iter().peekable();
    while let Some(view) = views.next() {
        let states = view.view.dim(Axis::State);
        let mut state = content_bytes(view);
        let mut last = view.component;
        let strides = |view: &ComponentView| {
            [Axis::Layer, Axis::Unit, Axis::State].map(|axis| {
                let dim = view.view.dim(axis);
                (dim.extent, dim.stride)
            })
        };
        // Keys and values of one state are adjacent, followed by those of the next state.
        while let Some(next) = views.peek()
            && next.spec == view.spec
            && strides(next) == strides(view)
            && next.view.offset == view.view.offset + state
        {
            state += content_bytes(next);
            last = next.component;
            views.next();
        }
        if states.extent > 1 && states.stride != state || !dense(view) {
            return Err(ArchiveError::layout(&shape.name, "the states of a head are not contiguous"));
        }
        members.push(Member {
            offset: view.view.offset,
            unit_stride: view.view.dim(Axis::Unit).stride,
            layer_stride: view.view.dim(Axis::Layer).stride,
            state,
            tokens: shape.specs[view.spec].tokens_per_state().unwrap_or(0),
            rows: Rows::of(&shape.specs[view.spec], view.component..=last),
        });
    }
    Ok(members)
}

fn is_content(dim: &&Dim) -> bool {
    matches!(dim.axis, Axis::Content(_) | Axis::Byte)
}

fn content_bytes(view: &ComponentView) -> u64 {
    view.view.dims.iter().filter(is_content).map(|dim| dim.extent).product()
}

fn dense(view: &ComponentView) -> bool {
    let content: Vec<&Dim> = view.view.dims.iter().filter(is_content).collect();
    let mut expected = 1;
    content.iter().rev().all(|dim| {
        let fits = dim.extent == 1 || dim.stride == expected;
        expected *= dim.extent;
        fits
    })
}

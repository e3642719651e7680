//! What decides whether two states can be told apart from their rows alone, and how rows lie in memory.
//!
//! The archive and its planner know memory as deployments. That of a state has blocks of one token, which are its cells, in
//! whatever order; each layer is an allocation of its own, since there is something in front of it; and the layers whose
//! rows have one type and length make a group. Rows of numbers are vectors of these, which is what it takes to transpose them; any
//! other type is opaque.

use std::collections::BTreeMap;

use transload_layout::document::{Document, GroupDocument};
use transload_layout::spec::{Mla, Opaque, Spec};
use transload_layout::{Allocation, Deployment, Dtype, Rank};
use transload_memory::copy::{CopyOptions, copy};
use transload_memory::{Access, Memory};
use transload_plan::codec::Codec;
use transload_plan::{BlockTable, Plan, Request, Side, Tables};

use super::LlamaError;
use super::format::LAYER_HEAD;

/// What one cell stores of the keys, or of the values, of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rows {
    /// The type, as llama.cpp numbers them.
    pub(super) kind: i32,
    pub(super) bytes: u64,
}

/// The rows of all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    /// Of the keys of each layer, and then of the values, if there are any.
    pub(super) rows: Vec<Rows>,
}

/// How the rows of all layers lie in some bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowLayout {
    pub(super) cells: usize,
    /// Whether values are transposed.
    pub(super) transposed: bool,
    /// Where the first layer begins.
    pub(super) at: usize,
    /// Bytes in front of the rows of each layer.
    pub(super) head: usize,
}

impl Rows {
    /// Bytes of one number, of types that are made of numbers.
    pub(super) fn element(&self) -> Option<u64> {
        self.dtype().map(Dtype::bytes)
    }

    pub(super) fn dtype(&self) -> Option<Dtype> {
        match self.kind {
            0 => Some(Dtype::F32),
            1 => Some(Dtype::F16),
            30 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// The name of the type, or its number among llama.cpp's.
    pub(super) fn type_name(&self) -> String {
        let name = match self.kind {
            2 => "q4_0",
            3 => "q4_1",
            6 => "q5_0",
            7 => "q5_1",
            8 => "q8_0",
            20 => "iq4_nl",
            kind => {
                return self.dtype().map_or_else(|| format!("type {kind}"), |t| t.to_string());
            }
        };
        name.to_owned()
    }

    fn spec(&self) -> Spec {
        match self.dtype() {
            Some(dtype) => Spec::Mla(Mla { latent: self.bytes / dtype.bytes(), dtype, sliding_window: None }),
            None => Spec::Opaque(Opaque { heads: 1, entry_bytes: self.bytes, tokens_per_state: 1, packed_heads: None }),
        }
    }
}

impl Shape {
    /// Bytes of one cell over all layers.
    pub(super) fn cell_bytes(&self) -> u64 {
        self.rows.iter().map(|rows| rows.bytes).sum()
    }

    /// Places in `rows` of the members of each group. The type is a part of the name, and so of what the archive tells
    /// caches apart by: rows of two quantized types can be equally long.
    fn groups(&self) -> BTreeMap<String, Vec<usize>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, rows) in self.rows.iter().enumerate() {
            let side = if place < self.layers { "k" } else { "v" };
            let name = format!("{side}-{}-{}", rows.kind, rows.bytes);
            groups.entry(name).or_default().push(place);
        }
        groups
    }

    /// Rows that lie like this, as a deployment.
    pub(super) fn deployment(&self, layout: &RowLayout) -> Result<Deployment, LlamaError> {
        let groups = self.groups().into_iter().map(|(name, places)| {
            let values = places[0] >= self.layers;
            let layers = places.iter().map(|place| (place % self.layers).to_string());
            let order = match values && layout.transposed {
                true => "LCBSH",
                false => "LBSHC",
            };
            GroupDocument {
                name,
                layers: layers.collect::<Vec<_>>().join(","),
                block_size: 1,
                num_blocks: layout.cells as u64,
                order: Some(order.to_owned()),
                allocation: Allocation::PerLayer,
                offset: 0,
                block_stride: None,
                layer_stride: None,
                specs: vec![self.rows[places[0]].spec()],
            }
        });
        Ok(Deployment::from_document(Document {
            name: "llama.cpp".to_owned(),
            model: None,
            tp: 1,
            pp: 1,
            num_layers: Some(self.layers as u64),
            pp_layers: None,
            groups: groups.collect(),
        })?)
    }

    /// Lets `work` have the rows that lie in `len` bytes from `start` on: a memory for each group.
    ///
    /// # Safety
    /// The bytes can be read, and written if `access` says so, until this returns, and no reference to them is used
    /// meanwhile. `work` keeps no clone of a memory.
    pub(super) unsafe fn with_memories<T>(
        &self,
        layout: &RowLayout,
        (start, len): (*mut u8, usize),
        access: Access,
        work: impl FnOnce(&[Memory]) -> Result<T, LlamaError>,
    ) -> Result<T, LlamaError> {
        let mut at = layout.at;
        let parts = self.rows.iter().map(|rows| {
            // The parser, or who made the bytes, has seen that they fit.
            let bytes = rows.bytes as usize * layout.cells;
            let from = at + layout.head;
            at = from + bytes;
            assert!(at <= len, "rows lie inside the bytes");
            (start.wrapping_add(from), bytes)
        });
        let parts: Vec<_> = parts.collect();
        let memories = self.groups().into_values().map(|places| {
            let parts: Vec<_> = places.into_iter().map(|place| parts[place]).collect();
            // SAFETY: the parts are inside the bytes, which the caller keeps until no memory is there any more.
            unsafe { Memory::from_raw_parts(&parts, access, None) }
        });
        work(&memories.collect::<Result<Vec<_>, _>>()?)
    }

    /// Copies the rows of some tokens.
    pub(super) fn copy(
        &self,
        tokens: std::ops::Range<usize>,
        (from, of_from, from_table): (&[Memory], &RowLayout, &BlockTable),
        (to, of_to, to_table): (&[Memory], &RowLayout, &BlockTable),
    ) -> Result<(), LlamaError> {
        let request =
            Request { start: tokens.start as u64, tokens: tokens.len() as u64, by_layer: false, codec: Codec::Exact };
        let (src, dst) = (self.deployment(of_from)?, self.deployment(of_to)?);
        let plan = Plan::compile_route(&src, &dst, &request, Rank(0), Rank(0))?;
        let tables = |table: &BlockTable| Tables(vec![table.clone(); from.len()]);
        for route in plan.bind(&tables(from_table), &tables(to_table))?.routes {
            let from = &from[plan.group_of(Side::Source, route.group)];
            let to = &to[plan.group_of(Side::Destination, route.group)];
            copy(&route.program(), from, to, &CopyOptions { threads: Some(1), ..CopyOptions::default() })?;
        }
        Ok(())
    }
}

impl RowLayout {
    /// As rows are kept: one behind the other, layer by layer.
    pub(super) fn dense(cells: usize) -> Self {
        Self { cells, transposed: false, at: 0, head: 0 }
    }

    /// As in a state, whose first layer begins at `at`.
    pub(super) fn in_state(cells: usize, transposed: bool, at: usize) -> Self {
        Self { cells, transposed, at, head: LAYER_HEAD }
    }
}

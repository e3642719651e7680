//! The shape of a state's rows, and their layout in memory.
//!
//! The archive and its planner describe memory as deployments. The deployment of a state has blocks of one token, which
//! are the cells in any order. Each layer is an allocation of its own, since a header precedes its rows. Layers whose
//! rows have the same type and length form a group. Rows of numbers are described as vectors, so that they can be
//! transposed; rows of any other type are opaque.

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

/// The keys or values that one cell stores for a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rows {
    /// The type, in llama.cpp's numbering.
    pub(super) kind: i32,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    /// The keys of each layer, and then the values, if there are any.
    pub(super) rows: Vec<Rows>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RowLayout {
    pub(super) cells: usize,
    pub(super) transposed: bool,
    /// The offset of the first layer.
    pub(super) at: usize,
    pub(super) head: usize,
}

impl Rows {
    /// Returns the bytes of one number, if the type consists of numbers.
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
    pub(super) fn cell_bytes(&self) -> u64 {
        self.rows.iter().map(|rows| rows.bytes).sum()
    }

    /// Returns, for each group, the indices of its members in `rows`. The name contains the type, so the archive
    /// distinguishes caches by it: rows of two quantized types can have the same length.
    fn groups(&self) -> BTreeMap<String, Vec<usize>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (member, rows) in self.rows.iter().enumerate() {
            let side = if member < self.layers { "k" } else { "v" };
            let name = format!("{side}-{}-{}", rows.kind, rows.bytes);
            groups.entry(name).or_default().push(member);
        }
        groups
    }

    pub(super) fn deployment(&self, layout: &RowLayout) -> Result<Deployment, LlamaError> {
        let groups = self.groups().into_iter().map(|(name, members)| {
            let values = members[0] >= self.layers;
            let layers = members.iter().map(|member| (member % self.layers).to_string());
            let order = match values && layout.transposed {
                true => "LCBSH",
                false => "LBSHC",
            };
            GroupDocument {
                name,
                layers: layers.collect::<Vec<_>>().join(","),
                block_size: 1,
                num_blocks: layout.cells as u64,
                dealt: true,
                order: Some(order.to_owned()),
                allocation: Allocation::PerLayer,
                offset: 0,
                block_stride: None,
                layer_stride: None,
                stages: Vec::new(),
                specs: vec![self.rows[members[0]].spec()],
                draft: false,
            }
        });
        Ok(Deployment::from_document(Document {
            name: "llama.cpp".to_owned(),
            model: None,
            tp: 1,
            pp: 1,
            dcp: 1,
            interleave: 1,
            num_layers: Some(self.layers as u64),
            pp_layers: None,
            groups: groups.collect(),
        })?)
    }

    /// Calls `work` with the rows that lie in `len` bytes from `start` on, as one memory for each group.
    ///
    /// # Safety
    /// Until this returns, the bytes can be read, and written if `access` says so, and no reference to them is used.
    /// `work` keeps no clone of a memory.
    pub(super) unsafe fn with_memories<T>(
        &self,
        layout: &RowLayout,
        (start, len): (*mut u8, usize),
        access: Access,
        work: impl FnOnce(&[Memory]) -> Result<T, LlamaError>,
    ) -> Result<T, LlamaError> {
        let mut at = layout.at;
        let parts = self.rows.iter().map(|rows| {
            // The parser, or the caller that made the bytes, has checked that they fit.
            let bytes = rows.bytes as usize * layout.cells;
            let from = at + layout.head;
            at = from + bytes;
            assert!(at <= len, "rows lie inside the bytes");
            (start.wrapping_add(from), bytes)
        });
        let parts: Vec<_> = parts.collect();
        let memories = self.groups().into_values().map(|members| {
            let parts: Vec<_> = members.into_iter().map(|member| parts[member]).collect();
            // SAFETY: the parts are inside the bytes, which the caller keeps until no memory exists any more.
            unsafe { Memory::from_raw_parts(&parts, access, None) }
        });
        work(&memories.collect::<Result<Vec<_>, _>>()?)
    }

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
    /// Returns the layout of stored rows: one after another, layer by layer.
    pub(super) fn dense(cells: usize) -> Self {
        Self { cells, transposed: false, at: 0, head: 0 }
    }

    pub(super) fn in_state(cells: usize, transposed: bool, at: usize) -> Self {
        Self { cells, transposed, at, head: LAYER_HEAD }
    }
}

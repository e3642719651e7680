//! The oracle: what a deployment document means, byte by byte.
//!
//! Everything here is slow and obvious on purpose. A document is a `serde_json::Value` with the
//! fields of the reference (`transload.deployment/1`). Faults are plain strings: the oracle is asked
//! about documents that are meant to be right.

mod document;
mod order;
mod place;
mod spec;
mod transfer;

use std::collections::BTreeMap;

use serde_json::Value;

pub use document::{Group, Side, Stated};
pub use spec::{Component, Spec};
pub use transfer::{Moved, Request, Route, transfer, transfer_to};

/// Describes in words why a document or a request is wrong.
pub type Fault = String;

/// A byte's place in the memory of one rank and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// 0 if the group is in one allocation; the layer slot if each layer has its own.
    pub allocation: u64,
    /// Byte offset inside the allocation.
    pub offset: u64,
}

impl Address {
    /// Makes the address of the next byte.
    pub fn next(self) -> Self {
        Self { offset: self.offset + 1, ..self }
    }

    /// Makes the address of the byte before, if the allocation has one.
    pub fn previous(self) -> Option<Self> {
        Some(Self { offset: self.offset.checked_sub(1)?, ..self })
    }
}

/// Identifies a byte by its coordinates in the model, which are equal on every rank and in every layout. Its state of the
/// sequence, and the block of that, are kept separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Global layer id.
    pub layer: u64,
    /// Index of the spec in its group's document.
    pub spec: usize,
    /// Index of the component in its spec: k, v | latent | data, scale | x, B, C | ...
    pub component: usize,
    /// Global index of the unit that is never cut: a head, a group, a channel.
    pub unit: u64,
    /// First coordinate inside the unit: an element; for a convolution the channel.
    pub i: u64,
    /// Second coordinate inside the unit: for a convolution the state of the channel.
    pub j: u64,
    /// Byte of the element.
    pub byte: u64,
}

/// Returns the address of every byte of one group on one rank, by name, block, and state in the block.
pub fn addresses(document: &Value, rank: u64, group: &str) -> Result<BTreeMap<(Name, u64, u64), Address>, Fault> {
    let side = Side::read(document)?;
    let group = side.group(group)?;
    let place = side.place(rank, group)?;
    let mut found = BTreeMap::new();
    for (spec_index, spec) in group.specs.iter().enumerate() {
        for block in 0..group.num_blocks {
            for state in 0..spec.states(group.block_size)? {
                for layer in side.layers_of(rank, group) {
                    for name in spec.names(spec_index, layer, |c| side.units_of(rank, &spec.components[c]))? {
                        let address = place.address(&name, block, state)?;
                        found.insert((name, block, state), address);
                    }
                }
            }
        }
    }
    Ok(found)
}

/// Returns how many allocations one group has on one rank, and how many bytes each must have at least.
pub fn allocations(document: &Value, rank: u64, group: &str) -> Result<(u64, u64), Fault> {
    let side = Side::read(document)?;
    let group = side.group(group)?;
    let place = side.place(rank, group)?;
    let layers = side.layers_of(rank, group).len() as u64;
    Ok(if layers == 0 {
        (0, 0)
    } else if group.per_layer {
        (layers, place.size())
    } else {
        (1, place.size())
    })
}

/// Returns the bytes from one block to the next, or from one layer to the next, of one group: the largest of
/// all ranks, or of those of a pipeline stage. `None` where the axis has no stride of its own: a layer that is an allocation, or
/// an axis inside a bracket.
pub fn stride(document: &Value, group: &str, stage: Option<u64>, axis: char) -> Result<Option<u64>, Fault> {
    let side = Side::read(document)?;
    let group = side.group(group)?;
    let mut largest = None;
    let ranks = stage.map_or(0..side.ranks(), |stage| stage * side.tp..(stage + 1) * side.tp);
    for rank in ranks {
        largest = largest.max(side.place(rank, group)?.stride_of(axis));
    }
    Ok(largest)
}

//! Describes a model's cache: its components, their units, and the ranks that hold them.

use std::ops::Range;

use serde_json::Value;

use super::document::number;
use super::{Fault, Name};

/// One spec of a page.
#[derive(Debug)]
pub struct Spec {
    /// The `kind` of the document.
    pub kind: String,
    /// The components, in the order of their addresses.
    pub components: Vec<Component>,
    /// The number of tokens of one state; `None` for a recurrent cache, which has one state for the whole sequence.
    pub tokens_per_state: Option<u64>,
    /// `sliding_window`
    pub sliding_window: Option<u64>,
    /// `chunk_size`
    pub chunk_size: Option<u64>,
    pub(super) content: Content,
}

/// The arrangement of the components of one state and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Per head, one after the other.
    PerHead,
    /// Along one channel axis; `channels_outside` is the layout `DS`.
    Conv { channels_outside: bool },
}

/// A part of a spec that is cut over TP ranks by its own rule.
#[derive(Debug)]
pub struct Component {
    /// The name that the reference uses.
    pub name: &'static str,
    /// The number of units in the whole model.
    pub units: u64,
    /// Extents of one unit's two coordinates.
    pub extents: [u64; 2],
    /// Bytes of an element.
    pub element: u64,
    sharing: Sharing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Each unit is on one rank, or on several neighbouring ones if there are more ranks than units.
    Spread,
    /// Each unit is on one rank; a single unit is on every rank.
    SpreadUnlessSingle,
}

impl Spec {
    pub(super) fn read(spec: &Value) -> Result<Self, Fault> {
        let kind = spec["kind"].as_str().ok_or("kind: missing")?;
        let need = |key: &str| number(spec, key)?.ok_or_else(|| format!("{kind}.{key}: missing"));
        let element = || dtype_bytes(spec["dtype"].as_str().ok_or("dtype: missing")?);
        let spread =
            |name, units, extents, element| Component { name, units, extents, element, sharing: Sharing::Spread };
        let conv_states =
            || -> Result<u64, Fault> { Ok(number(spec, "conv_states")?.unwrap_or(need("conv_kernel")? - 1)) };
        let conv = || match spec["conv_layout"].as_str() {
            Some("DS") => Ok(Content::Conv { channels_outside: true }),
            Some("SD") => Ok(Content::Conv { channels_outside: false }),
            _ => Err("conv_layout: neither DS nor SD"),
        };

        let mut tokens_per_state = Some(1);
        let mut content = Content::PerHead;
        let components = match kind {
            "attention" => {
                let (heads, k) = (need("heads")?, need("head_dim")?);
                let v = number(spec, "v_head_dim")?.unwrap_or(k);
                vec![spread("k", heads, [k, 1], element()?), spread("v", heads, [v, 1], element()?)]
            }
            // Whole on every rank: a single unit.
            "mla" => vec![spread("latent", 1, [need("latent")?, 1], element()?)],
            "compressed" | "indexer" => {
                tokens_per_state = match kind {
                    "compressed" => Some(need("tokens_per_state")?),
                    _ => Some(number(spec, "tokens_per_state")?.unwrap_or(1)),
                };
                vec![spread("data", 1, [need("data_bytes")?, 1], 1), spread("scale", 1, [need("scale_bytes")?, 1], 1)]
            }
            "opaque" => {
                tokens_per_state = Some(number(spec, "tokens_per_state")?.unwrap_or(1));
                vec![spread("entry", need("heads")?, [need("entry_bytes")?, 1], 1)]
            }
            "mamba2_conv" => {
                (tokens_per_state, content) = (None, conv()?);
                let (states, element) = (conv_states()?, element()?);
                let heads = need("heads")?;
                let per_head = need("d_inner")? / heads;
                let by_group = |name| -> Result<Component, Fault> {
                    Ok(Component {
                        name,
                        units: need("groups")?,
                        extents: [need("state_size")?, states],
                        element,
                        sharing: Sharing::SpreadUnlessSingle,
                    })
                };
                vec![spread("x", heads, [per_head, states], element), by_group("B")?, by_group("C")?]
            }
            "gdn_conv" => {
                (tokens_per_state, content) = (None, conv()?);
                let (states, element) = (conv_states()?, element()?);
                let (keys, key_dim) = (need("key_heads")?, need("key_head_dim")?);
                let (values, value_dim) = (need("value_heads")?, need("value_head_dim")?);
                vec![
                    spread("q", keys, [key_dim, states], element),
                    spread("k", keys, [key_dim, states], element),
                    spread("v", values, [value_dim, states], element),
                ]
            }
            "mamba1_conv" => {
                (tokens_per_state, content) = (None, conv()?);
                vec![spread("x", need("d_inner")?, [1, conv_states()?], element()?)]
            }
            "mamba2_ssm" => {
                tokens_per_state = None;
                let extents = [need("head_dim")?, need("state_size")?];
                vec![spread("ssm", need("heads")?, extents, element()?)]
            }
            "linear" => {
                tokens_per_state = None;
                let k = need("head_dim")?;
                let extents = [k, number(spec, "v_head_dim")?.unwrap_or(k)];
                vec![spread("state", need("heads")?, extents, element()?)]
            }
            "gdn_ssm" => {
                tokens_per_state = None;
                let extents = [need("value_head_dim")?, need("key_head_dim")?];
                vec![spread("ssm", need("value_heads")?, extents, element()?)]
            }
            "mamba1_ssm" => {
                tokens_per_state = None;
                let extents = [1, need("state_size")?];
                vec![spread("ssm", need("d_inner")?, extents, element()?)]
            }
            other => return Err(format!("kind: {other}?")),
        };
        Ok(Self {
            kind: kind.to_owned(),
            components,
            tokens_per_state,
            sliding_window: number(spec, "sliding_window")?,
            chunk_size: number(spec, "chunk_size")?,
            content,
        })
    }

    pub(super) fn default_order(&self) -> &'static str {
        match self.kind.as_str() {
            "compressed" | "indexer" => "LB[SD,SD]",
            _ => "LBSHC",
        }
    }

    /// Returns how many states a block of that many tokens holds.
    pub fn states(&self, block_size: u64) -> Result<u64, Fault> {
        match self.tokens_per_state {
            None => Ok(1),
            Some(k) if block_size.is_multiple_of(k) => Ok(block_size / k),
            Some(k) => Err(format!("block_size {block_size} is no multiple of {k}")),
        }
    }

    /// Returns whether the states of the sequence from token `start` up to `end` that travel include the
    /// one of index `state`.
    pub fn travels(&self, state: u64, start: u64, end: u64) -> bool {
        let Some(k) = self.tokens_per_state else {
            return state == 0;
        };
        let last_token = (state + 1) * k - 1;
        let in_range = last_token >= start && last_token < end;
        let in_window = self.sliding_window.is_none_or(|w| last_token + w > end);
        let in_chunk = self.chunk_size.is_none_or(|c| last_token >= end / c * c);
        in_range && in_window && in_chunk
    }

    /// Returns the name of every byte of one layer and one state whose unit is in `units(component)`.
    pub(super) fn names(
        &self,
        spec: usize,
        layer: u64,
        units: impl Fn(usize) -> Result<Range<u64>, Fault>,
    ) -> Result<Vec<Name>, Fault> {
        let mut names = Vec::new();
        for (index, component) in self.components.iter().enumerate() {
            for unit in units(index)? {
                for i in 0..component.extents[0] {
                    for j in 0..component.extents[1] {
                        for byte in 0..component.element {
                            names.push(Name { layer, spec, component: index, unit, i, j, byte });
                        }
                    }
                }
            }
        }
        Ok(names)
    }
}

impl Component {
    /// Returns the units that `rank` of `tp` holds.
    pub fn held_by(&self, tp: u64, rank: u64) -> Result<Range<u64>, Fault> {
        let units = self.units;
        if units.is_multiple_of(tp) {
            let each = units / tp;
            Ok(rank * each..(rank + 1) * each)
        } else if tp.is_multiple_of(units) && (units == 1 || self.sharing == Sharing::Spread) {
            let unit = rank * units / tp;
            Ok(unit..unit + 1)
        } else {
            Err(format!("{}: {units} units over {tp} ranks", self.name))
        }
    }

    /// Returns the ranks of `tp` that hold `unit`, ascending.
    pub fn holders(&self, tp: u64, unit: u64) -> Result<Vec<u64>, Fault> {
        let mut ranks = Vec::new();
        for rank in 0..tp {
            if self.held_by(tp, rank)?.contains(&unit) {
                ranks.push(rank);
            }
        }
        Ok(ranks)
    }
}

fn dtype_bytes(name: &str) -> Result<u64, Fault> {
    match name {
        "f32" => Ok(4),
        "f16" | "bf16" => Ok(2),
        "f8e4m3" | "f8e5m2" | "i8" | "u8" => Ok(1),
        _ => Err(format!("dtype: {name}?")),
    }
}

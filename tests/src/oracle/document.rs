//! Reading a deployment document: who holds which layers and units.

use std::ops::Range;

use serde_json::{Value, json};

use super::order::Order;
use super::place::Place;
use super::spec::{Component, Spec};
use super::{Address, Fault, Name, order};

/// One side of a transfer, read from its document.
#[derive(Debug)]
pub struct Side {
    /// Tensor parallel size.
    pub tp: u64,
    /// The layers of each pipeline rank.
    pub stages: Vec<Range<u64>>,
    /// The groups, in document order.
    pub groups: Vec<Group>,
}

/// One group of a side.
#[derive(Debug)]
pub struct Group {
    /// The name by which the two sides' groups are matched.
    pub name: String,
    /// Global layer ids, ascending.
    pub layers: Vec<u64>,
    /// Tokens per block.
    pub block_size: u64,
    /// Blocks on every rank.
    pub num_blocks: u64,
    /// The number of ranks that share the tokens of a sequence; 1 if each rank has all.
    pub dcp: u64,
    /// The number of consecutive tokens of a rank.
    pub interleave: u64,
    /// The physical order; `None` for a page of several specs.
    pub(super) order: Option<Order>,
    /// Whether each layer has its own allocation.
    pub per_layer: bool,
    /// The placement of each pipeline stage, or a single one for all stages.
    pub stages: Vec<Stated>,
    /// The specs of a page.
    pub specs: Vec<Spec>,
}

/// The placement of a group, as its document states it.
#[derive(Clone, Debug)]
pub struct Stated {
    /// The group's offset in its allocation.
    pub offset: u64,
    /// Bytes from block to block, where stated.
    pub block_stride: Option<u64>,
    /// Bytes from layer to layer, where stated.
    pub layer_stride: Option<u64>,
}

impl Side {
    /// Reads a document.
    pub fn read(document: &Value) -> Result<Self, Fault> {
        let tp = number(document, "tp")?.unwrap_or(1);
        let pp = number(document, "pp")?.unwrap_or(1);
        let groups = document["group"]
            .as_array()
            .ok_or("group: missing")?
            .iter()
            .map(|group| Group::read(group, document))
            .collect::<Result<Vec<_>, _>>()?;
        let highest = groups.iter().flat_map(|g| &g.layers).max();
        let num_layers = match number(document, "num_layers")? {
            Some(n) => n,
            None => highest.ok_or("no layers")? + 1,
        };
        let counts = match document.get("pp_layers") {
            Some(list) => numbers(list)?,
            None => even_split(num_layers, pp),
        };
        if counts.len() as u64 != pp {
            return Err(format!("pp is {pp} but pp_layers has {}", counts.len()));
        }
        let mut stages = Vec::new();
        let mut start = 0;
        for count in counts {
            stages.push(start..start + count);
            start += count;
        }
        if highest.is_some_and(|&layer| layer >= start) {
            return Err("a layer belongs to no pipeline rank".into());
        }
        Ok(Self { tp, stages, groups })
    }

    /// Returns how many ranks there are.
    pub fn ranks(&self) -> u64 {
        self.tp * self.stages.len() as u64
    }

    /// Returns the group of that name.
    pub fn group(&self, name: &str) -> Result<&Group, Fault> {
        self.groups.iter().find(|g| g.name == name).ok_or_else(|| format!("no group {name}"))
    }

    /// Returns the global ids of the layers of `group` on `rank`, ascending: slot i holds entry i.
    pub fn layers_of(&self, rank: u64, group: &Group) -> Vec<u64> {
        let stage = &self.stages[(rank / self.tp) as usize];
        let here = group.layers.iter().copied();
        here.filter(|layer| stage.contains(layer)).collect()
    }

    /// Returns the units of `component` that `rank` holds.
    pub fn units_of(&self, rank: u64, component: &Component) -> Result<Range<u64>, Fault> {
        component.held_by(self.tp, rank % self.tp)
    }

    /// Returns the address at which `rank` keeps one byte of state `state` of physical block `block`.
    pub fn address(&self, rank: u64, group: &Group, name: &Name, block: u64, state: u64) -> Result<Address, Fault> {
        self.place(rank, group)?.address(name, block, state)
    }

    /// Returns whether `rank` is one of those that have the states of an owner.
    pub fn owns(&self, rank: u64, group: &Group, owner: u64) -> bool {
        rank % self.tp % group.dcp == owner
    }

    pub(super) fn place(&self, rank: u64, group: &Group) -> Result<Place, Fault> {
        let stated = self.stated(rank, group)?;
        Place::new(group, stated, self.layers_of(rank, group), |component| self.units_of(rank, component))
    }

    /// Returns the placement of `group` on `rank`, as its document states it.
    pub fn stated<'a>(&self, rank: u64, group: &'a Group) -> Result<&'a Stated, Fault> {
        match &group.stages[..] {
            [all] => Ok(all),
            each => each.get((rank / self.tp) as usize).ok_or_else(|| "stage: too few".into()),
        }
    }
}

impl Group {
    /// Returns where a state of the sequence lies: the entry of the block table, the state of the block, and which of the `dcp`
    /// ranks has it. The arithmetic is vLLM's, by tokens.
    pub fn locate(&self, spec: &Spec, state: u64) -> [u64; 3] {
        let Some(tokens) = spec.tokens_per_state else {
            return [0, 0, 0];
        };
        let (entry, all) = (self.block_size * self.dcp, self.interleave * self.dcp);
        let at = state * tokens % entry;
        let slot = at / all * self.interleave + at % self.interleave;
        [state * tokens / entry, slot / tokens, at / self.interleave % self.dcp]
    }

    fn read(group: &Value, deployment: &Value) -> Result<Self, Fault> {
        let either = |key: &str| -> Result<u64, Fault> {
            match number(group, key)? {
                Some(n) => Ok(n),
                None => number(deployment, key)?.ok_or_else(|| format!("{key}: missing")),
            }
        };
        let specs =
            group["spec"].as_array().ok_or("spec: missing")?.iter().map(Spec::read).collect::<Result<Vec<_>, _>>()?;
        let order = match &specs[..] {
            [] => return Err("spec: empty".into()),
            [only] => Some(match group.get("order").or_else(|| deployment.get("order")) {
                Some(order) => order::read(order)?,
                None => order::read(&Value::from(only.default_order()))?,
            }),
            _ => match group.get("order") {
                None => None,
                Some(order) if *order == "LB" => None,
                Some(order) => return Err(format!("order: {order} for a page of several specs")),
            },
        };
        let recurrent = specs.iter().all(|spec| spec.tokens_per_state.is_none());
        let dcp = match group.get("tokens").map(|tokens| tokens.as_str()) {
            None | Some(Some("dealt")) if !recurrent => number(deployment, "dcp")?.unwrap_or(1),
            None | Some(Some("dealt" | "whole")) => 1,
            _ => return Err("tokens: neither dealt nor whole".into()),
        };
        Ok(Self {
            dcp,
            interleave: number(deployment, "interleave")?.unwrap_or(1),
            name: group["name"].as_str().ok_or("name: missing")?.to_owned(),
            layers: layer_ids(group["layers"].as_str().ok_or("layers: missing")?)?,
            block_size: either("block_size")?,
            num_blocks: either("num_blocks")?,
            order,
            per_layer: match group.get("allocation").map(|a| a.as_str()) {
                None | Some(Some("one")) => false,
                Some(Some("per_layer")) => true,
                _ => return Err("allocation: neither one nor per_layer".into()),
            },
            stages: match group.get("stage") {
                None => vec![Stated::read(&json!({}), group)?],
                Some(stages) => {
                    let stages = stages.as_array().ok_or("stage: no list")?;
                    stages.iter().map(|stage| Stated::read(stage, group)).collect::<Result<_, _>>()?
                }
            },
            specs,
        })
    }
}

impl Stated {
    fn read(stage: &Value, group: &Value) -> Result<Self, Fault> {
        let stated = |key: &str| Ok::<_, Fault>(number(stage, key)?.or(number(group, key)?));
        Ok(Self {
            offset: stated("offset")?.unwrap_or(0),
            block_stride: stated("block_stride")?,
            layer_stride: stated("layer_stride")?,
        })
    }
}

/// Splits layers evenly and in order. Each left-over layer goes to one of the ranks before the last, from back to front.
fn even_split(layers: u64, pp: u64) -> Vec<u64> {
    let mut counts = vec![layers / pp; pp as usize];
    let left_over = (layers % pp) as usize;
    for step in 0..left_over {
        let before_last = counts.len() - 2 - step;
        counts[before_last] += 1;
    }
    counts
}

/// `0-3,7` is 0, 1, 2, 3 and 7.
fn layer_ids(text: &str) -> Result<Vec<u64>, Fault> {
    let id = |s: &str| s.trim().parse::<u64>().map_err(|_| format!("layers: {s:?} is no layer id"));
    let mut ids = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => ids.extend(id(first)?..=id(last)?),
            None => ids.push(id(part)?),
        }
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Returns the number at `key`, if there is one.
pub(super) fn number(value: &Value, key: &str) -> Result<Option<u64>, Fault> {
    match value.get(key) {
        None => Ok(None),
        Some(n) => Ok(Some(n.as_u64().ok_or_else(|| format!("{key}: {n}"))?)),
    }
}

fn numbers(value: &Value) -> Result<Vec<u64>, Fault> {
    let list = value.as_array().ok_or("not a list")?;
    list.iter().map(|n| n.as_u64().ok_or_else(|| format!("{n} is no count"))).collect()
}

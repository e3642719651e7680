//! Computes which bytes a transfer moves, from where to where.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use serde_json::Value;

use super::document::{Group, Side};
use super::place::Place;
use super::{Address, Fault, Name};

/// The request of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Position of the first token.
    pub start: u64,
    /// The number of tokens.
    pub tokens: u64,
    /// The source's block table by group: entry i is the physical block of tokens
    /// `[i * block_size, (i + 1) * block_size)`, `None` for one that is never touched. A group that
    /// is not named has block i at entry i.
    pub src_blocks: BTreeMap<String, Vec<Option<u64>>>,
    /// The destination's.
    pub dst_blocks: BTreeMap<String, Vec<Option<u64>>>,
}

/// Everything that one source rank sends one destination rank for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The sender.
    pub src_rank: u64,
    /// The receiver.
    pub dst_rank: u64,
    /// The group's name.
    pub group: String,
    /// The bytes of the route, ordered by name.
    pub bytes: Vec<Moved>,
}

/// One byte on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The byte's identity.
    pub name: Name,
    /// The index of the byte's state in the sequence; 0 in a recurrent cache.
    pub state: u64,
    /// Entries of the two block tables in which the state lies.
    pub entries: [u64; 2],
    /// The index of the state within its block, on each side.
    pub rows: [u64; 2],
    /// The address at the source.
    pub src: Address,
    /// The address at the destination.
    pub dst: Address,
}

impl Route {
    /// Maps destination addresses to source addresses: what must be written, and from where. Every other
    /// byte of the destination must stay as it is.
    pub fn map(&self) -> BTreeMap<Address, Address> {
        self.bytes.iter().map(|m| (m.dst, m.src)).collect()
    }
}

/// Returns every route that moves anything, ordered by source rank, destination rank and the group's position in the
/// destination's document.
pub fn transfer(from: &Value, to: &Value, request: &Request) -> Result<Vec<Route>, Fault> {
    let mut routes = Vec::new();
    for dst_rank in 0..Side::read(to)?.ranks() {
        routes.extend(transfer_to(from, to, request, dst_rank)?);
    }
    // Stable: what comes first in a document stays first.
    routes.sort_by_key(|route| (route.src_rank, route.dst_rank));
    Ok(routes)
}

/// Like [`transfer`], for one destination rank.
pub fn transfer_to(from: &Value, to: &Value, request: &Request, dst_rank: u64) -> Result<Vec<Route>, Fault> {
    let (from, to) = (Side::read(from)?, Side::read(to)?);
    let mut routes = Vec::new();
    for dst_group in &to.groups {
        let src_group = from.group(&dst_group.name)?;
        same_specs(src_group, dst_group)?;
        let mut senders = BTreeMap::<u64, Vec<Moved>>::new();
        for (src_rank, moved) in received(&from, src_group, &to, dst_group, dst_rank, request)? {
            senders.entry(src_rank).or_default().push(moved);
        }
        for (src_rank, mut bytes) in senders {
            bytes.sort_by_key(|m| (m.name, m.state));
            routes.push(Route { src_rank, dst_rank, group: dst_group.name.clone(), bytes });
        }
    }
    Ok(routes)
}

/// Returns the bytes of one group that one destination rank receives, each with the rank that sends it.
fn received(
    from: &Side,
    src_group: &Group,
    to: &Side,
    dst_group: &Group,
    dst_rank: u64,
    request: &Request,
) -> Result<Vec<(u64, Moved)>, Fault> {
    let end = request.start + request.tokens;
    let name = &dst_group.name;
    let dst_place = to.place(dst_rank, dst_group)?;
    let mut src_places = BTreeMap::new();
    let mut replicas = BTreeMap::new();
    let mut moves = Vec::new();
    let meeting = meeting(src_group, dst_group);
    for layer in to.layers_of(dst_rank, dst_group) {
        if !src_group.layers.contains(&layer) {
            return Err(format!("{name}: the source has no layer {layer}"));
        }
        for (index, spec) in dst_group.specs.iter().enumerate() {
            // No state has an index above that of its last token. Where there is no token, there is
            // no state of the sequence either.
            let indices = 0..if request.tokens > 0 { end } else { 0 };
            let traveling = indices.filter(|&s| spec.travels(s, request.start, end));
            let traveling = traveling.collect::<Vec<_>>();
            let dst_entries = traveling.iter().map(|state| dst_group.locate(spec, *state)[0]);
            let dst_entries = dst_entries.collect::<BTreeSet<_>>();
            for state in traveling {
                let locate = |group: &Group, tables: &BTreeMap<String, Vec<_>>| {
                    let [entry, row, owner] = group.locate(spec, state);
                    Ok::<_, Fault>((entry, block_of(tables, group, entry)?, row, owner))
                };
                let dst_at = locate(dst_group, &request.dst_blocks)?;
                if !to.owns(dst_rank, dst_group, dst_at.3) {
                    continue;
                }
                let src_at = locate(src_group, &request.src_blocks)?;
                let units = |c: usize| to.units_of(dst_rank, &spec.components[c]);
                for name in spec.names(index, layer, units)? {
                    let sent_alike = (name.layer, name.spec, name.component, name.unit, src_at.3);
                    let (all, in_common, by_tokens) = match replicas.entry(sent_alike) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => {
                            let all = senders(from, to, src_group, dst_group, dst_rank, &name, (src_at.3, &meeting))?;
                            for rank in &all {
                                src_places.insert(*rank, from.place(*rank, src_group)?);
                            }
                            let theirs = source_layers(from, src_group, name.layer)?;
                            let mut in_common = to.layers_of(dst_rank, dst_group);
                            in_common.retain(|layer| theirs.contains(layer));
                            let by_tokens = dst_entries.len() > 1
                                && (in_common.len() < all.len()
                                    || blocks_outside(&dst_place, to, dst_group, dst_rank, &name)?);
                            new.insert((all, in_common, by_tokens))
                        }
                    };
                    let (position, count) = match by_tokens {
                        true => (dst_entries.iter().position(|entry| *entry == dst_at.0), dst_entries.len()),
                        false => (in_common.iter().position(|layer| *layer == name.layer), in_common.len()),
                    };
                    let position = position.ok_or("what travels lies nowhere")?;
                    let src_rank = all[position * all.len() / count];
                    let moved = Moved {
                        name,
                        state,
                        entries: [src_at.0, dst_at.0],
                        rows: [src_at.2, dst_at.2],
                        src: src_places[&src_rank].address(&name, src_at.1, src_at.2)?,
                        dst: dst_place.address(&name, dst_at.1, dst_at.2)?,
                    };
                    moves.push((src_rank, moved));
                }
            }
        }
    }
    Ok(moves)
}

/// Returns the ranks that send bytes of this unit to `dst_rank`: among the k ranks that hold it, the j-th of the m
/// destination ranks that need it reads from number floor(j * k / m), and where k is larger than m from
/// all up to floor((j + 1) * k / m), that one left out. Where tokens are dealt out, only those source ranks hold it that
/// have the token, and those destination ranks need it that have any token of theirs. Of c things in a row thing p then comes from
/// number floor(p * r / c) of these r.
fn senders(
    from: &Side,
    to: &Side,
    src_group: &Group,
    dst_group: &Group,
    dst_rank: u64,
    name: &Name,
    (owner, meeting): (u64, &BTreeSet<[u64; 2]>),
) -> Result<Vec<u64>, Fault> {
    let stage = from.stages.iter().position(|s| s.contains(&name.layer));
    let stage = stage.ok_or_else(|| format!("no source rank has layer {}", name.layer))? as u64;
    let src_component = &src_group.specs[name.spec].components[name.component];
    let dst_component = &dst_group.specs[name.spec].components[name.component];
    let mut holders = src_component.holders(from.tp, name.unit)?;
    holders.retain(|rank| from.owns(*rank, src_group, owner));
    let mut needers = dst_component.holders(to.tp, name.unit)?;
    needers.retain(|rank| meeting.contains(&[owner, rank % dst_group.dcp]));
    let j = needers.iter().position(|&r| r == dst_rank % to.tp);
    let j = j.ok_or("a rank receives what it does not hold")?;
    let (k, m) = (holders.len(), needers.len());
    let replicas = match k > m {
        true => &holders[j * k / m..(j + 1) * k / m],
        false => &holders[j * k / m..][..1],
    };
    Ok(replicas.iter().map(|rank| stage * from.tp + rank).collect())
}

/// Returns the pairs of an owner at the source and one at the destination that have a token in common, if a sequence is long.
fn meeting(src: &Group, dst: &Group) -> BTreeSet<[u64; 2]> {
    let all = src.dcp * src.interleave * dst.dcp * dst.interleave;
    (0..all).map(|token| [src, dst].map(|group| token / group.interleave % group.dcp)).collect()
}

/// Returns the layers of a group on the source stage that has a given one of them.
fn source_layers(from: &Side, src_group: &Group, layer: u64) -> Result<Vec<u64>, Fault> {
    let stage = from.stages.iter().find(|stage| stage.contains(&layer));
    let stage = stage.ok_or_else(|| format!("no source rank has layer {layer}"))?;
    let layers = src_group.layers.iter().copied();
    Ok(layers.filter(|layer| stage.contains(layer)).collect())
}

/// Returns whether it is further from block to block than from layer to layer. Where there is but one of either
/// it does not matter.
fn blocks_outside(place: &Place, side: &Side, group: &Group, rank: u64, name: &Name) -> Result<bool, Fault> {
    let layers = side.layers_of(rank, group);
    let [first, second, ..] = layers[..] else {
        return Ok(false);
    };
    let at = |layer, block| place.address(&Name { layer, ..*name }, block, 0);
    let (start, layer, block) = (at(first, 0)?, at(second, 0)?, at(first, 1)?);
    Ok(layer.allocation == start.allocation && layer < block)
}

/// Returns the physical block at entry `index` of the group's table.
fn block_of(tables: &BTreeMap<String, Vec<Option<u64>>>, group: &Group, index: u64) -> Result<u64, Fault> {
    let Some(table) = tables.get(&group.name) else {
        return Ok(index);
    };
    match table.get(index as usize) {
        Some(Some(block)) => Ok(*block),
        Some(None) => Err(format!("{}: entry {index} is needed", group.name)),
        None => Err(format!("{}: the table ends before {index}", group.name)),
    }
}

/// Checks that the two sides hold the same specs, in any layout.
fn same_specs(src: &Group, dst: &Group) -> Result<(), Fault> {
    let about = |group: &Group| {
        let specs = group.specs.iter().map(|spec| {
            let parts = spec.components.iter().map(|c| (c.name, c.units, c.extents, c.element)).collect::<Vec<_>>();
            let tokens = (spec.tokens_per_state, spec.sliding_window, spec.chunk_size);
            (spec.kind.clone(), tokens, parts)
        });
        specs.collect::<Vec<_>>()
    };
    if about(src) == about(dst) { Ok(()) } else { Err(format!("{}: the two sides' specs differ", dst.name)) }
}

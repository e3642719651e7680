//! From a typed document to a checked deployment.

use std::ops::Range;

use super::{Deployment, Group, LayerSet, MAX_GROUPS, MAX_LAYERS, MAX_RANKS, Stage};
use crate::document::{Document, Faults, GroupDocument};
use crate::order::Order;
use crate::placement::{Placement, Shape};
use crate::spec::{FieldValue, Spec};

/// The largest number that a size field of a spec may have (2^40; placement checks their products).
const MAX_SIZE: u64 = 1 << 40;

/// The most specs of a group. Real pages have two or three; plans count components in 64 bits.
const MAX_SPECS: usize = 16;

/// Checks everything, noting every fault. `None` where so much is wrong that nothing can be built.
///
/// `positions` are the places of the document's groups in the text that people wrote.
pub(super) fn check(
    document: Document,
    positions: &[usize],
    faults: &mut Faults,
) -> Option<Deployment> {
    // Where a size is faulty, 1 stands in for it, so that the rest is looked at too.
    let tp = in_range("tp", document.tp, MAX_RANKS, faults).unwrap_or(1);
    let pp = in_range("pp", document.pp, MAX_RANKS, faults);
    let ranks = tp * pp.unwrap_or(1);
    if ranks > MAX_RANKS {
        faults.add("tp", format!("tp * pp is {ranks}, more than {MAX_RANKS}"));
        return None;
    }
    if document.groups.len() > MAX_GROUPS {
        let problem = format!(
            "has {} entries, more than {MAX_GROUPS}",
            document.groups.len()
        );
        faults.add("group", problem);
        return None;
    }
    let mut layers = Vec::new();
    for (group, i) in document.groups.iter().zip(positions) {
        let parsed = LayerSet::parse(&group.layers);
        layers.push(note(format!("group[{i}].layers"), parsed, faults));
    }
    let highest = layers.iter().flatten().flat_map(|set| set.ids().last());
    let highest = highest.max().map_or(0, |id| u64::from(*id) + 1);
    let stages = match pp {
        Some(pp) => stages(&document, pp, highest, faults),
        None => Some(std::iter::once(0..highest as u32).collect()),
    };
    let mut groups = Vec::new();
    for (i, (group, layers)) in document.groups.iter().zip(layers).enumerate() {
        let path = format!("group[{}]", positions[i]);
        check_name(&document.groups[..i], group, &path, faults);
        if let (Some(layers), Some(stages)) = (layers, &stages) {
            let checked = check_group(group, layers, tp as u32, stages, &path, faults);
            groups.extend(checked);
        }
    }
    if document.groups.is_empty() && faults.0.is_empty() {
        faults.add(
            "group",
            "is missing: there has to be at least one [[group]]",
        );
    }
    Some(Deployment {
        tp: tp as u32,
        stages: stages?,
        groups,
        document,
    })
}

fn note<T>(path: String, result: Result<T, String>, faults: &mut Faults) -> Option<T> {
    result.map_err(|problem| faults.add(path, problem)).ok()
}

fn in_range(path: &str, value: u64, most: u64, faults: &mut Faults) -> Option<u64> {
    if (1..=most).contains(&value) {
        return Some(value);
    }
    faults.add(path, format!("has to be from 1 to {most}, not {value}"));
    None
}

/// The layers of each pipeline stage, as given or as vLLM splits them: evenly and in order, with
/// left-over layers going one each to the stages before the last, backwards.
fn stages(
    document: &Document,
    pp: u64,
    highest: u64,
    faults: &mut Faults,
) -> Option<Vec<Range<u32>>> {
    let total = document.num_layers.unwrap_or(highest);
    if total < highest || total > MAX_LAYERS {
        let problem =
            format!("has to be from {highest} (the groups' layers) to {MAX_LAYERS}, not {total}");
        faults.add("num_layers", problem);
        return None;
    }
    let counts = match &document.pp_layers {
        Some(counts) => {
            let sum = counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
            if counts.len() as u64 != pp {
                let problem = format!("has {} entries, but pp is {pp}", counts.len());
                faults.add("pp_layers", problem);
                return None;
            }
            if sum != Some(total) {
                let sum = sum.map_or("too much".to_owned(), |sum| sum.to_string());
                faults.add(
                    "pp_layers",
                    format!("sums to {sum}, but there are {total} layers"),
                );
                return None;
            }
            counts.clone()
        }
        None => {
            let mut counts = vec![total / pp; pp as usize];
            let left_over = (total % pp) as usize;
            for count in counts.iter_mut().rev().skip(1).take(left_over) {
                *count += 1;
            }
            counts
        }
    };
    let mut start = 0;
    let stages = counts.iter().map(|count| {
        let stage = start..start + *count as u32;
        start = stage.end;
        stage
    });
    Some(stages.collect())
}

fn check_name(earlier: &[GroupDocument], group: &GroupDocument, path: &str, faults: &mut Faults) {
    let name = &group.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let problem = "has to be 1 to 64 letters, digits or any of . _ - + /";
        faults.add(format!("{path}.name"), problem);
    }
    if earlier.iter().any(|other| other.name == *name) {
        let problem = format!("\"{name}\" is the name of an earlier group");
        faults.add(format!("{path}.name"), problem);
    }
}

fn check_group(
    group: &GroupDocument,
    layers: LayerSet,
    tp: u32,
    stages: &[Range<u32>],
    path: &str,
    faults: &mut Faults,
) -> Option<Group> {
    let before = faults.0.len();
    in_range(
        &format!("{path}.block_size"),
        group.block_size,
        MAX_SIZE,
        faults,
    );
    let most = u64::from(u32::MAX);
    in_range(
        &format!("{path}.num_blocks"),
        group.num_blocks,
        most,
        faults,
    );
    let order = group.order.as_deref().map(|text| {
        let parsed = Order::parse(text).map_err(|error| format!("\"{text}\": {error}"));
        note(format!("{path}.order"), parsed, faults)
    });
    for (i, spec) in group.specs.iter().enumerate() {
        check_spec(spec, tp, &format!("{path}.spec[{i}]"), faults);
    }
    let recurrent = |spec: &Spec| spec.tokens_per_state().is_none();
    if group.specs.iter().any(recurrent) && !group.specs.iter().all(recurrent) {
        let problem = "recurrent state and per-token caches cannot share a block table";
        faults.add(format!("{path}.spec"), problem);
    }
    if group.specs.len() > MAX_SPECS {
        let problem = format!(
            "has {} entries; a page holds {MAX_SPECS} at most",
            group.specs.len()
        );
        faults.add(format!("{path}.spec"), problem);
    }
    if group.specs.is_empty() {
        faults.add(
            format!("{path}.spec"),
            "is missing: there has to be at least one",
        );
    }
    if faults.0.len() > before {
        return None;
    }
    let order = order.flatten();
    let mut placed = Vec::with_capacity(stages.len());
    let mut placements = Vec::new();
    let mut by_slots: Vec<(usize, usize)> = Vec::new();
    for stage in stages {
        let slots = layers.ids().partition_point(|id| *id < stage.start)
            ..layers.ids().partition_point(|id| *id < stage.end);
        let known = by_slots.iter().find(|(count, _)| *count == slots.len());
        let placement = match known {
            Some((_, index)) => *index,
            None => {
                placements.push(place(group, order.as_ref(), tp, slots.len(), path, faults)?);
                by_slots.push((slots.len(), placements.len() - 1));
                placements.len() - 1
            }
        };
        placed.push(Stage {
            layers: slots,
            placement,
        });
    }
    Some(Group {
        name: group.name.clone(),
        layers,
        block_size: group.block_size,
        num_blocks: group.num_blocks as u32,
        order,
        allocation: group.allocation,
        specs: group.specs.clone(),
        tp,
        stages: placed,
        placements,
    })
}

/// Where the group lies on a rank that holds `slots` of its layers.
fn place(
    group: &GroupDocument,
    order: Option<&Order>,
    tp: u32,
    slots: usize,
    path: &str,
    faults: &mut Faults,
) -> Option<Placement> {
    let shape = Shape {
        specs: &group.specs,
        order,
        allocation: group.allocation,
        tp,
        // A stage without layers of this group is checked as if it had one, and holds nothing.
        layer_slots: slots.max(1) as u64,
        num_blocks: group.num_blocks,
        block_size: group.block_size,
        offset: group.offset,
        block_stride: group.block_stride,
        layer_stride: group.layer_stride,
    };
    match shape.place() {
        Ok(_) if slots == 0 => Some(Placement {
            views: Vec::new(),
            allocations: 0,
            allocation_bytes: 0,
        }),
        Ok(placement) => Some(placement),
        Err(error) => {
            faults.add(format!("{path}{}", error.field()), error.to_string());
            None
        }
    }
}

fn check_spec(spec: &Spec, tp: u32, path: &str, faults: &mut Faults) {
    let before = faults.0.len();
    for (field, value) in spec.identity() {
        if let FieldValue::Number(number) = value {
            in_range(&format!("{path}.{field}"), number, MAX_SIZE, faults);
        }
    }
    if let Spec::Mamba2Conv(conv) = spec
        && conv.heads > 0
        && !conv.d_inner.is_multiple_of(conv.heads)
    {
        let problem = format!("{} is no multiple of heads ({})", conv.d_inner, conv.heads);
        faults.add(format!("{path}.d_inner"), problem);
    }
    if faults.0.len() > before {
        return;
    }
    let mut last = "";
    for component in spec.geometry().components {
        if let Err(error) = component.partition.per_rank(tp) {
            if component.field != last {
                faults.add(format!("{path}.{}", component.field), error.to_string());
            }
            last = component.field;
        }
    }
}

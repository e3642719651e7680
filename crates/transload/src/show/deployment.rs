//! What the two sides of a transfer look like.

use transload::layout::spec::FieldValue;
use transload::layout::{Deployment, Group, Spec};

use super::number;
use super::table::{Lean, Table};

/// One line for each group of each side.
pub(crate) fn sides(sides: [(&str, &Deployment); 2]) -> String {
    let mut table = Table::new(&[
        ("side", Lean::Left),
        ("TP", Lean::Right),
        ("PP", Lean::Right),
        ("group", Lean::Left),
        ("layers", Lean::Left),
        ("order", Lean::Left),
        ("block", Lean::Right),
        ("blocks", Lean::Right),
        ("per rank", Lean::Right),
        ("cache", Lean::Left),
    ]);
    for (role, deployment) in sides {
        for group in deployment.groups() {
            table.row([
                label(role, deployment).as_str(),
                &deployment.tp().to_string(),
                &deployment.pp().to_string(),
                group.name(),
                &group.layers().to_string(),
                &group.physical_order().to_string(),
                &group.block_size().to_string(),
                &group.num_blocks().to_string(),
                &number::bytes(bytes_per_rank(deployment, group)),
                &specs(group),
            ]);
        }
    }
    table.finish()
}

/// A side's own name, or the part it plays.
fn label(role: &str, deployment: &Deployment) -> String {
    match plain(deployment.name()) {
        name if name.is_empty() => role.to_owned(),
        name => name,
    }
}

/// Free text of a document, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// Of the stage that has the most.
fn bytes_per_rank(deployment: &Deployment, group: &Group) -> u64 {
    (0..deployment.pp())
        .map(|stage| group.placement(stage))
        .map(|placement| {
            placement
                .allocations
                .saturating_mul(placement.allocation_bytes)
        })
        .max()
        .unwrap_or(0)
}

/// What a group caches, one spec on a line.
pub(crate) fn specs(group: &Group) -> String {
    // One on a line: a page of several has no room for them on one.
    let specs: Vec<String> = group.specs().iter().map(spec).collect();
    specs.join("\n")
}

/// `attention: heads 8, head_dim 128, bf16`
fn spec(spec: &Spec) -> String {
    let fields = spec.identity();
    let head_dim = fields
        .iter()
        .find(|(name, _)| *name == "head_dim")
        .map(|(_, value)| value);
    let mut parts = Vec::new();
    for (field, value) in &fields {
        match *field {
            _ if *value == FieldValue::Absent => {}
            "v_head_dim" if Some(value) == head_dim => {}
            "dtype" => parts.push(value.to_string()),
            field => parts.push(format!("{field} {value}")),
        }
    }
    format!("{}: {}", spec.kind(), parts.join(", "))
}

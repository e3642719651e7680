//! Descriptions of the two sides of a transfer.

use transload::layout::spec::FieldValue;
use transload::layout::{Deployment, Group, Spec};

use super::number;
use super::table::Table;

pub(crate) fn sides(sides: [(&str, &Deployment); 2]) -> String {
    let mut table = Table::new("side|>TP|>PP|group|layers|order|>block|>blocks|>per rank|cache");
    for (role, deployment) in sides {
        for group in deployment.groups() {
            table.row([
                label(role, deployment).as_str(),
                &deployment.tp().to_string(),
                &deployment.pp().to_string(),
                group.name(),
                &layers(group),
                &group.physical_order().to_string(),
                &block(group),
                &group.num_blocks().to_string(),
                &number::bytes(bytes_per_rank(deployment, group)),
                &specs(group),
            ]);
        }
    }
    table.finish()
}

/// Formats the tokens of a block: `16`, or `16, DCP 4 by 1` if they are dealt out to 4 ranks one by one.
pub(super) fn block(group: &Group) -> String {
    match group.dcp() {
        1 => group.block_size().to_string(),
        ranks => format!("{}, DCP {ranks} by {}", group.block_size(), group.interleave()),
    }
}

/// Returns a side's own name, or its role. Control characters are removed.
pub(crate) fn label(role: &str, deployment: &Deployment) -> String {
    match plain(deployment.name()) {
        name if name.is_empty() => role.to_owned(),
        name => name,
    }
}

/// Removes control characters from free text, which a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// Returns the bytes on each rank of the largest stage.
fn bytes_per_rank(deployment: &Deployment, group: &Group) -> u64 {
    (0..deployment.pp())
        .map(|stage| group.placement(stage))
        .map(|placement| placement.allocations.saturating_mul(placement.allocation_bytes))
        .max()
        .unwrap_or(0)
}

/// Formats the layers of a group in a narrow column: `0-79`, `1-35 step 2`; a long list on several lines.
pub(crate) fn layers(group: &Group) -> String {
    const WIDTH: usize = 24;
    let (ids, list) = (group.layers().ids(), group.layers().to_string());
    if let [first, second, _, .., last] = ids {
        let step = second - first;
        let short = format!("{first}-{last} step {step}");
        let even = ids.windows(2).all(|pair| pair[1] - pair[0] == step);
        if step > 1 && even && short.len() < list.len() {
            return short;
        }
    }
    let (mut text, mut line) = (String::new(), 0);
    for run in list.split_inclusive(',') {
        if line + run.len() > WIDTH {
            text.push('\n');
            line = 0;
        }
        text.push_str(run);
        line += run.len();
    }
    text
}

/// Formats the specs of a group, one a line.
pub(crate) fn specs(group: &Group) -> String {
    // A page of several specs would be too wide for one line.
    let specs: Vec<String> = group.specs().iter().map(spec).collect();
    specs.join("\n")
}

/// Formats a spec: `attention: heads 8, head_dim 128, bf16`.
fn spec(spec: &Spec) -> String {
    let fields = spec.identity();
    let head_dim = fields.iter().find(|(name, _)| *name == "head_dim").map(|(_, value)| value);
    let mut parts = Vec::new();
    for (field, value) in &fields {
        match *field {
            _ if *value == FieldValue::Absent => {}
            "v_head_dim" if Some(value) == head_dim => {}
            "dtype" => parts.push(value.to_string()),
            field => parts.push(format!("{field} {value}")),
        }
    }
    parts.extend(spec.conv_layout().map(|layout| layout.name().to_owned()));
    format!("{}: {}", spec.kind(), parts.join(", "))
}

//! Generates one side's document, with everything that the two sides may choose differently.

use serde_json::{Value, json};

use super::model::{Model, ModelGroup};
use super::order::order;
use super::tape::Tape;
use crate::oracle::{Side, stride};

/// The facts that both documents need.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) start: u64,
    pub(super) tokens: u64,
    from: Ranks,
    to: Ranks,
}

#[derive(Clone, Copy, Debug)]
struct Ranks {
    tp: u64,
    dcp: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    From,
    To,
}

/// Destination bytes of a case, all ranks together: what the oracle does in some milliseconds.
const BUDGET: u64 = 24 << 10;

pub(super) fn choose(tape: &mut Tape<'_>, model: &Model) -> Plan {
    let legal = (1..=16).filter(|&tp| fits(model, tp)).collect::<Vec<_>>();
    let mut sizes = legal.clone();
    if sizes.len() > 1 && !tape.once_in(4) {
        sizes.retain(|&tp| tp <= fewest_state_units(model));
    }
    let mut ranks = || {
        // Once in three times a size that tokens can be dealt out with.
        let dealt = sizes.iter().filter(|tp| dcp_sizes(model, **tp).len() > 1);
        let dealt = dealt.copied().collect::<Vec<_>>();
        match !dealt.is_empty() && tape.once_in(3) {
            true => {
                let tp = tape.pick(&dealt);
                Ranks { tp, dcp: tape.pick(&dcp_sizes(model, tp)[1..]) }
            }
            false => Ranks { tp: tape.pick(&sizes), dcp: 1 },
        }
    };
    let (from, to) = (ranks(), ranks());
    let start = match tape.below(3) {
        0 => 0,
        _ => tape.below(30),
    };
    let none = tape.once_in(20);
    let wanted = if none { 0 } else { tape.within(1, 40) };
    // What is dealt out takes more tokens to fill a few entries of a table.
    let wanted = wanted * if from.dcp * to.dcp > 1 { tape.within(1, 4) } else { 1 };
    let (fixed, per_token) = cost(model, to.tp);
    let affordable = BUDGET.saturating_sub(fixed) / per_token.max(1);
    Plan { start, tokens: wanted.min(affordable.max(1)), from, to }
}

/// Returns a document that says what one side looks like.
pub(super) fn document(tape: &mut Tape<'_>, model: &Model, plan: &Plan, which: Which) -> Value {
    let mut document = json!({"schema": "transload.deployment/1"});
    let Ranks { tp, dcp } = match which {
        Which::From => plan.from,
        Which::To => plan.to,
    };
    if tp > 1 || tape.once_in(2) {
        document["tp"] = json!(tp);
    }
    pipeline(tape, model, &mut document);
    let orders = orders(tape, model, &mut document);

    let mut groups = Vec::new();
    let (mut stripes, mut states) = (0, 1);
    for (index, (group, order)) in model.groups.iter().zip(orders).enumerate() {
        let k = tokens_per_state(group);
        // Where tokens are dealt out, often so that 16 may be a stripe.
        let block_size = match dcp > 1 && 16 % k == 0 && tape.once_in(3) {
            true => 16 * tape.within(1, 3),
            false => k * tape.within(1, 24 / k),
        };
        let recurrent = group.specs.iter().any(is_recurrent);
        // A stripe divides the blocks of all groups, and is made of whole states.
        let (stripe, state) = (common_divisor(stripes, block_size), states * k / common_divisor(states, k));
        let whole = dcp > 1 && (has_window(group) || !stripe.is_multiple_of(state) || tape.once_in(6));
        let dealt = if whole || recurrent { 1 } else { dcp };
        if dealt > 1 {
            (stripes, states) = (stripe, state);
        }
        let entries = match recurrent {
            true => 1,
            false => (plan.start + plan.tokens).div_ceil(block_size * dealt).max(1),
        };
        let num_blocks = entries + tape.below(5);
        if index == 0 {
            document["block_size"] = json!(block_size);
            document["num_blocks"] = json!(num_blocks);
        }
        let specs = group.specs.iter().map(|spec| side_spec(tape, spec));
        let specs = specs.collect::<Vec<_>>();
        let mut text = json!({"name": group.name, "layers": layers_text(tape, &group.layers)});
        for (key, value) in [("block_size", block_size), ("num_blocks", num_blocks)] {
            if document[key] != json!(value) || tape.once_in(4) {
                text[key] = json!(value);
            }
        }
        if whole {
            text["tokens"] = json!("whole");
        }
        if let Some(order) = order {
            text["order"] = order;
        }
        if tape.once_in(3) {
            text["allocation"] = json!("per_layer");
        } else if tape.once_in(6) {
            text["allocation"] = json!("one");
        }
        if tape.once_in(3) {
            text["offset"] = json!(tape.pick(&[16, 64, 1, 100]));
        }
        text["spec"] = json!(specs);
        groups.push(text);
    }
    if tape.once_in(4) {
        groups.reverse();
    }
    document["group"] = json!(groups);
    if dcp > 1 {
        document["dcp"] = json!(dcp);
        let legal = (1..=stripes).filter(|n| stripes.is_multiple_of(*n) && n.is_multiple_of(states));
        let legal = legal.collect::<Vec<_>>();
        // The shortest, the longest, 16 or any other.
        let interleave = match (tape.below(4), &legal[..]) {
            (_, []) => 1,
            (0, [shortest, ..]) => *shortest,
            (1, [.., longest]) => *longest,
            (2, all) if all.contains(&16) => 16,
            (_, all) => tape.pick(all),
        };
        if interleave > 1 || tape.once_in(2) {
            document["interleave"] = json!(interleave);
        }
    }
    for index in 0..model.groups.len() {
        if tape.once_in(3) {
            pad(tape, &mut document, index, None);
        }
    }
    for index in 0..model.groups.len() {
        tell_stages_apart(tape, &mut document, index);
    }
    document
}

fn pipeline(tape: &mut Tape<'_>, model: &Model, document: &mut Value) {
    let layers = model.num_layers;
    let pp = match tape.below(2) {
        0 => 1,
        _ => tape.within(1, layers.min(4)),
    };
    let cut_by_hand = tape.once_in(2);
    if pp > 1 || tape.once_in(4) {
        document["pp"] = json!(pp);
    }
    let highest = model.groups.iter().flat_map(|g| &g.layers).max();
    if highest.is_some_and(|l| l + 1 < layers) || tape.once_in(4) {
        document["num_layers"] = json!(layers);
    }
    if pp > 1 && cut_by_hand {
        let mut counts = vec![1; pp as usize];
        for _ in 0..layers - pp {
            counts[tape.below(pp) as usize] += 1;
        }
        document["pp_layers"] = json!(counts);
    }
}

/// Returns the order that each group states. May set the deployment's own, which pages of several specs do not
/// look at.
fn orders(tape: &mut Tape<'_>, model: &Model, document: &mut Value) -> Vec<Option<Value>> {
    let mut orders = Vec::new();
    for group in &model.groups {
        orders.push(match &group.specs[..] {
            [spec] => order(tape, spec),
            _ => tape.once_in(4).then(|| json!("LB")),
        });
    }
    // Let the deployment state the order of one group. All others must then still mean the same.
    let alone = model.groups[0].specs.len() == 1;
    let Some(lifted) = (alone && tape.once_in(2)).then(|| orders[0].clone()).flatten() else {
        return orders;
    };
    let scales = |g: &ModelGroup| matches!(g.specs[0]["kind"].as_str(), Some("compressed" | "indexer"));
    if scales(&model.groups[0]) {
        return orders;
    }
    document["order"] = lifted.clone();
    for (group, order) in model.groups.iter().zip(&mut orders) {
        if group.specs.len() > 1 {
            continue;
        }
        if order.is_none() {
            *order = Some(match scales(group) {
                true => json!("LB[SD,SD]"),
                false => json!("LBSHC"),
            });
        } else if *order == Some(lifted.clone()) {
            *order = None;
        }
    }
    orders
}

/// Returns the fields of a spec that a side may choose for itself.
fn side_spec(tape: &mut Tape<'_>, spec: &Value) -> Value {
    let mut spec = spec.clone();
    match spec["kind"].as_str().unwrap_or_default() {
        "mamba2_conv" | "gdn_conv" | "mamba1_conv" => {
            spec["conv_layout"] = json!(tape.pick(&["DS", "SD"]));
            if spec["kind"] == "mamba2_conv" && tape.once_in(4) {
                spec["conv_states"] = json!(spec["conv_kernel"].as_u64().map(|k| k - 1));
            }
        }
        "attention" if spec.get("v_head_dim").is_none() && tape.once_in(8) => {
            spec["v_head_dim"] = spec["head_dim"].clone();
        }
        _ => {}
    }
    spec
}

/// Gives a group another place on some pipeline stages than on others, in some cases.
fn tell_stages_apart(tape: &mut Tape<'_>, document: &mut Value, index: usize) {
    let stages = document["pp"].as_u64().unwrap_or(1);
    if stages == 1 || !tape.once_in(3) {
        return;
    }
    let side = Side::read(document).expect("a document that reads");
    document["group"][index]["stage"] = json!(vec![json!({}); stages as usize]);
    for stage in 0..stages {
        let group = &mut document["group"][index];
        let outer = ["block_stride", "layer_stride"].into_iter().max_by_key(|key| group[*key].as_u64());
        let outer = outer.filter(|key| group.get(*key).is_some());
        if tape.once_in(2) {
            group["stage"][stage as usize]["offset"] = json!(tape.pick(&[0, 4, 36]));
        }
        match outer {
            // The other one stays the group's.
            Some(outer) if tape.once_in(2) => {
                let least = group[outer].as_u64().unwrap_or(0);
                group["stage"][stage as usize][outer] = json!(least + 4 * tape.below(5));
            }
            // The reader takes a stage without layers for one with a layer; the oracle does not.
            None if tape.once_in(2) && !side.layers_of(stage * side.tp, &side.groups[index]).is_empty() => {
                pad(tape, document, index, Some(stage))
            }
            _ => {}
        }
    }
}

/// Lets blocks and layers lie further apart than they must, on all stages or on one.
fn pad(tape: &mut Tape<'_>, document: &mut Value, index: usize, stage: Option<u64>) {
    let name = document["group"][index]["name"].as_str().unwrap_or_default().to_owned();
    let dense = |document: &Value, axis| stride(document, &name, stage, axis).ok().flatten();
    let step = match tape.once_in(8) {
        true => 1,
        false => 4,
    };
    let Some(block) = dense(document, 'B') else {
        // Blocks lie inside a bracket: there is no one stride.
        return;
    };
    let group = |document: &mut Value, key: &str, value: u64| {
        let group = &mut document["group"][index];
        let place = match stage {
            None => group,
            Some(stage) => &mut group["stage"][stage as usize],
        };
        place[key] = json!(value);
    };
    let layer = dense(document, 'L');
    // Whichever stride is larger belongs to the outer axis. With one layer, or one block, they may
    // be the same; then it is the order that tells.
    let layers_outside = layers_outside(&document["group"][index], document);
    let per_layer = document["group"][index]["allocation"] == "per_layer";
    if layers_outside {
        group(document, "block_stride", block + step * tape.below(5));
        if !per_layer && layer.is_some() && tape.once_in(2) {
            let layer = dense(document, 'L').unwrap_or(0);
            group(document, "layer_stride", layer + step * tape.below(5));
        }
    } else if let Some(layer) = layer {
        group(document, "layer_stride", layer + step * tape.below(5));
        let block = dense(document, 'B').unwrap_or(0);
        group(document, "block_stride", block + step * tape.below(5));
    }
}

/// Returns whether layers lie outside blocks in a group of this document.
fn layers_outside(group: &Value, document: &Value) -> bool {
    if group["spec"].as_array().is_some_and(|specs| specs.len() > 1) {
        return true;
    }
    match group.get("order").or(document.get("order")) {
        None => true,
        Some(Value::Array(list)) => list.iter().position(|i| *i == 0) < list.iter().position(|i| *i == 1),
        Some(order) => {
            let text = order.as_str().unwrap_or_default();
            text.find('L') < text.find('B') || text.len() == 3
        }
    }
}

fn layers_text(tape: &mut Tape<'_>, layers: &[u64]) -> String {
    let mut parts = Vec::<(u64, u64)>::new();
    for &layer in layers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == layer && tape.below(4) < 3 => *last = layer,
            _ => parts.push((layer, layer)),
        }
    }
    let text = parts.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// Returns the number of tokens of which every block must hold a multiple.
fn tokens_per_state(group: &ModelGroup) -> u64 {
    let stated = group.specs.iter().filter_map(|s| s["tokens_per_state"].as_u64());
    stated.max().unwrap_or(1)
}

fn has_window(group: &ModelGroup) -> bool {
    let windows = ["sliding_window", "chunk_size"];
    group.specs.iter().any(|spec| windows.iter().any(|window| spec.get(window).is_some()))
}

/// Returns the numbers of ranks, out of `tp`, that tokens can be dealt out to; 1 first.
fn dcp_sizes(model: &Model, tp: u64) -> Vec<u64> {
    let side = plain(model);
    let dealt =
        model.groups.iter().zip(&side.groups).filter(|(of, _)| !has_window(of) && !of.specs.iter().any(is_recurrent));
    let units = dealt.flat_map(|(_, group)| group.specs.iter().flat_map(|spec| &spec.components).map(|c| c.units));
    let units = units.collect::<Vec<_>>();
    if units.is_empty() {
        return vec![1];
    }
    let sizes = [1, 2, 4, 8, 3].into_iter().filter(|dcp| tp.is_multiple_of(*dcp));
    sizes.filter(|dcp| units.iter().all(|units| tp.is_multiple_of(units * dcp))).collect()
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

pub(super) fn is_recurrent(spec: &Value) -> bool {
    let kind = spec["kind"].as_str().unwrap_or_default();
    ["mamba", "gdn", "linear"].iter().any(|k| kind.starts_with(k))
}

/// Reads the model as a deployment of one rank.
fn plain(model: &Model) -> Side {
    let groups = model.groups.iter().map(|group| {
        let specs = group.specs.iter().map(|spec| {
            let mut spec = spec.clone();
            if spec["kind"].as_str().is_some_and(|k| k.ends_with("_conv")) {
                spec["conv_layout"] = json!("DS");
            }
            spec
        });
        json!({"name": group.name, "layers": layers_text(&mut Tape::new(&[], super::Reach::Settled), &group.layers),
               "block_size": 24, "num_blocks": 1, "spec": specs.collect::<Vec<_>>()})
    });
    let document = json!({"group": groups.collect::<Vec<_>>(), "num_layers": model.num_layers});
    Side::read(&document).expect("a model that reads as a deployment")
}

fn fits(model: &Model, tp: u64) -> bool {
    let side = plain(model);
    let specs = side.groups.iter().flat_map(|g| &g.specs);
    let mut components = specs.flat_map(|s| &s.components);
    components.all(|c| c.held_by(tp, 0).is_ok())
}

/// Returns the fewest heads (Mamba2) or channels (Mamba1) of the model's states.
fn fewest_state_units(model: &Model) -> u64 {
    let side = plain(model);
    let specs = side.groups.iter().flat_map(|g| &g.specs);
    let mamba = specs.filter(|s| s.kind.starts_with("mamba"));
    let units = mamba.map(|s| s.components[0].units);
    units.min().unwrap_or(u64::MAX)
}

/// Returns the destination bytes on all ranks: those of the states, and those of each token.
fn cost(model: &Model, tp: u64) -> (u64, u64) {
    let (mut fixed, mut per_token) = (0, 0);
    for group in &plain(model).groups {
        for spec in &group.specs {
            for c in &spec.components {
                let copies = c.units.max(tp);
                let bytes = group.layers.len() as u64 * copies * c.extents[0] * c.extents[1] * c.element;
                match spec.tokens_per_state {
                    None => fixed += bytes,
                    Some(_) => per_token += bytes,
                }
            }
        }
    }
    (fixed, per_token)
}

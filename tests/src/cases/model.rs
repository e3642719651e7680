//! The model whose cache both sides hold.

use serde_json::{Value, json};

use super::Tape;

/// The properties that both sides share.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) groups: Vec<ModelGroup>,
    /// Layers of the model; some may have no cache.
    pub(super) num_layers: u64,
}

#[derive(Debug)]
pub(super) struct ModelGroup {
    pub(super) name: &'static str,
    pub(super) layers: Vec<u64>,
    /// The documents of the specs, except for the fields that each side chooses.
    pub(super) specs: Vec<Value>,
}

const DTYPES: [&str; 7] = ["bf16", "u8", "f32", "f16", "f8e4m3", "f8e5m2", "i8"];

impl Model {
    pub(super) fn read(tape: &mut Tape<'_>) -> Self {
        let layers = tape.within(1, 5);
        let all = (0..layers).collect::<Vec<_>>();
        let mut groups = Vec::new();
        let main = |name, specs| ModelGroup { name, layers: all.clone(), specs };
        match tape.below(16) {
            0..=4 => {
                groups.push(main("attn", vec![attention(tape, "")]));
                match tape.below(12) {
                    10 => groups[0].specs.push(scaled(tape, "indexer", 1)),
                    11 => another_window(tape, &mut groups[0].specs),
                    _ => {}
                }
            }
            5 => groups.push(main("attn", vec![attention(tape, "sliding_window")])),
            6 => groups.push(main("attn", vec![attention(tape, "chunk_size")])),
            7 => groups.push(main("mla", vec![mla(tape)])),
            8 => groups.push(main("mla", vec![mla(tape), scaled(tape, "indexer", 1)])),
            9 => {
                let k = tape.within(1, 4);
                groups.push(main("c4", vec![scaled(tape, "compressed", k)]));
                if tape.once_in(2) {
                    groups[0].specs.push(scaled(tape, "indexer", k));
                }
            }
            10 => {
                let (heads, k) = (tape.within(1, 8), tape.within(1, 3));
                let entry = tape.within(1, 9);
                groups.push(main(
                    "opaque",
                    vec![json!({"kind": "opaque", "heads": heads, "entry_bytes": entry,
                                "tokens_per_state": k})],
                ));
            }
            11 => groups.push(main("mamba", mamba2(tape))),
            12 => groups.push(main("gdn", gated_delta_net(tape))),
            13 => groups.push(main("mamba", mamba1(tape))),
            14 => groups.push(main("linear", vec![linear(tape)])),
            _ => {
                // One spec of a recurrent cache by itself.
                let specs = match tape.below(2) {
                    0 => mamba2(tape),
                    _ => gated_delta_net(tape),
                };
                let one = tape.pick(&specs);
                groups.push(main("state", vec![one]));
            }
        }
        if layers > 1 && tape.once_in(3) {
            second_group(tape, &mut groups);
        }
        let highest = groups.iter().flat_map(|g| &g.layers).max();
        let num_layers = highest.map_or(1, |l| l + 1) + u64::from(tape.once_in(8));
        Self { groups, num_layers }
    }
}

/// Adds a group of attention layers, and shares out the layers: some each, or all in both.
fn second_group(tape: &mut Tape<'_>, groups: &mut Vec<ModelGroup>) {
    let window = tape.pick(&["", "sliding_window", "chunk_size"]);
    let specs = vec![attention(tape, window)];
    let all = groups[0].layers.clone();
    let mut layers = all.clone();
    if !tape.once_in(4) {
        let mut mine = Vec::new();
        layers.clear();
        for layer in all {
            match tape.below(2) {
                0 => mine.push(layer),
                _ => layers.push(layer),
            }
        }
        if mine.is_empty() || layers.is_empty() {
            let mut both = [mine, layers].concat();
            layers = both.split_off(1);
            mine = both;
        }
        groups[0].layers = mine;
    }
    groups.push(ModelGroup { name: "more", layers, specs });
}

fn attention(tape: &mut Tape<'_>, window: &str) -> Value {
    let heads = tape.within(1, 8);
    let width = tape.within(1, 8);
    let mut spec = json!({"kind": "attention", "heads": heads, "head_dim": width,
                          "dtype": tape.pick(&DTYPES)});
    if tape.once_in(4) {
        spec["v_head_dim"] = json!(tape.within(1, 8));
    }
    if !window.is_empty() {
        spec[window] = json!(tape.within(1, 30));
    }
    spec
}

/// Adds a second attention spec with a smaller window, of which less travels. It often has the same shape, so that pages
/// can move as one.
fn another_window(tape: &mut Tape<'_>, specs: &mut Vec<Value>) {
    let window = tape.pick(&["sliding_window", "chunk_size"]);
    let mut other = attention(tape, window);
    if tape.below(4) > 0 {
        let travels = other[window].clone();
        other = specs[0].clone();
        other[window] = travels;
    }
    specs.insert(tape.below(2) as usize, other);
}

fn mla(tape: &mut Tape<'_>) -> Value {
    let latent = tape.within(1, 12);
    json!({"kind": "mla", "latent": latent, "dtype": tape.pick(&DTYPES)})
}

fn scaled(tape: &mut Tape<'_>, kind: &str, tokens_per_state: u64) -> Value {
    let (data, scale) = (tape.within(1, 12), tape.within(1, 4));
    let mut spec = json!({"kind": kind, "data_bytes": data, "scale_bytes": scale});
    if kind == "compressed" || tokens_per_state > 1 || tape.once_in(2) {
        spec["tokens_per_state"] = json!(tokens_per_state);
    }
    spec
}

fn mamba2(tape: &mut Tape<'_>) -> Vec<Value> {
    let (groups, per_group) = match tape.below(2) {
        0 => (1, tape.within(1, 8)),
        _ => (tape.within(2, 4), tape.within(1, 2)),
    };
    let heads = groups * per_group;
    let (head_dim, state) = (tape.within(1, 4), tape.within(1, 4));
    let kernel = tape.within(2, 4);
    vec![
        json!({"kind": "mamba2_conv", "d_inner": heads * head_dim, "heads": heads,
               "groups": groups, "state_size": state, "conv_kernel": kernel,
               "dtype": tape.pick(&DTYPES)}),
        json!({"kind": "mamba2_ssm", "heads": heads, "head_dim": head_dim, "state_size": state,
               "dtype": tape.pick(&DTYPES)}),
    ]
}

fn gated_delta_net(tape: &mut Tape<'_>) -> Vec<Value> {
    let keys = tape.within(1, 4);
    let values = keys * tape.within(1, 2);
    let (key_dim, value_dim) = (tape.within(1, 4), tape.within(1, 4));
    let kernel = tape.within(2, 4);
    vec![
        json!({"kind": "gdn_conv", "key_heads": keys, "key_head_dim": key_dim,
               "value_heads": values, "value_head_dim": value_dim, "conv_kernel": kernel,
               "dtype": tape.pick(&DTYPES)}),
        json!({"kind": "gdn_ssm", "value_heads": values, "value_head_dim": value_dim,
               "key_head_dim": key_dim, "dtype": tape.pick(&DTYPES)}),
    ]
}

fn mamba1(tape: &mut Tape<'_>) -> Vec<Value> {
    let (inner, state) = (tape.within(1, 12), tape.within(1, 4));
    let kernel = tape.within(2, 4);
    vec![
        json!({"kind": "mamba1_conv", "d_inner": inner, "conv_kernel": kernel,
               "dtype": tape.pick(&DTYPES)}),
        json!({"kind": "mamba1_ssm", "d_inner": inner, "state_size": state,
               "dtype": tape.pick(&DTYPES)}),
    ]
}

fn linear(tape: &mut Tape<'_>) -> Value {
    let (heads, width) = (tape.within(1, 8), tape.within(1, 4));
    let mut spec = json!({"kind": "linear", "heads": heads, "head_dim": width,
                          "dtype": tape.pick(&DTYPES)});
    if tape.once_in(2) {
        spec["v_head_dim"] = json!(tape.within(1, 4));
    }
    spec
}

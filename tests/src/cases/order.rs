//! Orders in every spelling of the grammar.

use serde_json::{Value, json};

use super::Tape;

/// Returns an order for a group of one spec; `None` to leave it to the default.
pub(super) fn order(tape: &mut Tape<'_>, spec: &Value) -> Option<Value> {
    match spec["kind"].as_str().unwrap_or_default() {
        "compressed" | "indexer" => {
            if tape.dispute("a bracketless order of data and scales", 8) {
                return Some(permutation(tape));
            }
            (tape.below(3) > 0).then(|| bracket(tape, true))
        }
        "attention" => {
            let even = spec.get("v_head_dim").is_none_or(|v| *v == spec["head_dim"]);
            match tape.below(8) {
                0 => None,
                1 => Some(json!(tape.pick(&["NHD", "HND"]))),
                2 | 3 => Some(usual(tape, even)),
                4 => Some(permutation(tape)),
                5 if even => Some(sub_axes(tape)),
                6 if !even && tape.dispute("KD side by side for unequal widths", 2) => {
                    Some(json!(tape.pick(&["LBSHKD", "BLHSKD", "LKDBSH"])))
                }
                _ => Some(bracket(tape, false)),
            }
        }
        "mla" if tape.dispute("an order of mla without H or with D", 4) => {
            Some(json!(tape.pick(&["LBSC", "BLSHD", "SBLD", "LBDS"])))
        }
        "mamba2_conv" | "gdn_conv" if tape.dispute("a bracket for a convolution", 2) => {
            Some(json!(tape.pick(&["LBSH[D,D,D]", "LB[SHD,HSD,DSH]", "LS[BDH,HDB,BHD]", "[LBHSD,BLDSH,LDSBH]",])))
        }
        _ => match tape.below(4) {
            0 => None,
            1 => Some(json!(tape.pick(&["NHD", "HND"]))),
            _ => Some(permutation(tape)),
        },
    }
}

/// Returns orders that engines use.
fn usual(tape: &mut Tape<'_>, even: bool) -> Value {
    let mut usual = vec!["LBHSC", "LBSHC", "BLSHC", "BHLSC", "LHBSC", "BLHNC", "LBH[DS,SD]", "L[BSHD,BSHD]"];
    if even {
        usual.extend(["KLBSHD", "LKBSHD", "LBKHND"]);
    }
    json!(tape.pick(&usual))
}

/// Returns one of the 120 permutations, in letters or as indices.
fn permutation(tape: &mut Tape<'_>) -> Value {
    let state = tape.pick(&['S', 'N']);
    let mut axes = [(0, 'L'), (1, 'B'), (2, state), (3, 'H'), (4, 'C')];
    tape.shuffle(&mut axes);
    match tape.below(4) {
        0..=2 => json!(axes.map(|(_, letter)| letter).iter().collect::<String>()),
        _ => json!(axes.map(|(index, _)| index)),
    }
}

/// Returns one of the 720 permutations with `C` written out.
fn sub_axes(tape: &mut Tape<'_>) -> Value {
    let state = tape.pick(&['S', 'N']);
    let mut axes = ['L', 'B', state, 'H', 'K', 'D'];
    tape.shuffle(&mut axes);
    json!(axes.iter().collect::<String>())
}

/// Returns any number of shared outer axes, then an order for each of two components.
fn bracket(tape: &mut Tape<'_>, headless: bool) -> Value {
    let state = tape.pick(&['S', 'N']);
    let mut axes = vec!['L', 'B', 'H', state];
    if headless && tape.below(3) < 2 {
        axes.retain(|&a| a != 'H');
    }
    if tape.once_in(2) {
        tape.shuffle(&mut axes);
    }
    let shared = match tape.below(3) {
        // Most often what is shared is layers and blocks.
        0 | 1 => axes.len().min(2 + usize::from(tape.once_in(2))),
        _ => tape.below(axes.len() as u64 + 1) as usize,
    };
    let mut inside = || {
        let mut own = axes[shared..].to_vec();
        own.push('D');
        tape.shuffle(&mut own);
        own.iter().collect::<String>()
    };
    let (first, second) = (inside(), inside());
    let outer = axes[..shared].iter().collect::<String>();
    json!(format!("{outer}[{first},{second}]"))
}

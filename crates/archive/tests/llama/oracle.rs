//! An independent writer of states in llama.cpp's format.

/// The rows of a model: type and bytes of each layer's keys, and of its values.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) keys: Vec<(i32, u64)>,
    pub(crate) values: Vec<(i32, u64)>,
}

pub(crate) fn f16(layers: usize, row: u64) -> Model {
    Model { keys: vec![(1, row); layers], values: vec![(1, row); layers] }
}

fn element(kind: i32) -> u64 {
    match kind {
        0 => 4,
        1 | 30 => 2,
        kind => panic!("type {kind} is not made of numbers"),
    }
}

/// Returns the row of a token in a layer. As in a model, it depends on all tokens before it.
fn row(history: &blake3::Hash, side: u8, layer: usize, bytes: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(history.as_bytes()).update(&[side]);
    hasher.update(&(layer as u64).to_le_bytes());
    let mut row = vec![0; bytes as usize];
    hasher.finalize_xof().fill(&mut row);
    row
}

pub(crate) fn state(model: &Model, tokens: &[u32], order: &[usize], transposed: bool) -> Vec<u8> {
    let mut history = Vec::new();
    let mut hasher = blake3::Hasher::new();
    for token in tokens {
        history.push(hasher.update(&token.to_le_bytes()).finalize());
    }
    let mut bytes = Vec::new();
    let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
    for value in [0xaf14_3cd8, 0, 1, order.len() as u32] {
        word(&mut bytes, value);
    }
    for position in order {
        for value in [*position as u32, 1, 0] {
            word(&mut bytes, value);
        }
    }
    word(&mut bytes, transposed.into());
    word(&mut bytes, model.keys.len() as u32);
    let sides = [(0, &model.keys, false), (1, &model.values, transposed)];
    for (side, layers, transposed) in sides {
        for (layer, (kind, length)) in layers.iter().enumerate() {
            bytes.extend(kind.to_le_bytes());
            let rows = order.iter().map(|position| row(&history[*position], side, layer, *length));
            let rows: Vec<Vec<u8>> = rows.collect();
            if !transposed {
                bytes.extend(length.to_le_bytes());
                bytes.extend(rows.concat());
                continue;
            }
            let element = element(*kind);
            word(&mut bytes, element as u32);
            word(&mut bytes, (length / element) as u32);
            for at in (0..*length as usize).step_by(element as usize) {
                for row in &rows {
                    bytes.extend(&row[at..at + element as usize]);
                }
            }
        }
    }
    bytes
}

pub(crate) fn sorted(model: &Model, tokens: &[u32], transposed: bool) -> Vec<u8> {
    let order: Vec<usize> = (0..tokens.len()).collect();
    state(model, tokens, &order, transposed)
}

pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    let tokens = (0..count as u32).map(|at| seed.wrapping_mul(0x9e37_79b9) ^ at.wrapping_mul(7));
    tokens.collect()
}

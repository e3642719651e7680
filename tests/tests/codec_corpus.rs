//! Replays the corpus of the fuzz target for encoded keys and values, and keeps its seeds current.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the form has changed.

use transload_layout::Dtype;
use transload_transfer::plan::codec::{Codec, Rows};

#[path = "../../fuzz/checks/codec.rs"]
mod check;
#[path = "../../fuzz/checks/replay.rs"]
mod replay;

/// Encoded rows of small numbers, one of which is infinite.
fn seed(form: u8, [keys, values, tokens]: [u8; 3]) -> Vec<u8> {
    let codec = Codec::ALL[usize::from(form % 3)];
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][usize::from(form / 3)];
    let rows = Rows::new(dtype, keys.into(), values.into()).unwrap();
    let count = usize::from(tokens) * (usize::from(keys) + usize::from(values));
    let numbers = (0..count).flat_map(|at| {
        let number = if at == 5 { f32::INFINITY } else { (at * 37 % 64) as f32 / 32.0 };
        let bits = number.to_bits();
        match dtype {
            Dtype::F32 => bits.to_le_bytes().to_vec(),
            Dtype::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
            // Any finite f16 will do.
            _ => ((at * 251 % 0x7bff) as u16).to_le_bytes().to_vec(),
        }
    });
    let (mut codes, mut exact) = (Vec::new(), Vec::new());
    codec.encode(rows, &numbers.collect::<Vec<u8>>(), &mut codes, &mut exact);
    [vec![form, keys, values, tokens], codes, exact].concat()
}

#[test]
fn seeds_are_current_and_the_corpus_does_no_harm() {
    let seeds = vec![
        ("exact-f32", seed(0, [2, 3, 5])),
        ("q8-f32", seed(1, [2, 3, 5])),
        ("q4-f16", seed(5, [3, 40, 3])),
        ("q8-bf16", seed(7, [33, 1, 35])),
        ("q4-bf16", seed(8, [4, 4, 40])),
        ("q4-keys-alone", seed(8, [7, 0, 33])),
        ("q4-values-alone", seed(8, [0, 33, 2])),
        ("empty", vec![8, 0, 0, 9]),
    ];
    replay::replay("codec", seeds, 300, check::check);
}

//! Replays every interesting input that fuzzing has found, and seeds of each kind.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the format has changed.

use crate::oracle::{Model, f16, sorted, state, tokens};

#[path = "../../../../fuzz/checks/llama.rs"]
mod check;
#[path = "../../../../fuzz/checks/replay.rs"]
mod replay;

fn session(tokens: &[u32], state: &[u8]) -> Vec<u8> {
    let mut file = b"qsgg\x03\0\0\0".to_vec();
    file.extend((tokens.len() as u32).to_le_bytes());
    file.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    file.extend(&state[8..]);
    file
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let own = tokens(1, 3);
    let quantized = Model { keys: vec![(8, 34), (30, 6)], values: vec![(1, 4), (99, 5)] };
    let latents = Model { keys: vec![(0, 12)], values: vec![] };
    let rows = |model: &Model, transposed| [&[1, 3][..], &state(model, &own, &[2, 0, 1], transposed)].concat();
    let hybrid = [&sorted(&latents, &own, false)[..], b"more"].concat();
    vec![
        ("rows", rows(&f16(2, 4), false)),
        ("transposed", rows(&f16(2, 4), true)),
        ("quantized", rows(&quantized, false)),
        ("latents", rows(&latents, false)),
        ("whole", [&[2, 3], &hybrid[..]].concat()),
        ("session", [&[0], &session(&own, &sorted(&f16(2, 4), &own, true))[..]].concat()),
        ("session-hybrid", [&[0], &session(&own, &hybrid)[..]].concat()),
    ]
}

#[test]
fn seeds_are_current_and_the_corpus_does_no_harm() {
    replay::replay("llama", seeds(), usize::MAX, check::check);
}

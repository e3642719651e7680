//! Every input that fuzzing found worth keeping, replayed, and seeds of each kind.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the format has changed.

use std::path::PathBuf;

use crate::oracle::{Model, f16, sorted, state, tokens};

#[path = "../../../../fuzz/checks/llama.rs"]
mod check;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/llama")
}

/// A session file of this state.
fn session(tokens: &[u32], state: &[u8]) -> Vec<u8> {
    let mut file = b"qsgg\x03\0\0\0".to_vec();
    file.extend((tokens.len() as u32).to_le_bytes());
    file.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    file.extend(&state[8..]);
    file
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let own = tokens(1, 3);
    let quantized = Model {
        keys: vec![(8, 34), (30, 6)],
        values: vec![(1, 4), (99, 5)],
    };
    let latents = Model {
        keys: vec![(0, 12)],
        values: vec![],
    };
    let rows = |model: &Model, transposed| {
        [&[1, 3][..], &state(model, &own, &[2, 0, 1], transposed)].concat()
    };
    let hybrid = [&sorted(&latents, &own, false)[..], b"more"].concat();
    vec![
        ("rows", rows(&f16(2, 4), false)),
        ("transposed", rows(&f16(2, 4), true)),
        ("quantized", rows(&quantized, false)),
        ("latents", rows(&latents, false)),
        ("whole", [&[2, 3], &hybrid[..]].concat()),
        (
            "session",
            [&[0], &session(&own, &sorted(&f16(2, 4), &own, true))[..]].concat(),
        ),
        (
            "session-hybrid",
            [&[0], &session(&own, &hybrid)[..]].concat(),
        ),
    ]
}

#[test]
fn seeds_are_current_and_the_corpus_does_no_harm() {
    for (name, seed) in seeds() {
        let path = corpus().join(name);
        if std::env::var_os("TRANSLOAD_BLESS").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&path, &seed).unwrap();
        }
        let there = std::fs::read(&path).unwrap_or_default();
        assert!(
            there == seed,
            "{name} is not current: TRANSLOAD_BLESS=1 writes it"
        );
    }
    for entry in std::fs::read_dir(corpus()).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        check::check(&data);
        for end in 0..data.len() {
            check::check(&data[..end]);
        }
        for at in 0..data.len() {
            for bits in [1, 0x80, 0xff] {
                let mut data = data.clone();
                data[at] ^= bits;
                check::check(&data);
            }
        }
    }
}

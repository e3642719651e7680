//! Session files.

use transload_archive::llama::{LlamaError, Session};

use crate::oracle::{Model, f16, sorted, tokens};

fn file(tokens: &[u32], state: &[u8]) -> Vec<u8> {
    let head = [0x6767_7371, 3, tokens.len() as u32];
    let words = head.iter().chain(tokens);
    let mut file: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    file.extend(&state[8..]);
    file
}

fn recurrent(count: usize) -> Vec<u8> {
    let words = [1, count as u32 - 1, 0, 0, 2, 0, 64, 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend((0..4096_u32).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()));
    bytes
}

#[test]
fn recurrent_layers_behind_latents_are_other_caches() {
    let latents = Model { values: vec![], ..f16(2, 8) };
    // What begins the cache would be values of f16 for one number of tokens, and of half a number for another.
    for count in [2, 17, 20, 600] {
        let own = tokens(1, count);
        let state = [sorted(&latents, &own, false), recurrent(count)].concat();
        let session = Session::read(&file(&own, &state)).unwrap();
        assert_eq!((session.cells, session.layers), (count, 2));
        assert_eq!(session.values, []);
        assert_eq!(session.rest, recurrent(count).len());
        assert_eq!(session.positions, (0, count as i32 - 1));
    }
}

#[test]
fn values_that_are_damaged_are_no_other_caches() {
    let own = tokens(1, 20);
    let state = sorted(&f16(2, 8), &own, false);
    let cut = Session::read(&file(&own, &state[..state.len() - 1]));
    assert!(matches!(cut, Err(LlamaError::Cut { .. })), "{cut:?}");
    let keys = sorted(&Model { values: vec![], ..f16(2, 8) }, &own, false);
    let damaged = [keys, vec![0xff; 400]].concat();
    assert!(Session::read(&file(&own, &damaged)).is_err());
}

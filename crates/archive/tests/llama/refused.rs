//! States that are refused, each with the reason.

use std::sync::Arc;

use transload_archive::Model as Identity;
use transload_archive::llama::{LlamaError, States};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::oracle::{Model, f16, sorted, state, tokens};
use crate::{load, states};

/// Offsets of the words in a state of three cells.
const STREAMS: usize = 8;
const CELLS: usize = 12;
const FIRST_CELL: usize = 16;
const TRANSPOSED: usize = 16 + 3 * 12;
const LAYERS: usize = TRANSPOSED + 4;
const TYPE: usize = LAYERS + 4;
const ROW: usize = TYPE + 4;

fn with(mut state: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    state[at..at + bytes.len()].copy_from_slice(bytes);
    state
}

#[test]
fn each_fault_has_a_name() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let (model, own) = (f16(2, 8), tokens(1, 3));
    let good = sorted(&model, &own, false);
    let states = states(&store, &good);
    let word = |at: usize, value: u32| with(good.clone(), at, &value.to_le_bytes());
    let long = |at: usize, value: u64| with(good.clone(), at, &value.to_le_bytes());
    for (state, said) in [
        (vec![], "the magic number at byte 0 takes 4 bytes, and 0 are left"),
        (word(0, 0xaf14_3cd9), "begins with 0xaf143cd9 and not with 0xaf143cd8"),
        (word(STREAMS, 2), "has 2 streams"),
        (word(STREAMS, 0), "has 0 streams"),
        (word(CELLS, 0), "has no cells"),
        (word(CELLS, u32::MAX), "the state is cut"),
        (word(FIRST_CELL + 4, u32::MAX), "the sequences of a cell at byte 24 takes 17179869180 bytes"),
        (word(FIRST_CELL, 3), "cell 0 of the state is of position 3: only positions 0 to 2"),
        (word(FIRST_CELL, u32::MAX), "cell 0 of the state is of position -1"),
        (word(FIRST_CELL, 1), "cell 1 of the state is a second one of position 1"),
        (word(TRANSPOSED, 2), "byte 52 says 2"),
        (word(LAYERS, u32::MAX), "has 4294967295 layers"),
        (word(LAYERS, 0), "has 0 layers"),
        (word(LAYERS, 65_536), "the state is cut"),
        (long(ROW, 0), "the keys of layer 0 are 0 bytes a cell of type 1: a row must not be empty"),
        (long(ROW, 7), "a row is not a whole number of its elements"),
        (long(ROW, u64::MAX - 1), "takes 55340232221128654842 bytes"),
        (word(TYPE, 8), "other layers, types or row lengths"),
        ([&good[..], b"x"].concat(), "1 bytes follow the last layer"),
    ] {
        let error = states.save(&own, &state).unwrap_err().to_string();
        assert!(error.contains(said), "{error}\nand not\n{said}");
    }
    // A cell of two sequences is four bytes longer.
    let mut two = word(FIRST_CELL + 4, 2);
    two.splice(FIRST_CELL + 8..FIRST_CELL + 8, [0; 4]);
    let error = states.save(&own, &two).unwrap_err().to_string();
    assert!(error.contains("cell 0 of the state is in 2 sequences"), "{error}");

    let error = states.save(&own[..2], &good).unwrap_err();
    assert!(matches!(error, LlamaError::Tokens { tokens: 2, cells: 3 }), "{error}");
    assert_eq!(load(&states, &own), None, "nothing was saved");
}

#[test]
fn transposed_values_are_made_of_numbers() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let own = tokens(1, 3);
    let transposed = state(&f16(1, 8), &own, &[0, 1, 2], true);
    let values = transposed.len() - 3 * 8 - 12;
    let refused = |at: usize, value: u32| {
        let state = with(transposed.clone(), at, &value.to_le_bytes());
        let made = States::new(store.clone(), Identity::new("m", "w"), &state);
        made.unwrap_err().to_string()
    };
    assert!(refused(values, 8).contains("quantized values cannot be transposed"));
    assert!(refused(values + 4, 1).contains("its elements have another length"));
    assert!(refused(values + 8, 0).contains("the values of layer 0 are 0 bytes a cell"));
}

#[test]
fn a_state_that_is_cut_is_refused() {
    for (model, transposed) in
        [(f16(2, 4), false), (f16(2, 4), true), (Model { keys: vec![(8, 34), (1, 6)], values: vec![] }, false)]
    {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let own = tokens(1, 5);
        let whole = sorted(&model, &own, transposed);
        let states = states(&store, &whole);
        for end in 0..whole.len() {
            states.save(&own, &whole[..end]).unwrap_err();
        }
        assert_eq!(load(&states, &own), None);
    }
}

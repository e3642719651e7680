//! A state that llama.cpp has written (that of llama-cpp-python 0.3.36, of a model of two layers with random weights).

use std::sync::Arc;

use transload_archive::llama::Session;
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::{load, states};

#[test]
fn what_llama_cpp_wrote_is_restored_byte_for_byte() {
    let file = include_bytes!("vectors/tiny.ggsq");
    let session = Session::read(file).unwrap();
    assert_eq!((session.cells, session.tokens.len()), (20, 20));
    // A session file lacks the first eight bytes of the state.
    let mut state = 0xaf14_3cd8_u64.to_le_bytes().to_vec();
    state.extend(&file[12 + 4 * 20..]);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let states = states(&store, &state);
    states.save(&session.tokens, &state).unwrap();
    assert!(load(&states, &session.tokens) == Some((20, state)));
}

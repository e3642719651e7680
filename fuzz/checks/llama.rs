//! The fuzz check of states and session files of llama.cpp. The test that replays the corpus includes it, too.
//!
//! The first byte chooses the meaning of the rest: a session file; a state to save, whose number of tokens is the next
//! byte; or a state to store as a whole.

use std::sync::Arc;

use transload_archive::Model;
use transload_archive::llama::{Session, States};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

/// Checks any bytes; panics only if a check fails.
pub(crate) fn check(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let model = Model::new("m", "w");
    match kind % 3 {
        0 => {
            if let Ok(session) = Session::read(rest) {
                assert!(session.cells > 0 && session.layers > 0);
                assert!(session.rest + 4 * session.tokens.len() < rest.len());
            }
        }
        1 => {
            let Some((count, state)) = rest.split_first() else {
                return;
            };
            let Ok(states) = States::new(store, model, state) else {
                return;
            };
            round(&states, *count, state);
        }
        _ => {
            let states = States::whole(store, model).expect("a namespace");
            if let Some((count, state)) = rest.split_first()
                && *count > 0
                && let Some(restored) = round(&states, *count, state)
            {
                assert_eq!(restored, state);
            }
        }
    }
}

/// Checks that a saved state is found, and that saving the restored state changes nothing.
fn round(states: &States, count: u8, state: &[u8]) -> Option<Vec<u8>> {
    let tokens: Vec<u32> = (0..u32::from(count)).collect();
    states.save(&tokens, state).ok()?;
    let found = states.find(&tokens).expect("memory").expect("it was saved");
    assert_eq!(found.tokens(), tokens.len());
    let restored = states.restore(&found).expect("memory").expect("it is there");
    let again = states.save(&tokens, &restored).expect("it was restored");
    assert_eq!(again.bytes, 0);
    Some(restored)
}

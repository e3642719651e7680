//! States of llama.cpp, against states that are written by hand.

mod corpus;
mod crash;
mod faults;
mod oracle;
mod properties;
mod real;
mod refused;
mod session;
mod turns;

use std::sync::Arc;

use transload_archive::Model;
use transload_archive::llama::States;
use transload_store::Backend;

fn states(store: &Arc<dyn Backend>, sample: &[u8]) -> States {
    States::new(store.clone(), Model::new("m", "w"), sample).unwrap()
}

fn load(states: &States, tokens: &[u32]) -> Option<(usize, Vec<u8>)> {
    let found = states.find(tokens).unwrap()?;
    let state = states.restore(&found).unwrap()?;
    Some((found.tokens(), state))
}

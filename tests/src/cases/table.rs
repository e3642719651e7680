//! Block tables.

use std::collections::BTreeMap;

use serde_json::Value;

use super::tape::Tape;
use crate::oracle::{Group, Side};

type Tables = BTreeMap<String, Vec<Option<u64>>>;

/// Returns tables for some or all groups of a side.
pub(super) fn tables(tape: &mut Tape<'_>, document: &Value, start: u64, tokens: u64) -> Tables {
    let side = Side::read(document).expect("a document that reads");
    let mut tables = Tables::new();
    for group in &side.groups {
        if let Some(table) = table(tape, group, start, start + tokens) {
            tables.insert(group.name.clone(), table);
        }
    }
    tables
}

fn table(tape: &mut Tape<'_>, group: &Group, start: u64, end: u64) -> Option<Vec<Option<u64>>> {
    let recurrent = group.specs.iter().any(|s| s.tokens_per_state.is_none());
    let entries = match recurrent {
        true => 1,
        false => end.div_ceil(group.block_size * group.dcp),
    };
    let all = group.num_blocks;
    let spare = all - entries;
    let mut blocks = (0..all).collect::<Vec<_>>();
    match tape.below(6) {
        0 => return None,
        1 => {}
        2 => {
            let by = tape.below(spare + 1);
            blocks.rotate_left(by as usize);
        }
        3 => blocks.reverse(),
        4 => tape.shuffle(&mut blocks),
        _ => {
            // Runs of neighbours, in any order.
            let mut runs = Vec::<Vec<u64>>::new();
            for block in blocks {
                match runs.last_mut() {
                    Some(run) if tape.below(3) < 2 => run.push(block),
                    _ => runs.push(vec![block]),
                }
            }
            tape.shuffle(&mut runs);
            blocks = runs.concat();
        }
    }
    blocks.truncate((entries + tape.below(spare + 1)) as usize);
    let mut table = blocks.into_iter().map(Some).collect::<Vec<_>>();
    for (index, entry) in table.iter_mut().enumerate() {
        if !is_touched(group, index as u64, start, end) {
            if tape.once_in(2) {
                *entry = None;
            } else if tape.once_in(4) {
                // vLLM's null block: it stands wherever there is none.
                *entry = Some(0);
            }
        }
    }
    Some(table)
}

/// Returns whether a state that travels lies in this entry's block.
fn is_touched(group: &Group, entry: u64, start: u64, end: u64) -> bool {
    group.specs.iter().any(|spec| {
        let states = spec.states(group.block_size).unwrap_or(1) * group.dcp;
        (entry * states..(entry + 1) * states).any(|state| spec.travels(state, start, end))
    })
}

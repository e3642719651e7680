//! An item that compares random calls with a model in memory.

use std::collections::{HashMap, HashSet};

use super::context::Context;
use super::item::{Item, must};
use super::outcome::{Outcome, Stop};
use crate::backend::Put;
use crate::hash::ChunkHash;

pub(super) const ITEMS: &[Item] =
    &[must("model", "random sequences of calls on several handles get the answers that the contract requires", model)];

/// The state of a chunk, as far as the contract determines it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It was never put, so it is missing.
    Absent,
    /// It was put and not published, so it may exist.
    Perhaps,
    Published,
}

fn model(context: &Context<'_>) -> Outcome {
    let mut random = context.random();
    let steps = context.options().steps;
    let hashes = [8, 8, 16, 16, 32, 32, 32, 32, 32, 32]
        .map(|len| context.hash(len))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let names = ["/0", "/1", "/1/2", "/3"].map(|rest| context.name(rest)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut handles = [context.open()?, context.open()?, context.open()?];
    let mut pending: Vec<HashSet<usize>> = vec![HashSet::new(); handles.len()];
    let mut chunks = vec![Known::Absent; hashes.len()];
    let mut manifests: HashMap<usize, Vec<u8>> = HashMap::new();
    // For each chunk, the manifests that published it and have not been replaced since.
    let mut holders: Vec<HashSet<usize>> = vec![HashSet::new(); hashes.len()];
    let value = |hash: &ChunkHash| hash.as_bytes().repeat(1 + usize::from(hash.as_bytes()[0]));

    let mut step = |step: usize| -> Result<(), Stop> {
        let on = random.below(handles.len());
        let (chunk, name) = (random.below(hashes.len()), random.below(names.len()));
        let wrong = |what: String| Err(Stop::Broken(format!("step {step}, handle {on}: {what}")));
        let store = &handles[on];
        match random.below(20) {
            0..6 => {
                let put = store.put(&hashes[chunk], &value(&hashes[chunk]))?;
                match (chunks[chunk], put) {
                    (Known::Absent, Put::AlreadyThere) => {
                        return wrong(format!("put_chunk of chunk {chunk} returned 1, but it was never put"));
                    }
                    (Known::Published, Put::Stored) => {
                        return wrong(format!("put_chunk of chunk {chunk} returned 0, but it was there"));
                    }
                    _ => {}
                }
                if chunks[chunk] != Known::Published {
                    chunks[chunk] = Known::Perhaps;
                }
                // Even if it existed: the next manifest needs it.
                pending[on].insert(chunk);
            }
            6..11 => {
                let found = store.get(&hashes[chunk])?;
                match (chunks[chunk], found) {
                    (Known::Published, None) => {
                        return wrong(format!("chunk {chunk} is missing, but it was published"));
                    }
                    (Known::Absent, Some(_)) => {
                        return wrong(format!("chunk {chunk} is there, but it was never put"));
                    }
                    (_, Some(found)) if found[..] != value(&hashes[chunk])[..] => {
                        return wrong(format!("chunk {chunk} has other bytes than were put"));
                    }
                    _ => {}
                }
            }
            11..14 => {
                let len = random.below(3000);
                let data = random.bytes(len.max(1));
                store.put_manifest(&names[name], &data)?;
                manifests.insert(name, data);
                let needed = std::mem::take(&mut pending[on]);
                let before = |chunk: &usize| !needed.contains(chunk);
                drop_references(name, before, &mut chunks, &mut holders, &mut pending);
                for chunk in needed {
                    chunks[chunk] = Known::Published;
                    holders[chunk].insert(name);
                }
            }
            14..18 => {
                let found = store.get_manifest(&names[name])?;
                if found.as_deref() != manifests.get(&name).map(Vec::as_slice) {
                    return wrong(format!("get_manifest of name {name} is not what was put last"));
                }
            }
            18 => {
                store.delete_manifest(&names[name])?;
                manifests.remove(&name);
                drop_references(name, |_| true, &mut chunks, &mut holders, &mut pending);
            }
            _ => {
                // The store may keep or drop what the closed handle had not published.
                pending[on].clear();
                handles[on] = context.open()?;
            }
        }
        Ok(())
    };
    for n in 0..steps {
        step(n).map_err(|stop| match stop {
            Stop::Broken(seen) => Stop::Broken(format!("{seen} (seed {})", context.options().seed)),
            skip => skip,
        })?;
    }
    Ok(format!("{steps} random calls on 3 handles (seed {})", context.options().seed))
}

/// The store may then drop chunks without references at any time, even those that were put again on another handle.
fn drop_references(
    name: usize,
    of: impl Fn(&usize) -> bool,
    chunks: &mut [Known],
    holders: &mut [HashSet<usize>],
    pending: &mut [HashSet<usize>],
) {
    for chunk in (0..chunks.len()).filter(of) {
        if holders[chunk].remove(&name) && holders[chunk].is_empty() {
            chunks[chunk] = Known::Perhaps;
            for on in pending.iter_mut() {
                on.remove(&chunk);
            }
        }
    }
}

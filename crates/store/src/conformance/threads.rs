//! Items about several threads on one handle, and several handles on one store.

use std::thread;

use super::context::{Context, Handle};
use super::item::{Item, must};
use super::outcome::{Outcome, Stop};
use super::publish::joined;
use super::random::Random;
use crate::hash::ChunkHash;

pub(super) const ITEMS: &[Item] = &[
    must("threads-one-handle", "several threads may use one handle at once", one_handle),
    must(
        "threads-own-handles",
        "several threads may use their own handles at once, even on the same chunks",
        own_handles,
    ),
    must("open-close", "handles may be opened and closed while others are in use", open_close),
];

fn one_handle(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    all_at_once(context, &|| Ok(store.clone()))
}

fn own_handles(context: &Context<'_>) -> Outcome {
    all_at_once(context, &|| context.open())
}

/// Runs threads that put chunks, own and common ones, read them, and replace a manifest of their own.
fn all_at_once(context: &Context<'_>, handle: &(dyn Fn() -> Result<Handle, Stop> + Sync)) -> Outcome {
    let (threads, rounds) = (context.options().threads, context.options().rounds);
    let shared: Vec<_> = (0..16).map(|_| context.hash(32)).collect::<Result<_, _>>()?;
    let value = |hash: &ChunkHash, n: usize| {
        let mut value = hash.as_bytes().repeat(1 + n % 90);
        value.extend(hash.as_bytes().iter().rev());
        value
    };
    let seed = context.options().seed;
    let work = |thread: usize| -> Result<(), Stop> {
        let store = handle()?;
        let mut random = Random::new(seed ^ thread as u64);
        let name = context.name(&format!("/thread-{thread}"))?;
        let mut own = Vec::new();
        for round in 0..rounds {
            let hash = context.hash([8, 16, 32][round % 3])?;
            store.put(&hash, &value(&hash, round))?;
            own.push((hash, round));
            let shared_chunk = random.below(shared.len());
            store.put(&shared[shared_chunk], &value(&shared[shared_chunk], shared_chunk))?;
            if round % 8 == 7 {
                let manifest = hash.as_bytes().repeat(1 + random.below(500));
                store.put_manifest(&name, &manifest)?;
                store.expect_manifest(&name, &manifest, "in the thread that put it")?;
                let (hash, n) = own[random.below(own.len())];
                store.expect(&hash, &value(&hash, n), "in the thread that put it")?;
            }
            let shared_chunk = random.below(shared.len());
            if let Some(found) = store.get(&shared[shared_chunk])?
                && found[..] != value(&shared[shared_chunk], shared_chunk)[..]
            {
                return Err(Stop::Broken("a chunk that all threads put is damaged".into()));
            }
        }
        store.put_manifest(&name, b"done")?;
        for (hash, n) in &own {
            store.expect(hash, &value(hash, *n), "in the thread that put it, at the end")?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        started.into_iter().map(joined).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(format!("{threads} threads put and read {rounds} chunks each, and {} together", shared.len()))
}

fn open_close(context: &Context<'_>) -> Outcome {
    let store = context.open()?;
    let name = context.name("/open-close")?;
    let (hash, data) = (context.hash(32)?, context.fresh(10_000));
    store.put(&hash, &data)?;
    store.put_manifest(&name, b"text")?;
    let rounds = context.options().rounds.min(50);
    thread::scope(|scope| {
        let (hash, data, name) = (&hash, &data, &name);
        let started: Vec<_> = (0..context.options().threads)
            .map(|_| {
                scope.spawn(move || -> Result<(), Stop> {
                    for _ in 0..rounds {
                        let other = context.open()?;
                        other.expect(hash, data, "on a handle that was just opened")?;
                        other.expect_manifest(name, b"text", "on a handle that was just opened")?;
                    }
                    Ok(())
                })
            })
            .collect();
        started.into_iter().map(joined).collect::<Result<Vec<_>, _>>()
    })?;
    store.expect(&hash, &data, "after other handles were opened and closed")?;
    Ok(format!("{} handles were opened, used and closed", rounds * context.options().threads))
}

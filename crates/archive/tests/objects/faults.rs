//! Failing calls of a store: each kind of failure, at each call.

use std::collections::BTreeMap;
use std::sync::Arc;

use transload_archive::objects::{ObjectError, Objects, Part, Source, Target};
use transload_store::{Backend, StoreError};
use transload_test_stores::{Call, Plan, at_each_call};

use crate::model::{content, get};

/// For each key, the lengths that its object may have; `None` for no object.
type Expected = BTreeMap<u8, Vec<Option<usize>>>;

enum Step {
    Put(&'static [(u8, usize)]),
    Get(&'static [u8]),
    Delete(&'static [u8]),
}

const LIFE: &[Step] = &[
    Step::Put(&[(1, 10), (2, 2000), (3, 0)]),
    Step::Get(&[1, 2, 3, 4]),
    // One stays, one is replaced, one is new.
    Step::Put(&[(1, 10), (2, 3000), (4, 10)]),
    Step::Get(&[1, 2]),
    Step::Delete(&[1, 3]),
    Step::Put(&[(3, 2000), (1, 5)]),
    Step::Get(&[1, 2, 3, 4]),
];

/// Returns the bytes of a key's object. Two keys share them.
fn value(key: u8, len: usize) -> Vec<u8> {
    content((key % 2).into(), len)
}

fn step(objects: &Objects, step: &Step, expected: &mut Expected) -> Result<(), ObjectError> {
    match step {
        Step::Put(puts) => {
            for &(key, len) in *puts {
                let values = expected.entry(key).or_insert_with(|| vec![None]);
                values.push(Some(len));
            }
            let keys: Vec<[u8; 1]> = puts.iter().map(|(key, _)| [*key]).collect();
            let values: Vec<Vec<u8>> = puts.iter().map(|&(key, len)| value(key, len)).collect();
            let parts: Vec<[Part<'_>; 1]> = values.iter().map(|bytes| [bytes.into()]).collect();
            let sources = keys.iter().zip(&parts).map(|(key, parts)| Source { key, meta: b"", parts });
            objects.put(&sources.collect::<Vec<_>>())?;
            for &(key, len) in *puts {
                expected.insert(key, vec![Some(len)]);
            }
        }
        Step::Get(keys) => {
            let keys: Vec<[u8; 1]> = keys.iter().map(|key| [*key]).collect();
            let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let found = objects.has(&asked)?;
            let lengths = found.iter().map(|info| info.as_ref().map_or(1, |info| info.bytes));
            let mut memory: Vec<Vec<u8>> = lengths.map(|len| vec![0; len as usize]).collect();
            let mut parts: Vec<_> = memory.iter_mut().map(|bytes| [bytes.into()]).collect();
            let targets = asked.iter().zip(&mut parts);
            let mut targets: Vec<_> = targets.map(|(key, parts)| Target { key, parts }).collect();
            let read = objects.get(&mut targets)?;
            for ((read, memory), key) in read.iter().zip(&memory).zip(asked) {
                // A miss of what is there is no error: a byte of it may have been read wrong.
                if read.is_some() {
                    let values = &expected[&key[0]];
                    assert!(values.contains(&Some(memory.len())), "{key:?}: {values:?}");
                    assert!(*memory == value(key[0], memory.len()));
                }
            }
        }
        Step::Delete(keys) => {
            for key in *keys {
                expected.entry(*key).or_insert_with(|| vec![None]).push(None);
            }
            let deleted: Vec<[u8; 1]> = keys.iter().map(|key| [*key]).collect();
            objects.delete(&deleted.iter().map(|key| &key[..]).collect::<Vec<_>>())?;
            for key in *keys {
                expected.insert(*key, vec![None]);
            }
        }
    }
    Ok(())
}

/// A failing call is an error or a miss. Later calls work, and each existing object is one that was put.
#[test]
fn a_call_that_fails_leaves_what_was_there_or_what_came() {
    let mut failures = 0;
    let faults = at_each_call(|store, call, _, what| {
        let shared: Arc<dyn Backend> = store.clone();
        let objects = Objects::new(shared, b"ns").unwrap().with_threads(1);
        let mut expected = Expected::new();
        let mut failed = None;
        for one in LIFE {
            if let Err(error) = step(&objects, one, &mut expected) {
                let why = format!("{what}: {failed:?}, then {error}");
                assert!(failed.is_none(), "{why}");
                let is_planned = matches!(error, ObjectError::Store(StoreError::Io { .. }));
                assert!(is_planned && call != Call::PrefetchChunks, "{why}");
                failed = Some(error);
                failures += 1;
            }
        }
        store.set_plan(Plan::new());
        check(&objects, &expected, what);
    });
    println!("{faults} faults, {failures} of them errors");
    assert!(faults > 100 && failures > 60, "{faults}, {failures}");
}

fn check(objects: &Objects, expected: &Expected, why: &str) {
    for (key, values) in expected {
        let found = objects.has(&[&[*key]]).unwrap().pop().unwrap();
        let len = found.map(|info| info.bytes as usize);
        // A bit that was read wrong: what could not be read is removed, or seems not to be there.
        assert!(values.contains(&len) || why.contains("FlipBit") && len.is_none(), "{why}: {key}");
        if let Some(len) = len {
            let read = get(objects, &[*key], len);
            assert!(read == Some((vec![], value(*key, len))), "{why}: {key}");
        }
        crate::model::put(objects, &[*key], b"", &value(*key, 77));
        assert!(get(objects, &[*key], 77).is_some(), "{why}");
    }
}

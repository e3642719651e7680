//! Compares tiers with a simple model: with any failure in the upper tiers, they behave as one store.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, Put};
use transload_test_stores::{Faulty, Plan, forward};

use crate::{chunk, name};

#[derive(Clone, Debug)]
enum Step {
    PutChunk(u64),
    GetChunks(Vec<u64>),
    Put(u64, Vec<u8>),
    Get(Vec<u64>),
    Delete(u64),
    Revise(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::collection::vec(0..8_u64, 1..5);
    prop_oneof![
        (0..8_u64).prop_map(Step::PutChunk),
        some().prop_map(Step::GetChunks),
        (0..6_u64, prop::collection::vec(any::<u8>(), 0..4)).prop_map(|(n, data)| Step::Put(n, data)),
        some().prop_map(Step::Get),
        (0..6_u64).prop_map(Step::Delete),
        (0..6_u64, any::<bool>()).prop_map(|(n, again)| Step::Revise(n, again)),
    ]
}

fn manifest(n: u64) -> transload_store::ManifestName {
    name(&n.to_string())
}

fn agrees(store: &dyn Backend, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut manifests: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut chunks = std::collections::HashSet::new();
    for step in steps {
        match step {
            Step::PutChunk(n) => {
                let put = store.put_chunk(&chunk(*n).0, &chunk(*n).1).unwrap();
                prop_assert_eq!(put == Put::Stored, chunks.insert(*n));
            }
            Step::GetChunks(all) => {
                let hashes: Vec<_> = all.iter().map(|n| chunk(*n).0).collect();
                for (n, there) in all.iter().zip(store.get_chunks(&hashes).unwrap()) {
                    prop_assert_eq!(there.is_some(), chunks.contains(n));
                    prop_assert!(there.is_none_or(|data| data == chunk(*n).1));
                }
            }
            Step::Put(n, data) => {
                store.put_manifest(&manifest(*n), data).unwrap();
                manifests.insert(*n, data.clone());
            }
            Step::Get(all) => {
                let names: Vec<_> = all.iter().map(|n| manifest(*n)).collect();
                for (n, there) in all.iter().zip(store.get_manifests(&names).unwrap()) {
                    prop_assert_eq!(there.as_deref(), manifests.get(n).map(|data| &data[..]));
                }
            }
            Step::Delete(n) => {
                store.delete_manifest(&manifest(*n)).unwrap();
                manifests.remove(n);
            }
            Step::Revise(n, again) => {
                let there = store.manifest_revision(&manifest(*n)).unwrap();
                prop_assert_eq!(there.is_some(), manifests.contains_key(n));
                let Some((data, revision)) = there else {
                    continue;
                };
                prop_assert_eq!(Some(&data.to_vec()), manifests.get(n));
                if *again {
                    store.put_manifest(&manifest(*n), &data).unwrap();
                }
                prop_assert_eq!(store.delete_revision(&manifest(*n), &revision).unwrap(), !again);
                if !again {
                    manifests.remove(n);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn failing_tiers_above_change_nothing(
        seed in any::<u64>(),
        part in prop::sample::select(vec![0.0, 0.1, 0.5, 1.0]),
        cap in prop::sample::select(vec![1000, 6000, u64::MAX]),
        memory_first in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let plan = Plan::new().with_random(seed, part);
        let faulty = Tier::new("faulty", Arc::new(Faulty::new(MemoryStore::new(), plan)));
        let memory = Tier::memory("memory", MemoryStore::with_cap(cap));
        let mut tiers = if memory_first { vec![memory, faulty] } else { vec![faulty, memory] };
        tiers.push(Tier::new("last", Arc::new(MemoryStore::new())));
        agrees(&TierStore::new(tiers, Write::Through).unwrap(), &steps)?;
    }

    #[test]
    fn copies_below_that_are_late_or_fail_change_nothing(
        seed in any::<u64>(),
        part in prop::sample::select(vec![0.0, 0.5, 1.0]),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        // What was copied is the same, and what was not is above.
        let reads = Arc::new(Late(MemoryStore::new(), Faulty::new(MemoryStore::new(), Plan::new().with_random(seed, part))));
        let tiers = vec![
            Tier::memory("memory", MemoryStore::with_cap(6000)),
            Tier::new("first", Arc::new(MemoryStore::new())),
            Tier::new("late", reads as Arc<dyn Backend>),
        ];
        agrees(&TierStore::new(tiers, Write::Back).unwrap(), &steps)?;
    }
}

/// A store whose puts fail when the second field's do. Reads return what was put successfully.
#[derive(Debug)]
struct Late(MemoryStore, Faulty<MemoryStore>);

impl Backend for Late {
    fn put_chunk(&self, hash: &transload_store::ChunkHash, data: &[u8]) -> Result<Put, transload_store::StoreError> {
        self.1.put_chunk(hash, data)?;
        self.0.put_chunk(hash, data)
    }
    fn put_manifest(
        &self,
        name: &transload_store::ManifestName,
        data: &[u8],
    ) -> Result<(), transload_store::StoreError> {
        self.1.put_manifest(name, data)?;
        self.0.put_manifest(name, data)
    }

    forward!(0: get_chunk, get_manifest, delete_manifest, manifest_revision, delete_revision);
}

/// Threads on two handles read what they have put, and never read a manifest that is older than one read before.
#[test]
fn threads_see_one_store() {
    let (above, below) = (MemoryStore::new(), MemoryStore::new());
    let open = |write| {
        let tiers = vec![
            Tier::memory("memory", MemoryStore::with_cap(20_000)),
            Tier::new("above", Arc::new(above.clone())),
            Tier::new("below", Arc::new(below.clone())),
        ];
        TierStore::new(tiers, write).unwrap()
    };
    for write in [Write::Through, Write::Back] {
        let stores = [open(write), open(write)];
        let shared = name(&format!("{write:?}"));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (store, other) = (&stores[thread as usize % 2], &stores[0]);
                let (above, shared) = (&above, &shared);
                scope.spawn(move || {
                    let mut last = 0;
                    for n in 0..200_u64 {
                        let (hash, data) = chunk(1000 * thread + n);
                        store.put_chunk(&hash, &data).unwrap();
                        store.put_manifest(&manifest(thread), &n.to_le_bytes()).unwrap();
                        assert_eq!(other.get_manifest(&manifest(thread)).unwrap().unwrap(), n.to_le_bytes()[..]);
                        assert_eq!(other.get_chunk(&hash).unwrap().unwrap(), data);
                        if thread == 0 {
                            store.put_manifest(shared, &(n + 1).to_le_bytes()).unwrap();
                        }
                        // Copies above go at any moment.
                        above.delete_manifest(shared).unwrap_or_default();
                        if let (Write::Through, Some(there)) = (write, store.get_manifest(shared).unwrap()) {
                            let now = u64::from_le_bytes(there[..].try_into().unwrap());
                            assert!(now >= last, "{now} after {last}");
                            last = now;
                        }
                    }
                });
            }
        });
    }
}

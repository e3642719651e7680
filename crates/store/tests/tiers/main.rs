//! Tiers of every kind, as one backend.

mod broken;
mod contract;
mod model;
mod reading;
mod uris;

use std::sync::Arc;

use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, ChunkHash, ManifestName};
use transload_test_stores::{Call, Effect, Faulty, Plan};

fn name(text: &str) -> ManifestName {
    ManifestName::new(text).unwrap()
}

/// Returns the name under which a tier above the last one keeps its copy of a manifest.
fn copy(text: &str) -> ManifestName {
    name(&format!("transload.copy/{text}"))
}

fn chunk(n: u64) -> (ChunkHash, Vec<u8>) {
    let data = n.to_le_bytes().repeat(50);
    (blake3::hash(&data).into(), data)
}

fn two(above: &Arc<Faulty<MemoryStore>>, below: &Arc<Faulty<MemoryStore>>, write: Write) -> TierStore {
    let tiers = vec![
        Tier::new("above", above.clone() as Arc<dyn Backend>),
        Tier::new("below", below.clone() as Arc<dyn Backend>),
    ];
    TierStore::new(tiers, write).unwrap()
}

fn sound() -> Arc<Faulty<MemoryStore>> {
    Arc::new(Faulty::new(MemoryStore::new(), Plan::new()))
}

fn down() -> Plan {
    use Call::{DeleteManifest, GetChunk, GetManifest, PutChunk, PutManifest};
    let calls = [DeleteManifest, GetChunk, GetManifest, PutChunk, PutManifest];
    calls.into_iter().fold(Plan::new(), |plan, call| plan.with_all_from(call, 1, Effect::FailBefore))
}

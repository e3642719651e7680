//! Tests how many round trips a look-up takes.

use std::sync::Arc;

use serde_json::json;
use transload_archive::{Prompt, SaveRequest};
use transload_store::Backend;
use transload_store::backend::MemoryStore;
use transload_test_stores::{Call, Counted};

use crate::engines::{Engine, archive};
use crate::models::{attention, side};

#[test]
fn long_prompts_cost_few_round_trips() {
    let here = side(1, 1, 256, None, &[attention("attn", "0", json!({"heads": 1, "head_dim": 1}))]);
    let tokens: Vec<u32> = (0..128 << 10).collect();
    let prompt = Prompt::new(&tokens);
    let memory = MemoryStore::new();
    let store: Arc<dyn Backend> = Arc::new(memory.clone());
    let engine = Engine::computed(&here, 300 * 256, 1);
    engine.save(&archive(&store, &here), &prompt, &SaveRequest::tokens(300 * 256)).unwrap();
    let trips = |batch, prompt: &Prompt<'_>, expected: u64| {
        let counted = Arc::new(Counted::server(memory.clone(), batch));
        let store: Arc<dyn Backend> = counted.clone();
        let found = archive(&store, &here).find(prompt).unwrap();
        assert_eq!(found.tokens(), expected * 256);
        counted.count(Call::GetManifest).0
    };
    // All 512 names at once.
    assert_eq!(trips(1024, &prompt, 300), 1);
    // 64 at a time: two to find the end, and then the 300 that lie before it.
    assert!(trips(64, &prompt, 300) <= 8);
    // One at a time: a binary search, and every root that it has not seen.
    assert!(trips(1, &prompt, 300) <= 10 + 300);
    // What nobody saved is known at once.
    let other: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
    assert!(trips(1, &Prompt::new(&other), 0) <= 10);
    assert_eq!(trips(64, &Prompt::new(&other), 0), 2);
}

//! Tests which prefix is found, and from which engine its bytes come.

use std::sync::Arc;

use serde_json::{Value, json};
use transload_archive::{Archive, ArchiveError, Cache, Codec, Model, Prompt, Record, SaveRequest};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ManifestName};

use crate::engines::{Engine, Tally, archive, deployment};
use crate::models::{attention, side};

fn document(tp: u32, order: &str) -> Value {
    side(tp, 1, 16, Some(order), &[attention("attn", "0-1", json!({}))])
}

fn ids(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

#[test]
fn prompts_share_the_prefix_that_they_have_in_common() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(2, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(1000);
    let engine = Engine::computed(&here, 1000, 1);
    engine.save(&archive, &Prompt::new(&tokens), &SaveRequest::tokens(1000)).unwrap();

    let mut other = tokens.clone();
    other[600] = 7;
    let found = |tokens: &[u32]| archive.find(&Prompt::new(tokens)).unwrap().tokens();
    assert_eq!(found(&tokens), 768);
    assert_eq!(found(&other), 512);
    assert_eq!(found(&tokens[..511]), 256);
    assert_eq!(found(&tokens[..255]), 0);
    assert_eq!(found(&tokens[1..]), 0);

    // A longer request saves what it adds, and nothing else.
    let longer = Engine::computed(&here, 1300, 1);
    let tokens = ids(1300);
    let request = SaveRequest::tokens(1300);
    let (roots, bytes) = longer.save(&archive, &Prompt::new(&tokens), &request).unwrap();
    assert_eq!((roots, bytes), (2, 2 * 256 * 2 * 8 * 32 * 2 * 2));
    assert_eq!(archive.find(&Prompt::new(&tokens)).unwrap().tokens(), 1280);
}

#[test]
fn nobody_finds_what_was_saved_for_somebody_else() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(2, "NHD");
    let tokens = ids(300);
    let engine = Engine::computed(&here, 300, 1);
    let mine = archive(&store, &here);
    let request = SaveRequest::tokens(300);
    engine.save(&mine, &Prompt::new(&tokens).salt("tenant a"), &request).unwrap();

    let found = |archive: &Archive, prompt: Prompt<'_>| archive.find(&prompt).unwrap().tokens();
    assert_eq!(found(&mine, Prompt::new(&tokens).salt("tenant a")), 256);
    assert_eq!(found(&mine, Prompt::new(&tokens).salt("tenant b")), 0);
    assert_eq!(found(&mine, Prompt::new(&tokens)), 0);
    assert_eq!(found(&mine, Prompt::new(&tokens).salt("tenant a").adapter("lora")), 0);
    let other = Archive::new(store.clone(), Model::new("a model", "tuned"), &deployment(&here)).unwrap();
    assert_eq!(found(&other, Prompt::new(&tokens).salt("tenant a")), 0);
    let wider = side(2, 1, 16, None, &[attention("attn", "0-1", json!({"head_dim": 64}))]);
    let wider = archive(&store, &wider);
    assert_eq!(found(&wider, Prompt::new(&tokens).salt("tenant a")), 0);
}

/// Kernels differ, so two engines compute slightly different bytes for one prefix. The first one to publish wins, and
/// every root is consistent: its own bytes on every head and layer.
#[test]
fn engines_that_compute_different_bytes_do_each_other_no_harm() {
    // As many ranks, so that every part of one would fit in the other's place.
    let (a, b, to) = (document(4, "NHD"), document(4, "HND"), document(1, "BLSHC"));
    let tokens = ids(600);
    let prompt = Prompt::new(&tokens);
    let engines = [Engine::computed(&a, 600, 1), Engine::computed(&b, 600, 2)];
    for (first, second) in [(0, 1), (1, 0)] {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let archive = archive(&store, &a);
        // Both find nothing, and save at the same time.
        let missing = [(); 2].map(|()| archive.missing(&prompt, &SaveRequest::tokens(600)).unwrap());
        let parts = [0, 1].map(|n: usize| -> Vec<_> {
            let ranks = engines[n].deployment.ranks();
            let part = |rank| engines[n].save_rank(&archive, rank, &missing[n]).unwrap();
            ranks.map(part).collect()
        });
        // Parts of both do not make a whole of either.
        let mixed = [parts[0][..2].to_vec(), parts[1][2..].to_vec()].concat();
        let error = archive.publish(&missing[0], &mixed).unwrap_err();
        assert!(matches!(error, ArchiveError::Unusable { what: "a part", .. }), "{error}");

        assert_eq!(archive.publish(&missing[first], &parts[first]).unwrap().roots, 2);
        assert_eq!(archive.publish(&missing[second], &parts[second]).unwrap().roots, 0);
        let found = archive.find(&prompt).unwrap();
        assert_eq!(found.tokens(), 512);
        let (restored, expected) = (Engine::new(&to, 600), Engine::new(&to, 600));
        restored.restore(&archive, &found, 0).unwrap();
        engines[first].transfer_needed(&expected, 0, 512);
        assert!(restored.bytes() == expected.bytes());
    }
}

#[test]
fn what_belongs_to_another_prompt_model_or_save_is_refused() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(2, "NHD");
    let archive = archive(&store, &here);
    let engine = Engine::computed(&here, 600, 1);
    let (one, two) = (ids(600), ids(700)[100..].to_vec());
    let (one, two) = (Prompt::new(&one), Prompt::new(&two));
    let request = SaveRequest::tokens(600);
    let (for_one, for_two) = (archive.missing(&one, &request).unwrap(), archive.missing(&two, &request).unwrap());
    let parts = engine.parts(&archive, &for_two).unwrap();
    let error = archive.publish(&for_one, &parts).unwrap_err();
    assert_eq!(error.to_string(), "a part cannot be used: it is of another save");
    archive.publish(&for_two, &parts).unwrap();
    let found = archive.find(&two).unwrap();

    let model = Model::new("a model", "tuned");
    let other = Archive::new(store.clone(), model, &deployment(&here)).unwrap();
    let error = engine.restore(&other, &found, 0).unwrap_err();
    assert_eq!(error.to_string(), "a found prefix cannot be used: it is of another model or cache");
    let error = other.publish(&for_two, &parts).unwrap_err();
    assert_eq!(error.to_string(), "what is missing cannot be used: it is of another model or cache");
}

#[test]
fn parts_go_when_the_roots_are_there() {
    let tally = Arc::new(Tally::default());
    let store: Arc<dyn Backend> = tally.clone();
    let here = document(4, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(600);
    let engine = Engine::computed(&here, 600, 1);
    engine.save(&archive, &Prompt::new(&tokens), &SaveRequest::tokens(600)).unwrap();
    let names = tally.manifests();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().all(|name| !name.contains("part/")), "{names:?}");
}

#[test]
fn a_block_table_that_names_a_block_twice_is_refused_before_a_byte_is_written() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(1, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(600);
    let prompt = Prompt::new(&tokens);
    let engine = Engine::computed(&here, 600, 1);
    engine.save(&archive, &prompt, &SaveRequest::tokens(600)).unwrap();
    let found = archive.find(&prompt).unwrap();
    let mut reader = Engine::new(&here, 600);
    let untouched = reader.bytes();
    // The first block of the first token chunk, and one of the second.
    reader.repeat_block(0, 0, 20);
    let error = reader.restore(&archive, &found, 0).unwrap_err();
    assert!(error.to_string().contains("stands twice"), "{error}");
    assert!(reader.bytes() == untouched);
}

#[test]
fn heads_inside_of_entries_bind_a_cache_to_one_rank() {
    let opaque = json!({"name": "packed", "layers": "0", "spec": [
        {"kind": "opaque", "heads": 1, "packed_heads": 4, "entry_bytes": 8}]});
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let two = deployment(&side(2, 1, 16, None, std::slice::from_ref(&opaque)));
    let archive = Archive::new(store.clone(), Model::new("m", "w"), &two).unwrap();
    let error = archive.rank(&two, transload_layout::Rank(0)).unwrap_err();
    assert!(error.to_string().contains("packed_heads"), "{error}");
    let one = deployment(&side(1, 1, 16, None, &[opaque]));
    let archive = Archive::new(store, Model::new("m", "w"), &one).unwrap();
    archive.rank(&one, transload_layout::Rank(0)).unwrap();
}

#[test]
fn a_part_that_is_missing_publishes_nothing() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(4, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(600);
    let prompt = Prompt::new(&tokens);
    let engine = Engine::computed(&here, 600, 1);
    let missing = archive.missing(&prompt, &SaveRequest::tokens(600)).unwrap();
    let parts = engine.parts(&archive, &missing).unwrap();
    for without in 0..4 {
        let mut some = parts.clone();
        some.remove(without);
        match archive.publish(&missing, &some).unwrap_err() {
            ArchiveError::Incomplete { unit, layer, what, .. } => {
                assert_eq!((unit, layer, what.as_str()), (2 * without as u64, 0, "k+v"));
            }
            error => panic!("{error}"),
        }
    }
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 0);
    // A part that is given twice is there once.
    let twice: Vec<_> = parts.iter().chain(&parts).cloned().collect();
    assert_eq!(archive.publish(&missing, &twice).unwrap().roots, 2);
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 512);
}

#[test]
fn requests_that_make_no_sense_are_refused_by_name() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let here = document(2, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(300);
    let prompt = Prompt::new(&tokens);
    let error = archive.missing(&prompt, &SaveRequest::tokens(301)).unwrap_err();
    assert_eq!(error.to_string(), "the number of tokens to save is 301, but the prompt has 300 tokens");
    let error = archive.missing(&prompt, &SaveRequest::tokens(300).with_state(512)).unwrap_err();
    assert!(error.to_string().starts_with("the position of the recurrent state is 512"), "{error}");

    let wider = side(2, 1, 16, None, &[attention("attn", "0-1", json!({"head_dim": 64}))]);
    let error = archive.rank(&deployment(&wider), transload_layout::Rank(0)).unwrap_err();
    assert!(error.to_string().contains("head_dim"), "{error}");
    let error = archive.rank(&deployment(&here), transload_layout::Rank(2)).unwrap_err();
    assert_eq!(error.to_string(), "there is no rank 2: the deployment's ranks are 0 to 1");

    let engine = Engine::computed(&here, 300, 1);
    let missing = archive.missing(&prompt, &SaveRequest::tokens(300)).unwrap();
    let rank = archive.rank(&engine.deployment, transload_layout::Rank(0)).unwrap();
    let error = rank.save(&missing, &[] as &[Cache], &engine.tables).unwrap_err();
    assert_eq!(error.to_string(), "0 memories for the 1 groups of the deployment: give one for each");
}

#[test]
fn manifests_say_what_they_are() {
    let memory = MemoryStore::new();
    let store: Arc<dyn Backend> = Arc::new(memory);
    let here = document(2, "NHD");
    let archive = archive(&store, &here);
    let tokens = ids(600);
    let prompt = Prompt::new(&tokens);
    let engine = Engine::computed(&here, 600, 1);
    engine.save(&archive, &prompt, &SaveRequest::tokens(600)).unwrap();
    let keys = archive.keys(&prompt);
    let name = keys[2].root_name();
    let manifest = store.get_manifest(&name).unwrap().unwrap();
    let record = Record::read(&name, &manifest).unwrap().unwrap();
    assert_eq!(record.pieces().count(), 8);
    let Record::Root { key, parent, tokens, codec, groups, computed_by } = &record else { panic!("{record:?}") };
    assert_eq!((*key, *parent, *tokens), (keys[2], keys[1], 512));
    assert_eq!(*codec, Codec::Exact);
    let held = &groups[0].as_ref().unwrap()[0];
    assert_eq!((held.from, held.to), (256, 512));
    let by = computed_by.as_ref().map(ToString::to_string);
    assert_eq!(by.as_deref(), Some("an engine 1.2.3"), "exactly");
    // Below the root of a store, and under a name that it does not have.
    let below = ManifestName::new(format!("slot1/{name}")).unwrap();
    assert!(Record::read(&below, &manifest).unwrap().is_ok());
    assert!(Record::read(&keys[1].root_name(), &manifest).unwrap().is_err());
    assert!(Record::read(&name, &manifest[1..]).unwrap().is_err());
    assert!(Record::read(&ManifestName::new("slot1").unwrap(), &manifest).is_none());
}

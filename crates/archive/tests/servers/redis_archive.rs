//! The number of round trips of an archive on a server.

use std::sync::Arc;

use transload_archive::{Archive, Model, Prompt, SaveRequest};
use transload_layout::{Deployment, Dtype, Group, Rank, Spec};
use transload_memory::Memory;
use transload_plan::{BlockTable, Tables};
use transload_store::Backend;
use transload_store::backend::redis::RedisStore;
use transload_test_stores::{bytes, server};

/// The length of the prompt: 512 token chunks of 256 tokens.
const TOKENS: u32 = 128 << 10;

/// The maximum number of round trips for a look-up of a prompt of [`TOKENS`], whatever part of it exists, and for
/// restoring its 512 pieces.
const MOST_ROUND_TRIPS: u64 = 12;

fn deployment(order: &str, block: u32) -> Deployment {
    let group = Group::builder("attn", "0", Spec::attention(1, 8, Dtype::Bf16));
    let blocks = (TOKENS / block).into();
    let deployment = Deployment::builder().block_size(block.into()).num_blocks(blocks).order(order);
    deployment.group(group).build().unwrap()
}

fn cache(of: &Deployment) -> Memory {
    Memory::allocate(&[of.groups()[0].placement(0).allocation_bytes as usize]).unwrap()
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.allocation(0).unwrap().1];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_long_prompt_is_found_in_few_round_trips() {
    let server = server!();
    let engine = deployment("NHD", 16);
    let model = || Model::new("a model", "its weights");
    let open = || Arc::new(server.open(""));
    let tokens: Vec<u32> = (0..TOKENS).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    let tables = Tables(vec![BlockTable::Identity]);
    let saved = cache(&engine);
    let content = bytes(1, contents(&saved).len());
    saved.write(0, &content).unwrap();
    {
        let archive = Archive::new(open(), model(), &engine).unwrap();
        let missing = archive.missing(&Prompt::new(&tokens), &SaveRequest::tokens(TOKENS.into())).unwrap();
        let rank = archive.rank(&engine, Rank(0)).unwrap();
        let part = rank.save(&missing, std::slice::from_ref(&saved), &tables).unwrap();
        assert_eq!(archive.publish(&missing, &[part]).unwrap().roots, 512);
    }
    // Prompts that share nothing, one token chunk, half, all but the last token, and everything.
    let mut other = tokens.clone();
    for (differs, found) in [(0, 0), (256, 256), (TOKENS / 2, TOKENS / 2), (TOKENS - 1, TOKENS - 256)] {
        other.copy_from_slice(&tokens);
        other[differs as usize] ^= 1;
        let store = open();
        let (tokens, trips) = look_up(&store, &engine, &other);
        println!("{tokens} of {TOKENS} tokens found in {trips} round trips");
        assert_eq!(tokens, u64::from(found));
        assert!(trips <= MOST_ROUND_TRIPS, "{trips}");
    }
    let store = open();
    let (found, trips) = look_up(&store, &engine, &tokens);
    println!("{found} of {TOKENS} tokens found in {trips} round trips");
    assert_eq!(found, u64::from(TOKENS));
    assert!(trips <= MOST_ROUND_TRIPS, "{trips}");

    // What is found is what was saved.
    let archive = Archive::new(store.clone(), model(), &engine).unwrap();
    let found = archive.find(&Prompt::new(&tokens)).unwrap();
    let restored = cache(&engine);
    let before = store.round_trips();
    let rank = archive.rank(&engine, Rank(0)).unwrap();
    rank.restore(&found, 0, std::slice::from_ref(&restored), &tables).unwrap();
    let trips = store.round_trips() - before;
    println!("restored in {trips} round trips");
    assert!(trips <= MOST_ROUND_TRIPS, "{trips}");
    assert!(contents(&restored) == content);
}

fn look_up(store: &Arc<RedisStore>, engine: &Deployment, tokens: &[u32]) -> (u64, u64) {
    let shared: Arc<dyn Backend> = store.clone();
    let archive = Archive::new(shared, Model::new("a model", "its weights"), engine).unwrap();
    let before = store.round_trips();
    let found = archive.find(&Prompt::new(tokens)).unwrap().tokens();
    (found, store.round_trips() - before)
}

//! Listing, verifying and collecting.

use std::time::Duration;

use transload_store::backend::{CollectOptions, Fault};
use transload_store::{Backend, ChunkHash};

use crate::server::{Server, bytes, hash, name};

fn save(store: &impl Backend, manifest: &str, seeds: &[u64]) -> Vec<ChunkHash> {
    let chunks: Vec<_> = seeds.iter().map(|&seed| bytes(seed, 1000)).collect();
    let hashes: Vec<_> = chunks.iter().map(|data| hash(data)).collect();
    for (key, data) in hashes.iter().zip(&chunks) {
        store.put_chunk(key, data).unwrap();
    }
    let text: String = hashes.iter().map(|hash| format!("{hash} ")).collect();
    store
        .put_manifest(&name(manifest), text.as_bytes())
        .unwrap();
    hashes
}

#[test]
fn lists_verifies_and_collects() {
    let mut servers = vec![Server::s3s()];
    servers.extend(Server::moto());
    for server in &servers {
        let store = server.open("/kv");
        let kept = save(&store, "m", &[1, 2, 3]);
        let gone = save(&server.open("/kv/slot"), "n", &[3, 4, 5]);
        let inventory = store.inventory().unwrap();
        let usage = inventory.usage().unwrap();
        assert_eq!(
            (usage.manifests, usage.chunks, usage.chunk_bytes),
            (2, 5, 5000)
        );
        assert_eq!(usage.manifest_bytes, 6 * 65);
        let mut listed = Vec::new();
        inventory
            .manifests(&mut |entry| {
                listed.push(entry.name.to_string());
                Ok(())
            })
            .unwrap();
        listed.sort();
        assert_eq!(listed, ["m", "slot/n"]);
        let mut faults = Vec::new();
        inventory
            .verify(&mut |_| {}, &mut |fault| faults.push(fault))
            .unwrap();
        assert_eq!(faults, []);
        store.delete_manifest(&name("slot/n")).unwrap();
        let collect = |grace, dry| {
            let options = CollectOptions::new()
                .with_grace(Duration::from_secs(grace))
                .with_dry_run(dry);
            inventory.collect(&options, &mut |_| {}).unwrap()
        };
        let young = collect(3600, false);
        assert_eq!((young.chunks, young.in_grace), (0, 2));
        let dry = collect(0, true);
        assert_eq!((dry.chunks, dry.bytes), (2, 2 * 1016));
        assert_eq!(collect(0, false), dry);
        assert_eq!(store.get_chunks(&kept).unwrap().iter().flatten().count(), 3);
        assert_eq!(store.get_chunks(&gone).unwrap().iter().flatten().count(), 1);
    }
}

#[test]
fn verify_finds_what_was_changed() {
    let server = Server::s3s();
    let store = server.open("/kv");
    let hashes = save(&store, "m", &(0..10).collect::<Vec<_>>());
    std::fs::write(server.file(&format!("kv/c/{}", hashes[3])), b"short").unwrap();
    std::fs::write(server.file("kv/c/XY"), b"stray").unwrap();
    std::fs::copy(server.file("kv/m/n-m"), server.file("kv/m/n-other")).unwrap();
    let mut faults: Vec<Fault> = Vec::new();
    let inventory = store.inventory().unwrap();
    inventory
        .verify(&mut |_| {}, &mut |fault| faults.push(fault))
        .unwrap();
    let mut whats: Vec<_> = faults.iter().map(|fault| fault.what.as_str()).collect();
    whats.sort();
    let chunk = format!("chunk {}", hashes[3]);
    assert_eq!(
        whats,
        [chunk.as_str(), "object kv/c/XY", "object kv/m/n-other"]
    );
}

#[test]
fn a_cap_evicts_what_was_put_longest_ago() {
    let server = Server::s3s();
    let store = server.open("");
    for n in 0..3 {
        save(
            &store,
            &format!("m{n}"),
            &(n * 10..n * 10 + 10).collect::<Vec<_>>(),
        );
        std::thread::sleep(Duration::from_millis(1100));
    }
    let inventory = store.inventory().unwrap();
    let total = inventory.usage().unwrap().total_bytes;
    let options = CollectOptions::new()
        .with_grace(Duration::ZERO)
        .with_cap(total * 3 / 4);
    let collected = inventory.collect(&options, &mut |_| {}).unwrap();
    assert_eq!((collected.manifests, collected.chunks), (1, 10));
    assert_eq!(store.get_manifest(&name("m0")).unwrap(), None);
    assert!(inventory.usage().unwrap().total_bytes <= total * 3 / 4);
}

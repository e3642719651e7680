//! The fuzz check of an archive's records. The test that replays the corpus includes it, too.
//!
//! The first byte chooses the archive's codec and the meaning of the rest: the body of a root or part manifest, whose
//! checksum is made to fit, or a found prefix or a list of missing tokens as sent by another process.

use std::sync::{Arc, LazyLock};

use transload_archive::{Archive, Codec, Found, Missing, Model, Part, Record};
use transload_layout::{Deployment, Rank, document::Value};
use transload_store::backend::MemoryStore;
use transload_store::{ManifestName, StoreError};
use transload_transfer::{BlockTable, Memory, Tables};

/// A deployment with caches of every growth: all tokens, a window, recurrent state.
pub(crate) const DEPLOYMENT: &str = r#"{"schema": "transload.deployment/1", "tp": 2, "block_size": 64, "num_blocks": 20,
    "group": [
        {"name": "all", "layers": "0-1", "spec": [
            {"kind": "attention", "heads": 2, "head_dim": 2, "dtype": "u8"}]},
        {"name": "window", "layers": "2", "spec": [
            {"kind": "attention", "heads": 2, "head_dim": 1, "dtype": "u8", "sliding_window": 300}]},
        {"name": "state", "layers": "3-4", "spec": [
            {"kind": "linear", "heads": 4, "head_dim": 2, "v_head_dim": 2, "dtype": "u8"}]}]}"#;

/// Returns the deployment with keys and values that codecs can encode.
pub(crate) fn encodable() -> String {
    DEPLOYMENT.replace("u8", "bf16")
}

type Side = (Deployment, Vec<Memory>, Tables);

/// The sides of the exact archive and of the encoded one.
static SIDES: LazyLock<[Side; 2]> = LazyLock::new(|| [side(DEPLOYMENT), side(&encodable())]);

fn side(document: &str) -> Side {
    let value: Value = serde_json::from_str(document).unwrap();
    let side = Deployment::from_value(&value).unwrap();
    let bytes = |group: usize| side.groups()[group].placement(0).allocation_bytes as usize;
    let caches = (0..3).map(|group| Memory::allocate(&[bytes(group)]).unwrap());
    let caches = caches.collect();
    (side, caches, Tables(vec![BlockTable::Identity; 3]))
}

/// Checks any bytes; panics only if a check fails.
pub(crate) fn check(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let (side, caches, tables) = &SIDES[usize::from(kind & 4 != 0)];
    let archive = Archive::new(Arc::new(MemoryStore::new()), Model::new("m", "w"), side);
    let codec = if kind & 4 == 0 { Codec::Exact } else { Codec::Q4 };
    let archive = archive.unwrap().with_threads(1).with_codec(codec);
    let rank = archive.rank(side, Rank(1)).unwrap();
    match kind % 4 {
        0 => {
            let magic = if codec.is_exact() { b"TLroot\x02\n" } else { b"TLroot\x03\n" };
            let manifest = sealed(magic, body);
            let key = match codec.is_exact() {
                true => body,
                false => body.get(3..).unwrap_or_default(),
            };
            let key: String = key.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
            if let Some(Ok(record)) = read(&key, &manifest) {
                std::hint::black_box(record.pieces().count());
            }
        }
        1 => {
            let manifest = sealed(b"TLpart\x02\n", body);
            let name = format!("part/{}", blake3::hash(&manifest).to_hex());
            let read = read(&name, &manifest).unwrap();
            let part = Part::decode(&manifest);
            assert_eq!(read.is_ok(), part.is_ok());
            if let Ok(part) = part {
                assert_eq!(Part::decode(&part.encode()).unwrap(), part);
                let tokens: Vec<u32> = (0..512).collect();
                let prompt = transload_archive::Prompt::new(&tokens);
                let request = transload_archive::SaveRequest::tokens(512);
                let missing = archive.missing(&prompt, &request).unwrap();
                let _ = std::hint::black_box(archive.publish(&missing, &[part]));
            }
        }
        2 => {
            if let Ok(found) = postcard::from_bytes::<Found>(body) {
                let _ = std::hint::black_box(rank.restore(&found, 100, caches, tables));
            }
        }
        _ => {
            if let Ok(missing) = postcard::from_bytes::<Missing>(body) {
                let part = rank.save(&missing, caches, tables);
                if let Ok(part) = part {
                    let _ = std::hint::black_box(archive.publish(&missing, &[part]));
                }
            }
        }
    }
}

fn read(own: &str, manifest: &[u8]) -> Option<Result<Record, StoreError>> {
    let name = ManifestName::new(format!("transload.archive/2/{own}")).unwrap();
    Record::read(&name, manifest)
}

fn sealed(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    let mut manifest = magic.to_vec();
    manifest.extend(body);
    let sum = blake3::hash(&manifest);
    manifest.extend(sum.as_bytes());
    manifest
}

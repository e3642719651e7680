//! Files that erllama wrote are read correctly, and written identically.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};
use transload_archive::kvc::{Draft, KvcError, parse};

use crate::vectors::{self, Vector, hex, told, told_error, unhex};

/// Returns the payload of a file: the name of the quantization in some files, and the same words in the others.
fn payload(vector: &Vector, info: &Value) -> Vec<u8> {
    let payload = match vector.name.contains("_quant_") {
        true => info["quant_type"].as_str().unwrap().into(),
        false => b"this is the kv state payload".to_vec(),
    };
    let sum = hex(&Sha256::digest(&payload));
    assert_eq!(vector.said["payload_sha256"], sum, "{}", vector.name);
    payload
}

fn draft(info: &Value) -> Draft {
    let number = |name: &str| info[name].as_u64().unwrap();
    let hash = |name: &str| unhex(&info[name]).try_into().unwrap();
    let name = |name: &str| info[name].as_str().unwrap();
    let tokens = info["tokens"].as_array().unwrap().iter();
    let draft = Draft::new(
        hash("fingerprint"),
        name("fingerprint_mode").parse().unwrap(),
        name("quant_type").parse().unwrap(),
        hash("ctx_params_hash"),
        tokens.map(|id| id.as_u64().unwrap() as u32).collect(),
    )
    .with_quant_bits(number("quant_bits") as u8)
    .with_save_reason(name("save_reason").parse().unwrap())
    .with_hit_count(number("hit_count") as u32)
    .with_context_size(number("context_size") as u32)
    .with_times(number("creation_time"), number("last_used_time"))
    .with_prompt_text(unhex(&info["prompt_text"]))
    .with_hostname(unhex(&info["hostname"]))
    .with_erllama_version(unhex(&info["erllama_version"]));
    match info.get("save_reason_detail") {
        Some(detail) => draft.with_save_reason_detail(unhex(detail)),
        None => draft,
    }
}

#[test]
fn every_field_reads_as_erllama_reads_it() {
    let mut read = 0;
    for vector in vectors::all("golden") {
        let (Some(file), Some(info)) = (vector.file("golden"), vector.info()) else {
            continue;
        };
        let kvc = parse(&file).unwrap_or_else(|e| panic!("{}: {e}", vector.name));
        assert_eq!(told(&kvc.info), info, "{}", vector.name);
        assert_eq!(kvc.payload, payload(&vector, &info), "{}", vector.name);
        assert_eq!(kvc.info.key(), vector.key(), "{}", vector.name);
        assert_eq!(kvc.verify(Some(&vector.key())), Ok(()), "{}", vector.name);
        read += 1;
    }
    assert_eq!(read, 20);
}

#[test]
fn what_is_written_is_what_erllama_writes() {
    let mut written = 0;
    for vector in vectors::all("golden") {
        let Some(info) = vector.info() else { continue };
        let payload = payload(&vector, &info);
        let draft = draft(&info);
        assert_eq!(draft.key(), vector.key(), "{}", vector.name);
        let mut file = Vec::new();
        draft.write(&payload, &mut file).unwrap();
        let sum = hex(&Sha256::digest(&file));
        assert_eq!(vector.said["sha256"], sum, "{}", vector.name);
        // Also the one that is too long to be kept.
        assert_eq!(told(&parse(&file).unwrap().info), info, "{}", vector.name);
        written += 1;
    }
    assert_eq!(written, 21);
}

#[test]
fn what_was_read_is_written_byte_for_byte() {
    for vector in vectors::all("golden") {
        let Some(file) = vector.file("golden") else {
            continue;
        };
        let Ok(kvc) = parse(&file) else { continue };
        let mut again = Vec::new();
        let draft = Draft::from(&kvc.info);
        draft.write(kvc.payload, &mut again).unwrap();
        assert_eq!(again, file, "{}", vector.name);
    }
}

/// erllama accepts a fingerprint of 31 bytes, and then cannot read its own file. Here the type excludes that.
#[test]
fn what_erllama_cannot_read_again_has_its_error() {
    let vectors = vectors::all("golden");
    let refused: Vec<_> = vectors.iter().filter(|v| v.info().is_none()).collect();
    assert_eq!(refused.len(), 1);
    let error = parse(&refused[0].file("golden").unwrap()).unwrap_err();
    assert_eq!(told_error(&error)["tag"], refused[0].said["error"]);
    assert_eq!(told_error(&error)["arg"], refused[0].said["arg"]);
    assert!(matches!(error, KvcError::MissingTlv { tag: 1, .. }));
}

/// If erllama was given a number that is too large for its field, the golden file contains the lower bits. Here the
/// field's type excludes that.
#[test]
fn numbers_that_wrapped_are_read_as_they_stand() {
    let vectors = vectors::all("golden");
    let wrapped = vectors.iter().find(|vector| vector.name.contains("overflow")).unwrap();
    let info = wrapped.info().unwrap();
    let given = [("quant_bits", 260, 8), ("context_size", (1 << 32) + 1, 32)];
    for (name, given, bits) in given {
        assert_eq!(info[name], given % (1_u64 << bits), "{name}");
    }
}

#[test]
fn every_vector_is_used() {
    for kind in ["golden", "corrupt"] {
        let listed: BTreeSet<String> = vectors::all(kind).into_iter().map(|v| v.name).collect();
        let there = std::fs::read_dir(vectors::folder().join(kind)).unwrap();
        let mut there: BTreeSet<String> =
            there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        if kind == "golden" {
            there.insert("12_tokens_5000.kvc".into());
        }
        assert_eq!(listed, there);
    }
}

//! The vectors, and the form in which they describe a file.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use transload_archive::kvc::{CacheKey, Info, KvcError};

pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) said: Value,
    base: Map<String, Value>,
}

pub(crate) fn all(kind: &str) -> Vec<Vector> {
    let text = fs::read_to_string(folder().join(format!("{kind}.json"))).unwrap();
    let Value::Object(index) = serde_json::from_str(&text).unwrap() else {
        panic!("an object");
    };
    let base = index["base"].as_object().unwrap();
    let files = index["files"].as_array().unwrap().iter();
    files
        .map(|said| Vector { name: said["file"].as_str().unwrap().to_owned(), said: said.clone(), base: base.clone() })
        .collect()
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kvc/vectors"))
}

impl Vector {
    /// Returns the bytes of the file, if it is stored. One file is too long, so its test makes it.
    pub(crate) fn file(&self, kind: &str) -> Option<Vec<u8>> {
        fs::read(folder().join(kind).join(&self.name)).ok()
    }

    pub(crate) fn key(&self) -> CacheKey {
        self.said["key"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn info(&self) -> Option<Value> {
        let mut info = self.base.clone();
        info.extend(self.said.get("info")?.as_object().unwrap().clone());
        if let Some(step) = self.said["tokens_multiples_of"].as_u64() {
            let modulo = self.said["tokens_modulo"].as_u64().unwrap();
            let count = self.said["tokens_count"].as_u64().unwrap();
            let tokens = (1..=count).map(|i| i * step % modulo);
            info.insert("tokens".into(), tokens.collect());
        }
        Some(Value::Object(info))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

pub(crate) fn told(info: &Info<'_>) -> Value {
    let mut told = json!({
        "magic": hex(b"KVC"),
        "version": info.version,
        "quant_bits": info.quant_bits,
        "save_reason": info.save_reason.name(),
        "cached_token_count": info.cached_token_count,
        "hit_count": info.hit_count,
        "context_size": info.context_size,
        "creation_time": info.creation_time,
        "last_used_time": info.last_used_time,
        "payload_byte_count": info.payload_byte_count,
        "payload_offset": info.payload_offset,
        "payload_length": info.payload_length,
        "payload_crc32c": info.payload_crc32c,
        "prompt_text": hex(info.prompt_text),
        "fingerprint": hex(&info.fingerprint),
        "fingerprint_mode": info.fingerprint_mode.name(),
        "quant_type": info.quant_type.name(),
        "ctx_params_hash": hex(&info.ctx_params_hash),
        "tokens": info.tokens.iter().collect::<Vec<_>>(),
    });
    for (name, value) in [
        ("hostname", info.hostname),
        ("erllama_version", info.erllama_version),
        ("save_reason_detail", info.save_reason_detail),
    ] {
        if let Some(value) = value {
            told[name] = hex(value).into();
        }
    }
    told
}

pub(crate) fn told_error(error: &KvcError) -> Value {
    let mut told = json!({ "tag": error.code() });
    let mut add = |name: &str, value: Value| told[name] = value;
    match error {
        KvcError::UnsupportedVersion { found }
        | KvcError::UnknownSaveReason { found }
        | KvcError::UnknownFingerprintMode { found, .. }
        | KvcError::UnknownQuantByte { found, .. } => add("arg", json!(found)),
        KvcError::MissingTlv { name, .. } => add("arg", json!(name)),
        KvcError::CrcMismatch { expected, actual } => {
            add("expected", json!(expected));
            add("actual", json!(actual));
        }
        KvcError::KeyMismatch { expected, actual } => {
            add("expected", json!(expected.to_string()));
            add("actual", json!(actual.to_string()));
        }
        _ => {}
    }
    told
}

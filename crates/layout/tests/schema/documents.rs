//! Valid documents: those of the book, the examples and the tests, and some with every field.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn committed() -> Vec<(String, Json)> {
    let mut found = Vec::new();
    for folder in ["docs", "fuzz/corpus/document", "tests/vectors"] {
        collect(&root().join(folder), &mut found);
    }
    found
}

fn collect(path: &Path, found: &mut Vec<(String, Json)>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.for_each(|entry| collect(&entry, found));
        return;
    }
    let name = path.display().to_string();
    let Ok(text) = fs::read_to_string(path) else {
        return;
    };
    let mut values: Vec<Json> = Vec::new();
    if name.ends_with(".md") {
        let blocks = text.split("```toml\n").skip(1);
        values.extend(blocks.filter_map(|block| toml::from_str(block.split("```").next()?).ok()));
    } else if name.ends_with(".toml") {
        values.extend(toml::from_str(&text));
    } else {
        values.extend(serde_json::from_str(&text));
    }
    for value in values {
        // Pairs are in one file, as vectors and as what fuzzing begins with.
        let documents = match value {
            Json::Array(sides) => sides,
            Json::Object(mut pair) if pair.contains_key("from") => pair.values_mut().map(Json::take).collect(),
            document => vec![document],
        };
        let ours = |document: &Json| document["schema"] == "transload.deployment/1";
        let documents = documents.into_iter().filter(ours);
        found.extend(documents.map(|document| (name.clone(), document)));
    }
}

/// Returns valid documents that together contain every field of every table.
pub(crate) fn all_fields() -> Vec<Json> {
    let group = |name: &str, specs: Json| json!({"name": name, "layers": "0-3", "spec": specs});
    let deployment = json!({
        "$schema": "deployment.schema.json", "schema": "transload.deployment/1", "name": "side",
        "model": "a model", "tp": 2, "pp": 2, "num_layers": 4, "pp_layers": [3, 1],
        "dcp": 2, "interleave": 4,
        "block_size": 16, "num_blocks": 8, "order": "HND",
        "group": [
            {"name": "attn", "layers": "0-3", "block_size": 8, "num_blocks": 4, "order": [0, 1, 3, 2, 4],
             "tokens": "whole", "allocation": "one", "offset": 64, "block_stride": 65536, "layer_stride": 262144,
             "stage": [{"offset": 128, "layer_stride": 524288}, {"block_stride": 131072}], "spec": [
                {"kind": "attention", "heads": 8, "head_dim": 128, "v_head_dim": 64, "dtype": "bf16",
                 "sliding_window": 128, "chunk_size": 64}]},
            {"name": "apart", "layers": "0,2", "tokens": "whole", "allocation": "per_layer", "order": "LB[SHD,SHD]",
             "stage": [{"offset": 0, "block_stride": 65536}, {}], "draft": true, "spec": [
                {"kind": "attention", "heads": 8, "head_dim": 128, "dtype": "f8e4m3"}]},
        ]
    });
    let caches = json!({
        "schema": "transload.deployment/1", "block_size": 16, "num_blocks": 8, "group": [
            group("latent", json!([
                {"kind": "mla", "latent": 576, "dtype": "f32", "sliding_window": 128}])),
            group("sparse", json!([
                {"kind": "compressed", "data_bytes": 448, "scale_bytes": 8, "tokens_per_state": 4,
                 "sliding_window": 128},
                {"kind": "indexer", "data_bytes": 128, "scale_bytes": 4, "tokens_per_state": 4},
                {"kind": "opaque", "heads": 1, "entry_bytes": 24, "tokens_per_state": 4,
                 "packed_heads": 8}])),
        ]
    });
    let states = json!({
        "schema": "transload.deployment/1", "tp": 2, "num_blocks": 8, "group": [
            group("mamba2", json!([
                {"kind": "mamba2_conv", "d_inner": 64, "heads": 8, "groups": 2, "state_size": 16,
                 "conv_kernel": 4, "conv_states": 5, "dtype": "bf16", "conv_layout": "DS"},
                {"kind": "mamba2_ssm", "heads": 8, "head_dim": 8, "state_size": 16, "dtype": "f32"}])),
            group("gdn", json!([
                {"kind": "gdn_conv", "key_heads": 4, "key_head_dim": 16, "value_heads": 8,
                 "value_head_dim": 16, "conv_kernel": 4, "conv_states": 3, "dtype": "f16",
                 "conv_layout": "SD"},
                {"kind": "gdn_ssm", "value_heads": 8, "value_head_dim": 16, "key_head_dim": 16,
                 "dtype": "f64"}])),
            group("mamba1", json!([
                {"kind": "mamba1_conv", "d_inner": 64, "conv_kernel": 4, "conv_states": 3,
                 "dtype": "bf16", "conv_layout": "SD"},
                {"kind": "mamba1_ssm", "d_inner": 64, "state_size": 16, "dtype": "f32"}])),
            group("linear", json!([
                {"kind": "linear", "heads": 8, "head_dim": 16, "v_head_dim": 32, "dtype": "f32"}])),
        ]
    });
    vec![deployment, caches, states]
}

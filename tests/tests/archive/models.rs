//! The pairs that the archive is for, model kind by model kind.

use std::sync::Arc;

use serde_json::{Value, json};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::engines::{Tally, carry};

fn store() -> Arc<dyn Backend> {
    Arc::new(MemoryStore::new())
}

/// Returns a deployment of these groups: TP, PP, block size, order.
pub(crate) fn side(tp: u32, pp: u32, block: u32, order: Option<&str>, groups: &[Value]) -> Value {
    let mut document = json!({"schema": "transload.deployment/1", "tp": tp, "pp": pp, "block_size": block,
        "num_blocks": 1, "group": groups});
    if let Some(order) = order {
        document["order"] = json!(order);
    }
    document
}

pub(crate) fn attention(name: &str, layers: &str, more: Value) -> Value {
    let mut spec = json!({"kind": "attention", "heads": 8, "head_dim": 32, "dtype": "bf16"});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"name": name, "layers": layers, "spec": [spec]})
}

pub(crate) fn mamba(layers: &str, conv_layout: &str) -> Value {
    json!({"name": "mamba", "layers": layers, "spec": [
        {"kind": "mamba2_conv", "d_inner": 128, "heads": 8, "groups": 1, "state_size": 16, "conv_kernel": 4,
         "dtype": "bf16", "conv_layout": conv_layout},
        {"kind": "mamba2_ssm", "heads": 8, "head_dim": 16, "state_size": 16, "dtype": "f32"}]})
}

#[test]
fn grouped_query_attention_from_tp_4_nhd_to_tp_8_hnd_and_tp_1() {
    let groups = [attention("attn", "0-5", json!({}))];
    let store = store();
    let from = side(4, 1, 16, Some("NHD"), &groups);
    for to in [
        side(8, 1, 64, Some("HND"), &groups),
        side(1, 1, 16, Some("KLBSHD"), &groups),
        side(2, 3, 48, Some("BLHSC"), &groups),
    ] {
        assert_eq!(carry(&store, (&from, &to), 1000, 0), 768);
        assert_eq!(carry(&store, (&from, &to), 1000, 300), 768);
    }
}

#[test]
fn more_ranks_than_heads_save_each_head_once() {
    let mut group = attention("attn", "0-1", json!({"heads": 2}));
    group["spec"][0]["v_head_dim"] = json!(16);
    let groups = [group];
    let (from, to) = (side(8, 1, 32, None, &groups), side(4, 2, 16, Some("HND"), &groups));
    let tally = Arc::new(Tally::default());
    let store: Arc<dyn Backend> = tally.clone();
    assert_eq!(carry(&store, (&from, &to), 512, 0), 512);
    // Two token chunks of two heads, not of eight ranks.
    assert_eq!(tally.stored(), (4, 2 * 256 * 2 * 2 * (32 + 16) * 2));
}

#[test]
fn latents_are_saved_by_the_first_rank_only() {
    let mla = json!({"name": "mla", "layers": "0-3", "spec": [
        {"kind": "mla", "latent": 72, "dtype": "bf16"},
        {"kind": "indexer", "data_bytes": 32, "scale_bytes": 4}]});
    let compressed = json!({"name": "c4", "layers": "4-5", "spec": [
        {"kind": "compressed", "data_bytes": 40, "scale_bytes": 8, "tokens_per_state": 4}]});
    let groups = [mla, compressed];
    let (from, to) = (side(4, 2, 64, None, &groups), side(2, 1, 128, None, &groups));
    let tally = Arc::new(Tally::default());
    let store: Arc<dyn Backend> = tally.clone();
    assert_eq!(carry(&store, (&from, &to), 700, 0), 512);
    let bytes = 512 * (4 * (72 * 2 + 36) + 2 * 48 / 4);
    // Layers 0 to 2 and 3 to 5 are on two stages.
    assert_eq!(tally.stored(), (2 * 3, bytes));
}

#[test]
fn hybrids_of_attention_and_recurrent_state() {
    let (ds, sd) = (mamba("0,2,4", "DS"), mamba("0,2,4", "SD"));
    let gdn = |layout| {
        json!({"name": "gdn", "layers": "6-7", "spec": [
            {"kind": "gdn_conv", "key_heads": 4, "key_head_dim": 16, "value_heads": 8, "value_head_dim": 16,
             "conv_kernel": 4, "dtype": "bf16", "conv_layout": layout},
            {"kind": "gdn_ssm", "value_heads": 8, "value_head_dim": 16, "key_head_dim": 16, "dtype": "f32"}]})
    };
    let attn = attention("attn", "1,3,5", json!({}));
    let from = side(4, 1, 16, Some("NHD"), &[attn.clone(), ds, gdn("SD")]);
    let to = side(2, 2, 64, Some("HND"), &[gdn("DS"), sd, attn]);
    assert_eq!(carry(&store(), (&from, &to), 900, 0), 768);
}

#[test]
fn windows_longer_and_shorter_than_a_token_chunk() {
    for window in [1, 2, 100, 255, 256, 257, 512, 700, 100_000] {
        let groups =
            [attention("full", "0,2", json!({})), attention("window", "1,3", json!({"sliding_window": window}))];
        let (from, to) = (side(2, 1, 16, None, &groups), side(1, 2, 48, Some("HND"), &groups));
        assert_eq!(carry(&store(), (&from, &to), 1100, 0), 1024, "a window of {window}");
        assert_eq!(carry(&store(), (&from, &to), 1100, 999), 1024, "a window of {window}");
    }
    let groups = [attention("chunked", "0-3", json!({"chunk_size": 512}))];
    let (from, to) = (side(2, 1, 16, None, &groups), side(4, 1, 64, Some("HND"), &groups));
    for tokens in [256, 512, 1024, 1280] {
        assert_eq!(carry(&store(), (&from, &to), tokens, 0), tokens);
    }
}

#[test]
fn thousands_of_channels_are_bundled() {
    let mamba = |layout| {
        json!({"name": "mamba1", "layers": "0-1", "spec": [
            {"kind": "mamba1_conv", "d_inner": 1536, "conv_kernel": 4, "dtype": "bf16", "conv_layout": layout},
            {"kind": "mamba1_ssm", "d_inner": 1536, "state_size": 16, "dtype": "f32"}]})
    };
    let (from, to) = (side(4, 1, 16, None, &[mamba("DS")]), side(1, 2, 64, None, &[mamba("SD")]));
    let tally = Arc::new(Tally::default());
    let store: Arc<dyn Backend> = tally.clone();
    assert_eq!(carry(&store, (&from, &to), 256, 0), 256);
    // 12 channels in each of 128 pieces; a rank that holds 3 has none of 12.
    assert_eq!(tally.stored(), (128, 2 * 1536 * (3 * 2 + 16 * 4)));
    let many = side(512, 1, 16, None, &[mamba("SD")]);
    assert_eq!(carry(&(tally.clone() as Arc<dyn Backend>), (&from, &many), 256, 0), 256);
    let tally = Arc::new(Tally::default());
    let store: Arc<dyn Backend> = tally.clone();
    assert_eq!(carry(&store, (&many, &from), 256, 0), 256);
    assert_eq!(tally.stored().0, 512);
}

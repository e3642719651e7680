//! Strides and head ownership agree with what vLLM 0.32.0 computes for its own caches.
//!
//! The vectors were made by running vLLM (see `tests/vectors/README.md`).

use serde_json::{Value as Json, json};
use transload_layout::document::Value;
use transload_layout::{Axis, Deployment, Partition, Rank, Replication, make_meta_kv_cache};

fn vectors(name: &str) -> Vec<Json> {
    let path = format!("{}/../../tests/vectors/vllm/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn number(json: &Json) -> u64 {
    json.as_u64().unwrap()
}

fn spec(vector: &Json) -> (Json, u64) {
    let attention = |heads, head_dim, v_head_dim| {
        json!({"kind": "attention", "heads": heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
               "dtype": "bf16"})
    };
    match vector["spec"].as_str().unwrap() {
        "gqa_h8_d128_bf16_b16" | "swa_h8_d128_b16_w1024" => (attention(8, 128, 128), 16),
        "gqa_h1_d64_bf16_b16" => (attention(1, 64, 64), 16),
        "gqa_diffkv_192_128_b16" => (attention(4, 192, 128), 16),
        "mla_576_bf16_b64" => (json!({"kind": "mla", "latent": 576, "dtype": "bf16"}), 64),
        // What vLLM's strides call content is opaque in these.
        name => {
            let per_state = if name.starts_with("dsv4_c4") { 4 } else { 1 };
            let states = number(&vector["num_states"]);
            let entry = json!({"kind": "opaque", "heads": vector["num_heads"],
                "entry_bytes": vector["C"], "tokens_per_state": per_state});
            (entry, states * per_state)
        }
    }
}

#[test]
fn the_six_orders_give_vllms_strides() {
    let vectors = vectors("layout_strides.json");
    assert_eq!(vectors.len(), 9 * 6);
    for vector in vectors {
        let (spec, block_size) = spec(&vector);
        let (layers, blocks) = (number(&vector["L"]), number(&vector["B"]));
        let page = number(&vector["page"]);
        let shape: Vec<u64> = vector["shape_LBHNC_bytes"].as_array().unwrap().iter().map(number).collect();
        let mut document = json!({
            "schema": "transload.deployment/1", "order": vector["layout"], "block_size": block_size,
            "num_blocks": blocks,
            "group": [{"name": "g", "layers": format!("0-{}", layers - 1), "spec": [spec]}],
        });
        let order = vector["layout"].as_str().unwrap();
        let padded = page != shape[2] * shape[3] * shape[4];
        if padded {
            // Each block of a layer has its padding, which goes along with heads only where there is one.
            assert_eq!(number(&vector["num_heads"]), 1, "{vector}");
            if order.starts_with('L') {
                document["group"][0]["block_stride"] = json!(page);
            } else {
                document["group"][0]["layer_stride"] = json!(page);
                document["group"][0]["block_stride"] = json!(page * layers);
            }
        }
        let document: Value = serde_json::from_value(document).unwrap();
        let deployment = Deployment::from_value(&document).unwrap();
        let views = make_meta_kv_cache(&deployment, Rank(0));
        let strides = [Axis::Layer, Axis::Block, Axis::Unit, Axis::State].map(|axis| views[0][0].view.dim(axis).stride);
        let expected: Vec<u64> = vector["strides_bytes_LBHNC"].as_array().unwrap().iter().map(number).collect();
        assert_eq!(strides, expected[..4], "{vector}");
    }
}

#[test]
fn head_ownership_agrees_with_vllms_mapping() {
    for vector in vectors("tp_mapping.json") {
        let heads = if vector["mla"] == true { 1 } else { number(&vector["K"]) };
        let partition = Partition::new(heads, Replication::Any);
        let (src_tp, dst_tp) = (number(&vector["p_tp"]) as u32, number(&vector["d_tp"]) as u32);
        let dst = number(&vector["d_rank"]) as u32;
        let sources = vector["src"].as_array().unwrap();
        let wanted = partition.owned(dst_tp, dst).unwrap();
        // vLLM may pick another replica: what has to agree is which heads the ranks hold.
        let mut held = Vec::new();
        for source in sources {
            held.extend(partition.owned(src_tp, number(source) as u32).unwrap());
        }
        held.retain(|head| wanted.contains(head));
        assert_eq!(held, wanted.clone().collect::<Vec<_>>(), "{vector}");
        // Where several replicas share the work of one of vLLM's, the first of them stands for all.
        let ours = (0..src_tp).filter(|src| {
            let served = partition.served((src_tp, *src), (dst_tp, dst)).unwrap();
            served.is_some_and(|served| served.share.index == 0)
        });
        assert_eq!(ours.count(), sources.len(), "{vector}");
        let first = number(&sources[0]) as u32;
        // vLLM counts the offset in shares of the decode rank.
        let offset = wanted.start - partition.owned(src_tp, first).unwrap().start;
        let offset = offset / (wanted.end - wanted.start);
        assert_eq!(offset, number(&vector["off"]), "{vector}");
    }
}

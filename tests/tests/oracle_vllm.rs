//! The oracle against vLLM: the strides of its caches and its mapping of heads to ranks, as written
//! down by running it (version 0.32.0). The files are in `vectors/vllm`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use transload_tests::oracle::{self, Name, Request};

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/vectors/vllm/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the cache that a vector was made from: block size, specs, padded page.
fn cache(vector: &Value) -> (u64, Vec<Value>) {
    let attention = |heads: u64, k: u64, v: u64| {
        json!({"kind": "attention", "heads": heads, "head_dim": k, "v_head_dim": v,
               "dtype": "bf16"})
    };
    match vector["spec"].as_str().unwrap() {
        "gqa_h8_d128_bf16_b16" => (16, vec![attention(8, 128, 128)]),
        "gqa_h1_d64_bf16_b16" => (16, vec![attention(1, 64, 64)]),
        "gqa_diffkv_192_128_b16" => (16, vec![attention(4, 192, 128)]),
        "gqa_kvplanes_rocm_h8_d128_b16" => (16, vec![json!({"kind": "opaque", "heads": 2, "entry_bytes": 2048})]),
        "mla_576_bf16_b64" => (64, vec![json!({"kind": "mla", "latent": 576, "dtype": "bf16"})]),
        "mla_fp8_ds_656_b64" => (64, vec![json!({"kind": "mla", "latent": 656, "dtype": "u8"})]),
        "dsv4_c4_584_b256" => (
            256,
            vec![json!({"kind": "compressed", "data_bytes": 576, "scale_bytes": 8,
                        "tokens_per_state": 4})],
        ),
        "swa_h8_d128_b16_w1024" => {
            let mut spec = attention(8, 128, 128);
            spec["sliding_window"] = json!(1024);
            (16, vec![spec])
        }
        // A page of this size; what vLLM shows of it is one opaque state.
        "mamba2_sd" => (
            16,
            vec![json!({"kind": "opaque", "heads": 1, "entry_bytes": vector["C"],
                        "tokens_per_state": 16})],
        ),
        other => panic!("what is {other}?"),
    }
}

#[test]
fn strides_are_those_of_vllm() {
    let vectors = vectors("layout_strides.json");
    assert_eq!(vectors.len(), 54);
    for vector in &vectors {
        let numbers = |key: &str| -> Vec<u64> {
            let list = vector[key].as_array().unwrap();
            list.iter().map(|n| n.as_u64().unwrap()).collect()
        };
        let (shape, strides) = (numbers("shape_LBHNC_bytes"), numbers("strides_bytes_LBHNC"));
        let (block_size, specs) = cache(vector);
        let compressed = specs[0]["kind"] == "compressed";
        let layout = vector["layout"].as_str().unwrap();
        let mut group = json!({"name": "g", "layers": "0-3", "order": layout, "spec": specs});
        if compressed {
            // vLLM's view shows data and scales side by side, where in truth all data of a block lie
            // before all scales. What the view says of layers and blocks stands.
            let outer = layout.replace(['H', 'N', 'C'], "");
            group["order"] = json!(format!("{outer}[SD,SD]"));
            if outer == "LB" {
                group["block_stride"] = vector["page"].clone();
            } else {
                group["layer_stride"] = vector["page"].clone();
                group["block_stride"] = json!(vector["page"].as_u64().unwrap() * shape[0]);
            }
        }
        let document = json!({"block_size": block_size, "num_blocks": 10, "group": [group]});
        let element = if specs[0]["dtype"] == "bf16" { 2 } else { 1 };
        let key_width = match specs[0]["kind"].as_str().unwrap() {
            "attention" => specs[0]["head_dim"].as_u64().unwrap() * element,
            "compressed" => 576,
            _ => u64::MAX,
        };
        let side = oracle::Side::read(&document).unwrap();
        let group = side.group("g").unwrap();
        // First, second and last of each axis.
        let few = |n: u64| BTreeSet::from([0, 1.min(n - 1), n - 1]);
        let contents = few(shape[4])
            .into_iter()
            .chain([key_width.min(shape[4]) - 1, key_width % shape[4]])
            .collect::<BTreeSet<_>>();
        for l in few(shape[0]) {
            for b in few(shape[1]) {
                for h in few(shape[2]) {
                    for n in few(shape[3]) {
                        for &c in &contents {
                            let component = usize::from(c >= key_width);
                            let inside = if component == 1 { c - key_width } else { c };
                            let name = Name {
                                layer: l,
                                spec: 0,
                                component,
                                unit: if compressed { 0 } else { h },
                                i: inside / element,
                                j: 0,
                                byte: inside % element,
                            };
                            let found = side.address(0, group, &name, b, n).unwrap();
                            let expected = if compressed {
                                let within = match component {
                                    0 => n * 576 + inside,
                                    _ => 64 * 576 + n * 8 + inside,
                                };
                                l * strides[0] + b * strides[1] + within
                            } else {
                                l * strides[0] + b * strides[1] + h * strides[2] + n * strides[3] + c * strides[4]
                            };
                            assert_eq!(found.offset, expected, "{vector} at {name:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn heads_live_where_vllm_puts_them() {
    let vectors = vectors("tp_mapping.json");
    assert_eq!(vectors.len(), 240);
    for vector in &vectors {
        let heads = vector["K"].as_u64().unwrap();
        let spec = match vector["mla"].as_bool().unwrap() {
            true => json!({"kind": "mla", "latent": 1, "dtype": "u8"}),
            false => json!({"kind": "attention", "heads": heads, "head_dim": 1, "dtype": "u8"}),
        };
        let side = |tp: &Value| {
            json!({"tp": tp, "block_size": 1, "num_blocks": 1,
                   "group": [{"name": "g", "layers": "0", "spec": [spec]}]})
        };
        let (from, to) = (side(&vector["p_tp"]), side(&vector["d_tp"]));
        let request = Request { tokens: 1, ..Request::default() };
        let rank = vector["d_rank"].as_u64().unwrap();
        let mut routes = oracle::transfer(&from, &to, &request).unwrap();
        routes.retain(|route| route.dst_rank == rank);
        let sources = routes.iter().map(|route| route.src_rank).collect::<Vec<_>>();
        // vLLM's choice among replicas happens to be ours.
        assert_eq!(json!(sources), vector["src"], "{vector}");
        // One token of one byte K and one byte V a head: the first head read lies at half its offset.
        // vLLM counts it in slices of what a destination rank holds.
        let first = routes[0].bytes.iter().map(|m| m.src.offset).min().unwrap();
        let slice = match vector["mla"].as_bool().unwrap() {
            true => 1,
            false => (heads / vector["d_tp"].as_u64().unwrap()).max(1),
        };
        assert_eq!(first / 2, vector["off"].as_u64().unwrap() * slice, "{vector}");
    }
}

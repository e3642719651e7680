//! The checks of the fuzz target `config`, on its corpus, on all published configs, and on the largest possible ones.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

#[path = "../../../../fuzz/checks/config.rs"]
mod check;

/// Checks every file of a folder, whole and cut off.
fn replay(folder: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let data = std::fs::read(&path).unwrap();
        check::check(&data);
        for end in (0..data.len()).step_by(data.len() / 16 + 1) {
            check::check(&data[..end]);
        }
        inputs += 1;
    }
    inputs
}

#[test]
fn the_corpus_is_replayed() {
    assert!(replay("../../fuzz/corpus/config") >= 10);
}

#[test]
fn published_configs_are_served_in_odd_ways() {
    assert!(replay("tests/catalog/configs") >= 25);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read(entry.unwrap().path()).unwrap();
        // A type, ranks, stages, tokens of a block and of a sequence, an order.
        for choices in [
            [0, 0, 1, 2, 31, 255, 1],
            [0, 11, 7, 2, 128, 99, 2],
            [0, 7, 2, 0, 3, 210, 0],
            [0, 9, 255, 255, 255, 255, 3],
        ] {
            check::check(&[&text[..], &choices].concat());
        }
    }
}

#[test]
fn every_layer_may_be_another() {
    let layers = 65_536;
    let mut own = String::new();
    for layer in 0..layers {
        let comma = if layer > 0 { "," } else { "" };
        write!(own, "{comma}\"{layer}\":{{\"head_dim\":{}}}", layer + 1).unwrap();
    }
    let config = format!("{{\"model_type\":\"llama\",\"num_hidden_layers\":{layers},\"per_layer_config\":{{{own}}}}}");
    check::check(config.as_bytes());
}

#[test]
fn a_model_may_have_very_many_layers() {
    for family in ["llama", "gemma4_text", "longcat_flash", "deepseek_v4", "jamba", "zamba2"] {
        let config = json!({"model_type": family, "num_hidden_layers": 65_536, "num_layers": 65_536,
            "n_layers": 65_536, "n_layer": 65_536, "hidden_size": 4096, "num_attention_heads": 32});
        check::check(config.to_string().as_bytes());
    }
    let pattern = "M*-E".repeat(16_384);
    let config = json!({"model_type": "nemotron_h", "hybrid_override_pattern": pattern});
    check::check(config.to_string().as_bytes());
}

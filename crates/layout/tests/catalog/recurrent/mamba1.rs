//! Mamba1: pages shared out by channels.

use serde_json::json;

use crate::common::{config_but, groups, mamba1, model, read, sizes, specs};

#[test]
fn jamba_attends_in_one_layer_of_eight() {
    let model = model("jamba-mini-1.5");
    assert_eq!(groups(&model), [("mamba", "0-3,5-11,13-19,21-27,29-31".to_owned()), ("attn", "4,12,20,28".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba1(8192, 16));
    assert_eq!(sizes(&model, "mamba"), (28, 8192 * 3 * 2 + 8192 * 16 * 2));
    assert_eq!(sizes(&model, "attn"), (4, 2 * 8 * 128 * 2));
}

#[test]
fn falcon_mamba_does_not_mean_its_expand() {
    let model = model("falcon-mamba-7b");
    assert_eq!(groups(&model), [("mamba", "0-63".to_owned())]);
    assert_eq!(specs(&model, "mamba"), mamba1(8192, 16));
    let expanded = config_but("falcon-mamba-7b", json!({"intermediate_size": "absent"}));
    assert_eq!(specs(&read(&expanded).unwrap(), "mamba"), mamba1(65_536, 16));
}

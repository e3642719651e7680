//! Linear attention and short convolutions.

use serde_json::json;
use transload_layout::Dtype;
use transload_layout::spec::{Linear, Spec};

use crate::common::{config_but, groups, model, read, sizes, specs};

#[test]
fn minimax_text_01_has_a_state_for_every_query_head() {
    let model = model("minimax-text-01");
    assert_eq!(groups(&model)[1], ("attn", "7,15,23,31,39,47,55,63,71,79".to_owned()));
    // 64 heads of 128, where hidden_size over heads is 96.
    let state = Linear { heads: 64, head_dim: 128, v_head_dim: 128, dtype: Dtype::Bf16 };
    assert_eq!(specs(&model, "linear"), [Spec::Linear(state)]);
    assert_eq!(sizes(&model, "linear"), (70, 64 * 128 * 128 * 2));
    assert_eq!(sizes(&model, "attn"), (10, 2 * 8 * 128 * 2));
    for family in ["minimax_m1", "minimax"] {
        let same = config_but("minimax-text-01", json!({"model_type": family}));
        assert_eq!(read(&same).unwrap().groups, model.groups);
    }
}

#[test]
fn lfm2_keeps_two_inputs_of_each_channel() {
    let dense = model("lfm2-1.2b");
    assert_eq!(groups(&dense), [("conv", "0-1,3-4,6-7,9,11,13,15".to_owned()), ("attn", "2,5,8,10,12,14".to_owned())]);
    assert_eq!(sizes(&dense, "conv"), (10, 2048 * 2 * 2));
    // 12,288 B per token of the whole model.
    assert_eq!(sizes(&dense, "attn"), (6, 2 * 8 * 64 * 2));
    let experts = model("lfm2-8b-a1b");
    assert_eq!(groups(&experts)[1], ("attn", "2,6,10,14,18,21".to_owned()));
    assert_eq!(sizes(&experts, "conv"), (18, 2048 * 2 * 2));
}

//! Configs with nothing but the family's name. The model has the numbers of its config class.
//!
//! The lines on keys and values come from the classes of `transformers` 5.23.0.

use transload_layout::catalog::Model;

use crate::common::{bare, caches, fault, read};

const KEYS_AND_VALUES: &[(&str, &[&str])] = &[
    ("afmoe", &["window 24: 16x(128+128) bf16, window 1024", "attn 8: 16x(128+128) bf16"]),
    ("apertus", &["attn 32: 32x(128+128) bf16"]),
    ("arcee", &["attn 32: 32x(80+80) bf16"]),
    ("biogpt", &["attn 24: 16x(64+64) bf16"]),
    ("bitnet", &["attn 30: 5x(128+128) bf16"]),
    ("cohere", &["attn 40: 64x(128+128) bf16"]),
    ("cohere2", &["window 30: 64x(128+128) bf16, window 4096", "attn 10: 64x(128+128) bf16"]),
    ("cohere2_moe", &["window 30: 64x(128+128) bf16, window 4096", "attn 10: 64x(128+128) bf16"]),
    ("cwm", &["attn 16: 8x(128+128) bf16", "window 48: 8x(128+128) bf16, window 8192"]),
    ("dbrx", &["attn 24: 1x(128+128) bf16"]),
    ("diffllama", &["attn 16: 32x(64+64) bf16"]),
    ("dots1", &["attn 62: 32x(144+144) bf16"]),
    ("ernie4_5", &["attn 18: 2x(128+128) bf16"]),
    ("ernie4_5_moe", &["attn 28: 4x(128+128) bf16"]),
    ("exaone4", &["window 24: 32x(128+128) bf16, window 4096", "attn 8: 32x(128+128) bf16"]),
    ("exaone_moe", &["window 24: 32x(128+128) bf16, window 4096", "attn 8: 32x(128+128) bf16"]),
    ("falcon", &["attn 32: 1x(64+64) bf16"]),
    ("flex_olmo", &["attn 32: 32x(128+128) bf16"]),
    ("gemma", &["attn 28: 16x(256+256) bf16"]),
    ("gemma2", &["window 13: 4x(256+256) bf16, window 4096", "attn 13: 4x(256+256) bf16"]),
    ("gemma3_text", &["window 22: 4x(256+256) bf16, window 4096", "attn 4: 4x(256+256) bf16"]),
    ("gemma3n_text", &["window 16: 2x(256+256) bf16, window 512", "attn 4: 2x(256+256) bf16"]),
    ("gemma4_text", &["window 25: 4x(256+256) bf16, window 512", "attn 5: 4x(512+512) bf16"]),
    ("gemma4_unified_text", &["window 25: 4x(256+256) bf16, window 1024", "attn 5: 4x(512+512) bf16"]),
    ("glm", &["attn 40: 2x(128+128) bf16"]),
    ("glm4", &["attn 40: 2x(128+128) bf16"]),
    ("glm4v_text", &["attn 40: 2x(128+128) bf16"]),
    ("glm_ocr_text", &["attn 16: 8x(64+64) bf16"]),
    ("gpt2", &["attn 12: 12x(64+64) bf16"]),
    ("gpt_bigcode", &["attn 12: 1x(64+64) bf16"]),
    ("gpt_neox", &["attn 44: 64x(96+96) bf16"]),
    ("gpt_oss", &["window 18: 8x(64+64) bf16, window 128", "attn 18: 8x(64+64) bf16"]),
    ("gptj", &["attn 28: 16x(256+256) bf16"]),
    ("granite", &["attn 32: 32x(128+128) bf16"]),
    ("granite_swa", &["attn 6: 4x(128+128) bf16", "window 18: 4x(128+128) bf16, window 128"]),
    ("granitemoe", &["attn 32: 32x(128+128) bf16"]),
    ("granitemoe_swa", &["attn 8: 32x(128+128) bf16", "window 24: 32x(128+128) bf16, window 128"]),
    ("granitemoeshared", &["attn 32: 32x(128+128) bf16"]),
    ("helium", &["attn 24: 20x(128+128) bf16"]),
    ("hunyuan_v1_dense", &["attn 32: 32x(128+128) bf16"]),
    ("hunyuan_v1_moe", &["attn 32: 32x(128+128) bf16"]),
    ("hy_v3", &["attn 80: 8x(128+128) bf16"]),
    ("hyperclovax", &["attn 32: 32x(128+128) bf16"]),
    ("internlm3", &["attn 48: 2x(128+128) bf16"]),
    ("iquestcoder", &["attn 80: 8x(128+128) bf16"]),
    ("jais2", &["attn 32: 26x(128+128) bf16"]),
    ("kolibri1", &["window 40: 4x(128+128) bf16, window 513", "attn 10: 4x(128+128) bf16"]),
    ("laguna", &["attn 40: 8x(128+128) bf16"]),
    ("llama", &["attn 32: 32x(128+128) bf16"]),
    ("llama4_text", &["chunk 36: 8x(128+128) bf16, chunk 8192", "attn 12: 8x(128+128) bf16"]),
    ("mellum", &["attn 28: 4x(128+128) bf16"]),
    ("mimo_v2_flash", &["attn 9: 4x(192+128) bf16", "window 39: 8x(192+128) bf16, window 129"]),
    ("minimax_m2", &["attn 62: 8x(128+128) bf16"]),
    ("ministral", &["window 32: 8x(128+128) bf16, window 4096"]),
    ("ministral3", &["attn 34: 8x(128+128) bf16"]),
    ("mistral", &["window 32: 8x(128+128) bf16, window 4096"]),
    ("mixtral", &["attn 32: 8x(128+128) bf16"]),
    ("muse_glimmer_assistant", &["window 5: 8x(128+128) bf16, window 2048"]),
    ("nanochat", &["attn 12: 6x(128+128) bf16"]),
    ("nemotron", &["attn 32: 48x(128+128) bf16"]),
    ("olmo", &["attn 32: 32x(128+128) bf16"]),
    ("olmo2", &["attn 32: 32x(128+128) bf16"]),
    ("olmo3", &["window 24: 32x(128+128) bf16, window 4096", "attn 8: 32x(128+128) bf16"]),
    ("olmoe", &["attn 16: 16x(128+128) bf16"]),
    ("opt", &["attn 12: 12x(64+64) bf16"]),
    ("persimmon", &["attn 36: 64x(64+64) bf16"]),
    ("phi", &["attn 24: 32x(64+64) bf16"]),
    ("phi3", &["attn 32: 32x(96+96) bf16"]),
    ("phimoe", &["attn 32: 8x(128+128) bf16"]),
    ("qwen2", &["attn 32: 32x(128+128) bf16"]),
    ("qwen2_5_omni_text", &["attn 28: 4x(128+128) bf16"]),
    ("qwen2_5_vl_text", &["attn 80: 8x(128+128) bf16"]),
    ("qwen2_moe", &["attn 24: 16x(128+128) bf16"]),
    ("qwen2_vl_text", &["attn 80: 8x(128+128) bf16"]),
    ("qwen3", &["attn 32: 32x(128+128) bf16"]),
    ("qwen3_moe", &["attn 24: 4x(64+64) bf16"]),
    ("qwen3_vl_moe_text", &["attn 24: 16x(128+128) bf16"]),
    ("qwen3_vl_text", &["attn 32: 32x(128+128) bf16"]),
    ("seed_oss", &["attn 64: 8x(128+128) bf16"]),
    ("smollm3", &["attn 36: 4x(128+128) bf16"]),
    ("solar_open", &["attn 48: 8x(128+128) bf16"]),
    ("stablelm", &["attn 32: 32x(80+80) bf16"]),
    ("starcoder2", &["attn 30: 2x(128+128) bf16"]),
    ("step3p5", &["attn 45: 8x(128+128) bf16"]),
    ("vaultgemma", &["window 13: 4x(256+256) bf16, window 4096", "attn 13: 4x(256+256) bf16"]),
];

const LATENTS: &[(&str, &[&str])] = &[
    ("axk1", &["mla 61: 576 bf16"]),
    ("deepseek_v2", &["mla 32: 576 bf16"]),
    ("deepseek_v3", &["mla 61: 576 bf16"]),
    ("deepseek_v32", &["mla 61: 576 bf16", "indexer 61: 128+4 B of 1"]),
    (
        "deepseek_v4",
        &[
            "window 43: 576+8 B of 1, window 128",
            "c128 23: 576+8 B of 128",
            "c128-state 23: 1024 f32, window 128",
            "c4 20: 576+8 B of 4",
            "c4-state 20: 2048 f32, window 8",
            "indexer 20: 128+4 B of 4",
            "indexer-state 20: 512 f32, window 8",
        ],
    ),
    ("dots3_note_text", &["mla 13: 1088 bf16", "indexer 13: 128+4 B of 1", "window 33: 1088 bf16, window 512"]),
    ("glm4_moe_lite", &["mla 47: 576 bf16"]),
    ("glm_moe_dsa", &["mla 78: 576 bf16", "indexer 78: 128+4 B of 1"]),
    ("kimi_k2", &["mla 61: 576 bf16"]),
    ("longcat_flash", &["mla 28: 576 bf16", "mla-b 28: 576 bf16"]),
    ("mistral4", &["mla 36: 320 bf16"]),
];

/// Classes whose own numbers do not fit: their `head_dim` is 4096 / 96 or 2048 / 28, rounded down. Every published
/// config of these classes has a `head_dim`.
const ROUNDED: &[&str] = &["glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"];

#[test]
fn a_bare_family_has_the_numbers_of_its_class() {
    for (family, expected) in KEYS_AND_VALUES.iter().chain(LATENTS) {
        let model = read(&bare(family)).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(caches(&model), *expected, "{family}");
        assert_eq!(model.family, *family);
    }
    for family in ROUNDED {
        let fault = fault(&bare(family));
        assert!(fault.starts_with("hidden_size: is "), "{fault}");
    }
}

#[test]
fn every_family_is_found_once() {
    let mut families: Vec<&str> = Model::families().collect();
    families.sort_unstable();
    let count = families.len();
    families.dedup();
    assert_eq!(families.len(), count);
    let mine = KEYS_AND_VALUES.iter().chain(LATENTS);
    for family in mine.map(|(family, _)| family).chain(ROUNDED) {
        assert!(families.contains(family), "{family}");
    }
}

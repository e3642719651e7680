//! Published models whose layers cache keys and values, or latents: the caches of each, and their size.

use crate::common::{caches, config, growth, layers, read, read_in, windows};

/// A config, the caches of its layers, the bytes of one more token, and the bytes of full windows.
type Published = (&'static str, &'static [&'static str], u64, u64);

const PUBLISHED: &[Published] = &[
    ("llama-3.1-8b", &["attn 32: 8x(128+128) bf16"], 131_072, 0),
    ("llama-3.1-70b", &["attn 80: 8x(128+128) bf16"], 327_680, 0),
    ("qwen2.5-7b", &["attn 28: 4x(128+128) bf16"], 57_344, 0),
    ("qwen2.5-vl-7b", &["attn 28: 4x(128+128) bf16"], 57_344, 0),
    ("qwen3-0.6b", &["attn 28: 8x(128+128) bf16"], 114_688, 0),
    ("qwen3-8b", &["attn 36: 8x(128+128) bf16"], 147_456, 0),
    ("qwen3-235b-a22b", &["attn 94: 4x(128+128) bf16"], 192_512, 0),
    ("mistral-7b-v0.1", &["window 32: 8x(128+128) bf16, window 4096"], 0, 32 * 4096 * 4096),
    ("mistral-7b-v0.3", &["attn 32: 8x(128+128) bf16"], 131_072, 0),
    ("mistral-small-3.2-24b", &["attn 40: 8x(128+128) bf16"], 163_840, 0),
    ("mixtral-8x7b", &["attn 32: 8x(128+128) bf16"], 131_072, 0),
    ("gemma-7b", &["attn 28: 16x(256+256) bf16"], 458_752, 0),
    (
        "gemma-2-9b",
        &["window 21: 8x(256+256) bf16, window 4096", "attn 21: 8x(256+256) bf16"],
        172_032,
        21 * 8192 * 4096,
    ),
    ("gemma-3-1b", &["window 22: 1x(256+256) bf16, window 512", "attn 4: 1x(256+256) bf16"], 4_096, 22 * 1024 * 512),
    ("gemma-3-4b", &["window 29: 4x(256+256) bf16, window 1024", "attn 5: 4x(256+256) bf16"], 20_480, 29 * 4096 * 1024),
    (
        "gemma-3-27b",
        &["window 52: 16x(128+128) bf16, window 1024", "attn 10: 16x(128+128) bf16"],
        81_920,
        52 * 8192 * 1024,
    ),
    ("gemma-3n-e4b", &["window 16: 2x(256+256) bf16, window 512", "attn 4: 2x(256+256) bf16"], 8_192, 16 * 2048 * 512),
    (
        "gemma-4-31b",
        &["window 50: 16x(256+256) bf16, window 1024", "attn 10: 4x(512+512) bf16"],
        81_920,
        // 800 KiB a token.
        819_200 * 1024,
    ),
    ("gpt-oss-120b", &["window 18: 8x(64+64) bf16, window 128", "attn 18: 8x(64+64) bf16"], 36_864, 4_718_592),
    ("llama-4-scout-17b-16e", &["chunk 36: 8x(128+128) bf16, chunk 8192", "attn 12: 8x(128+128) bf16"], 49_152, 0),
    (
        "c4ai-command-r7b-12-2024",
        &["window 24: 8x(128+128) bf16, window 4096", "attn 8: 8x(128+128) bf16"],
        32_768,
        24 * 4096 * 4096,
    ),
    (
        "exaone-4.0-32b",
        &["window 48: 8x(128+128) bf16, window 4096", "attn 16: 8x(128+128) bf16"],
        65_536,
        48 * 4096 * 4096,
    ),
    (
        "olmo-3-7b",
        &["window 24: 32x(128+128) bf16, window 4096", "attn 8: 32x(128+128) bf16"],
        131_072,
        24 * 16_384 * 4096,
    ),
    ("phi-3-mini-4k", &["window 32: 32x(96+96) bf16, window 2047"], 0, 32 * 12_288 * 2047),
    ("starcoder2-15b", &["window 40: 4x(128+128) bf16, window 4096"], 0, 40 * 2048 * 4096),
    (
        "mimo-v2-flash",
        &["attn 9: 4x(192+128) bf16", "window 39: 8x(192+128) bf16, window 128"],
        23_040,
        39 * 5120 * 128,
    ),
    (
        "step-3.5-flash",
        &["attn 12: 8x(128+128) bf16", "window 33: 8x(128+128) bf16, window 512"],
        49_152,
        33 * 4096 * 512,
    ),
    ("glm-4.5", &["attn 92: 8x(128+128) bf16"], 376_832, 0),
    ("minimax-m2", &["attn 62: 8x(128+128) bf16"], 253_952, 0),
    ("granite-3.1-8b", &["attn 40: 8x(128+128) bf16"], 163_840, 0),
    ("smollm3-3b", &["attn 36: 4x(128+128) bf16"], 73_728, 0),
    ("seed-oss-36b", &["attn 64: 8x(128+128) bf16"], 262_144, 0),
    ("gpt-neox-20b", &["attn 44: 64x(96+96) f16"], 1_081_344, 0),
    ("falcon-7b", &["attn 32: 1x(64+64) bf16"], 8_192, 0),
    ("falcon-40b", &["attn 60: 8x(64+64) bf16"], 122_880, 0),
    ("dbrx", &["attn 40: 8x(128+128) bf16"], 163_840, 0),
    ("deepseek-v2-lite", &["mla 27: 576 bf16"], 31_104, 0),
    ("deepseek-v3", &["mla 61: 576 bf16"], 70_272, 0),
    ("kimi-k2", &["mla 61: 576 bf16"], 70_272, 0),
    ("glm-4.7-flash", &["mla 47: 576 bf16"], 54_144, 0),
    ("mistral-small-4", &["mla 36: 320 bf16"], 23_040, 0),
    ("longcat-flash", &["mla 28: 576 bf16", "mla-b 28: 576 bf16"], 64_512, 0),
    ("deepseek-v3.2", &["mla 61: 576 bf16", "indexer 61: 128+4 B of 1"], 61 * (1152 + 132), 0),
    ("glm-5", &["mla 78: 576 bf16", "indexer 78: 128+4 B of 1"], 78 * (1152 + 132), 0),
    ("glm-5.2", &["mla 78: 576 bf16", "indexer 21: 128+4 B of 1"], 78 * 1152 + 21 * 132, 0),
];

#[test]
fn published_models_cache_what_they_are_known_to_cache() {
    for (name, expected, per_token, fixed) in PUBLISHED {
        let model = read(&config(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(caches(&model), *expected, "{name}");
        assert_eq!(growth(&model, 1), *per_token, "{name}");
        assert_eq!(windows(&model), *fixed, "{name}");
    }
}

#[test]
fn layers_are_told_apart_by_their_ids() {
    for (name, group, ids) in [
        ("gemma-3-27b", "attn", "5,11,17,23,29,35,41,47,53,59"),
        ("gemma-3n-e4b", "attn", "4,9,14,19"),
        ("gemma-3n-e4b", "window", "0-3,5-8,10-13,15-18"),
        ("gpt-oss-120b", "window", &evens(36)),
        ("llama-4-scout-17b-16e", "attn", "3,7,11,15,19,23,27,31,35,39,43,47"),
        ("mimo-v2-flash", "attn", "0,5,11,17,23,29,35,41,47"),
        ("step-3.5-flash", "attn", "0,4,8,12,16,20,24,28,32,36,40,44"),
        ("longcat-flash", "mla", "0-27"),
        ("longcat-flash", "mla-b", "0-27"),
        ("glm-5.2", "indexer", "0-2,6,10,14,18,22,26,30,34,38,42,46,50,54,58,62,66,70,74"),
    ] {
        let model = read(&config(name)).unwrap();
        assert_eq!(layers(&model, group), ids, "{name}");
    }
    // Layers that share another's cache are layers all the same.
    assert_eq!(read(&config("gemma-3n-e4b")).unwrap().num_layers, 35);
}

fn evens(end: u32) -> String {
    let ids: Vec<String> = (0..end).step_by(2).map(|id| id.to_string()).collect();
    ids.join(",")
}

#[test]
fn fp8_has_the_entry_sizes_of_engines() {
    for (name, dtype, expected) in [
        ("llama-3.1-8b", "fp8", &["attn 32: 8x(128+128) f8e4m3"][..]),
        ("llama-3.1-8b", "fp8_e5m2", &["attn 32: 8x(128+128) f8e5m2"]),
        ("deepseek-v3", "fp8", &["mla 61: 576 f8e4m3"]),
        ("deepseek-v3", "fp8_ds_mla", &["mla 61: 1x656 B of 1"]),
        ("mistral-small-4", "fp8_ds_mla", &["mla 36: 1x392 B of 1"]),
        ("deepseek-v3.2", "fp8", &["mla 61: 1x656 B of 1", "indexer 61: 128+4 B of 1"]),
        ("deepseek-v3.2", "bfloat16", &["mla 61: 576 bf16", "indexer 61: 128+4 B of 1"]),
    ] {
        let model = read_in(dtype, &config(name)).unwrap();
        assert_eq!(caches(&model), expected, "{name} in {dtype}");
    }
    let error = read_in("fp8_ds_mla", &config("llama-3.1-8b")).unwrap_err();
    assert!(error.to_string().contains("format of latents"), "{error}");
}

/// Two published models. Two layers of Flash have only a window.
#[test]
fn deepseek_v4_keeps_a_window_compressed_states_and_what_they_are_made_from() {
    let flash = read(&config("deepseek-v4-flash")).unwrap();
    assert_eq!(
        caches(&flash),
        [
            "window 43: 576+8 B of 1, window 128",
            "c4 21: 576+8 B of 4",
            "c4-state 21: 2048 f32, window 8",
            "indexer 21: 128+4 B of 4",
            "indexer-state 21: 512 f32, window 8",
            "c128 20: 576+8 B of 128",
            "c128-state 20: 1024 f32, window 128",
        ]
    );
    assert!(layers(&flash, "c4").starts_with("2,4,6,"));
    assert!(layers(&flash, "c128").starts_with("3,5,7,"));
    // 21 * (584 + 132) / 4 + 20 * 584 / 128 bytes a token: the eighth part of DeepSeek V3's.
    assert_eq!(growth(&flash, 128), 21 * 716 * 32 + 20 * 584);
    let states = 21 * 8 * (8192 + 2048) + 20 * 128 * 4096;
    assert_eq!(windows(&flash), 43 * 584 * 128 + states);

    let pro = read(&config("deepseek-v4-pro")).unwrap();
    assert_eq!([layers(&pro, "window"), layers(&pro, "c4").split(',').count().to_string()], ["0-60", "30"]);
    assert!(layers(&pro, "c128").starts_with("0-1,3,5,"));

    let plain = read_in("bf16", &config("deepseek-v4-flash")).unwrap();
    let plain = caches(&plain);
    assert_eq!(plain[0], "window 43: 512 bf16, window 128");
    assert_eq!(plain[1], "c4 21: 1x1024 B of 4");
    for dtype in ["fp8", "fp8_ds_mla"] {
        assert_eq!(read_in(dtype, &config("deepseek-v4-flash")).unwrap(), flash);
    }
    let error = read_in("f16", &config("deepseek-v4-flash")).unwrap_err();
    assert!(error.to_string().contains("fp8_ds_mla"), "{error}");
}

//! The search for the text model in the config of a multimodal model.

use std::rc::Rc;

use super::config::Preset::{Number, Text};
use super::config::{CacheDtype, Config, ConfigError, Presets};
use super::presets::class;
use crate::document::Value;

/// The keys under which wrappers (with images, speech, …) have their text model.
const TEXT_KEYS: [&str; 4] = ["text_config", "thinker_config", "llm_config", "language_config"];

/// The family of each wrapper's text model, for configs that do not name it, or that have no table for it at all.
const WRAPPED: &[(&str, &str)] = &[
    ("audioflamingo3", "qwen2"),
    ("aya_vision", "cohere2"),
    ("cohere2_vision", "cohere2"),
    ("cosmos3_omni", "qwen3_vl_text"),
    ("deepseek_ocr", "deepseek_v2"),
    ("deepseek_ocr2", "deepseek_v2"),
    ("deepseek_vl", "llama"),
    ("deepseek_vl_hybrid", "llama"),
    ("deepseek_vl_v2", "deepseek_v2"),
    ("dots3_note", "dots3_note_text"),
    ("exaone4_5", "exaone4"),
    ("fast_vlm", "qwen2"),
    ("fun_asr_nano", "qwen3"),
    ("fuyu", "persimmon"),
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("glm46v", "glm4v_text"),
    ("glm4v", "glm4v_text"),
    ("glm4v_moe", "glm4v_moe_text"),
    ("glm5_next", "glm5_next_text"),
    ("glm_ocr", "glm_ocr_text"),
    ("glmasr", "llama"),
    ("glmga", "glm4v_text"),
    ("got_ocr2", "qwen2"),
    ("granite_speech", "granite"),
    ("granite_speech_plus", "granite"),
    ("hy_v4_vl", "hy_v4_vl_text"),
    ("hyperclovax_vision_v2", "hyperclovax"),
    ("idefics2", "mistral"),
    ("idefics3", "llama"),
    ("internvl", "qwen2"),
    ("janus", "llama"),
    ("jev", "qwen3_5_text"),
    ("kimi_k25", "deepseek_v3"),
    ("lfm2_vl", "lfm2"),
    ("lighton_ocr", "qwen3"),
    ("llama4", "llama4_text"),
    ("llava", "llama"),
    ("llava_next", "llama"),
    ("llava_next_video", "llama"),
    ("llava_onevision", "qwen2"),
    ("minicpm_ocr", "qwen3_5_text"),
    ("minicpmv4_6", "qwen3_5_text"),
    ("minicpmv4_7", "qwen3_5_text"),
    ("mistral3", "mistral"),
    ("moss_transcribe_diarize", "qwen3"),
    ("muse_glimmer", "muse_glimmer_text"),
    ("musicflamingo", "qwen2"),
    ("nemo_speechlm", "nemotron_h"),
    ("nemotron_h_omni", "nemotron_h"),
    ("omniasr", "llama"),
    ("ovis2", "qwen2"),
    ("paligemma", "gemma"),
    ("perception_lm", "llama"),
    ("pp_chart2table", "qwen2"),
    ("qianfan_ocr", "qwen3"),
    ("qwen2_5_omni", "qwen2_5_omni_text"),
    ("qwen2_5_omni_thinker", "qwen2_5_omni_text"),
    ("qwen2_5_vl", "qwen2_5_vl_text"),
    ("qwen2_audio", "qwen2"),
    ("qwen2_vl", "qwen2_vl_text"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    ("qwen3_asr", "qwen3"),
    ("qwen3_omni_moe", "qwen3_omni_moe_text"),
    ("qwen3_omni_moe_thinker", "qwen3_omni_moe_text"),
    ("qwen3_vl", "qwen3_vl_text"),
    ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ("shieldgemma2", "gemma3_text"),
    ("smolvlm", "llama"),
    ("step3p7", "step3p5"),
    ("vibevoice", "qwen2"),
    ("vibevoice_asr", "qwen2"),
    ("video_llama_3", "qwen2"),
    ("video_llava", "llama"),
    ("vipllava", "llama"),
    ("voxtral", "llama"),
];

/// Wrappers whose text model has a family of its own, whatever its table names.
const OWN_TEXT: &[(&str, &str)] = &[
    ("gemma4_assistant", "gemma4_assistant_text"),
    ("gemma4_unified_assistant", "gemma4_assistant_text"),
    ("minimax_m3_vl", "minimax_m3_vl_text"),
];

/// Wrappers with other presets for the text model than that model's class, if a config has no table for it.
const TEXT_PRESETS: &[(&str, Presets)] = &[
    ("fast_vlm", QWEN2_7B),
    ("fun_asr_nano", QWEN3_0_6B),
    ("glmasr", &class(28, 2048, 16).kv(4).presets),
    ("got_ocr2", QWEN2_0_5B),
    ("lighton_ocr", QWEN3_0_6B),
    ("mistral3", &class(40, 5120, 32).kv(8).dim(128).presets),
    ("moss_transcribe_diarize", QWEN3_0_6B),
    ("nemo_speechlm", NEMOTRON_3_NANO),
    ("omniasr", &class(12, 4096, 8).presets),
    ("paligemma", &class(18, 2048, 8).kv(1).dim(256).presets),
    ("pp_chart2table", QWEN2_0_5B),
    ("qwen3_asr", QWEN3_1_7B),
    (MERGED, &class(30, 3072, 32).kv(8).dim(128).presets),
];

/// The only wrapper whose presets are merged into the table that a config has, key by key.
const MERGED: &str = "voxtral";

const QWEN2_7B: Presets = &class(28, 3584, 28).kv(4).window(4096).and("max_window_layers", 28).presets;
const QWEN2_0_5B: Presets = &class(24, 1024, 16).kv(16).window(4096).and("max_window_layers", 21).presets;
const QWEN3_0_6B: Presets = &class(28, 1024, 16).kv(8).dim(128).window(4096).and("max_window_layers", 28).presets;
const QWEN3_1_7B: Presets = &class(28, 2048, 16).kv(8).dim(128).window(4096).and("max_window_layers", 28).presets;
const NEMOTRON_3_NANO: Presets = &[
    ("hybrid_override_pattern", Text("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME")),
    ("hidden_size", Number(2688)),
    ("num_attention_heads", Number(32)),
    ("num_key_value_heads", Number(2)),
    ("head_dim", Number(128)),
    ("mamba_num_heads", Number(64)),
    ("mamba_head_dim", Number(64)),
    ("n_groups", Number(8)),
    ("ssm_state_size", Number(128)),
    ("conv_kernel", Number(4)),
    ("mamba_ssm_cache_dtype", Text("float32")),
];

pub(super) struct TextPart<'a> {
    path: String,
    table: &'a Value,
    outer: Option<&'a Value>,
    pub(super) family: &'a str,
    /// The wrapper's presets, which replace those of the family.
    presets: Option<Presets>,
    /// The `model_type` of an enclosing table that is no known wrapper.
    pub(super) stranger: Option<&'a str>,
    /// Unknown enclosing tables, with their paths and the key that leads inwards.
    pub(super) around: Vec<(String, &'a Value, &'static str)>,
}

impl<'a> TextPart<'a> {
    pub(super) fn of(config: &'a Value) -> Result<Self, ConfigError> {
        if !matches!(config, Value::Table(_)) {
            let found = config.describe();
            return Err(ConfigError::NoConfig(format!("a config is a table, not {found}")));
        }
        let mut part = Self {
            path: String::new(),
            table: config,
            outer: None,
            family: "",
            presets: None,
            stranger: None,
            around: Vec::new(),
        };
        let mut own = None;
        // A config has finitely many tables, so this ends.
        loop {
            let here = part.config(&[], None);
            let named = here.text("model_type")?;
            part.family = own.or(named).unwrap_or(part.family);
            let presets = TEXT_PRESETS.iter().find(|(family, _)| *family == part.family);
            let merged = presets.filter(|(wrapper, _)| *wrapper == MERGED);
            let text = |known: &[(&'static str, &'static str)], family: &str| {
                let mut known = known.iter();
                known.find(|(wrapper, _)| *wrapper == family).map(|(_, text)| *text)
            };
            own = own.or(text(OWN_TEXT, part.family));
            let known = own.or(text(WRAPPED, part.family));
            let wrapper = part.family;
            part.family = known.unwrap_or(part.family);
            let inner = TEXT_KEYS
                .iter()
                .map(|key| Ok::<_, ConfigError>(here.inside(key)?.map(|inner| (*key, inner))))
                .find_map(Result::transpose);
            let Some((key, inner)) = inner.transpose()? else {
                part.presets = part.presets.or(presets.map(|(_, presets)| *presets));
                break;
            };
            if known.is_none() {
                part.stranger = part.stranger.or(named.filter(|named| *named == wrapper));
                part.around.push((part.path.clone(), part.table, key));
            }
            part.presets = merged.map(|(_, presets)| *presets);
            (part.path, part.table, part.outer) = (inner.path, inner.table, inner.outer);
        }
        match part.family {
            "" => Err(ConfigError::Key {
                path: "model_type".to_owned(),
                problem: "is missing: it must name the model's family, as \"llama\"".to_owned(),
            }),
            _ => Ok(part),
        }
    }

    /// Returns its keys with the presets of its class, or the wrapper's.
    pub(super) fn config(&self, presets: Presets, cache_dtype: Option<CacheDtype>) -> Config<'a> {
        Config {
            path: self.path.clone(),
            table: self.table,
            outer: self.outer,
            presets: self.presets.unwrap_or(presets),
            cache_dtype,
            assumed: Rc::default(),
            read: Rc::default(),
            unknown_cache: Rc::default(),
        }
    }
}

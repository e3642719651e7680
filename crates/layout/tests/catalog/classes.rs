//! Compares the catalog with the config classes of `transformers`, layer by layer.
//!
//! `tests/tools/config_classes.py` writes the classes' results to `classes.json`: for published configs, for an empty
//! config of every family, and for variations of important keys. The tool describes the format of the texts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value as Json;
use transload_layout::LayerSet;
use transload_layout::catalog::{CacheDtype, Model, ModelGroup, Options};
use transload_layout::document::Value;
use transload_layout::spec::{ScaledLatent, Spec};

use crate::common::config as published;

#[derive(Deserialize)]
struct Fixture {
    #[serde(rename = "without a class")]
    without_a_class: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// The name of a published config. If there is none, `config` contains the config.
    file: Option<String>,
    #[serde(default)]
    config: Json,
    dtype: Option<String>,
    caches: BTreeMap<String, String>,
}

impl Case {
    fn config(&self) -> Json {
        match &self.file {
            Some(name) => published(name),
            None => self.config.clone(),
        }
    }
}

fn fixture() -> Fixture {
    let text = include_str!("classes.json");
    serde_json::from_str(text).unwrap()
}

/// For each layer, its caches. Layers without caches are not listed.
type ByLayer = BTreeMap<u32, Vec<String>>;

fn said_by_the_class(case: &Case) -> ByLayer {
    let mut layers = ByLayer::new();
    for (cache, listed) in &case.caches {
        for range in listed.split(',') {
            for layer in LayerSet::parse(range).unwrap().ids() {
                layers.entry(*layer).or_default().push(cache.clone());
            }
        }
    }
    layers.values_mut().for_each(|caches| caches.sort());
    layers
}

fn said_by_the_catalog(config: &Json) -> Result<ByLayer, String> {
    let value: Value = serde_json::from_value(config.clone()).unwrap();
    // Of DeepSeek V4 the class knows the rows, and not how engines pack them.
    let cache_dtype = match config["model_type"].as_str() {
        Some("deepseek_v4") => CacheDtype::from_name("bf16"),
        _ => None,
    };
    let model = Model::from_config(&value, &Options { cache_dtype });
    let model = model.map_err(|error| error.to_string())?;
    let mut layers = ByLayer::new();
    for group in &model.groups {
        let Some(cache) = in_words(group) else {
            continue;
        };
        for layer in group.layers.ids() {
            layers.entry(*layer).or_default().push(cache.clone());
        }
    }
    layers.values_mut().for_each(|caches| caches.sort());
    Ok(layers)
}

/// Describes the caches of a group's layers in the tool's format. Returns `None` for caches that only engines have.
fn in_words(group: &ModelGroup) -> Option<String> {
    if group.name.ends_with("-state") {
        return None;
    }
    Some(match &group.specs[..] {
        [Spec::Attention(spec)] => {
            let values = match spec.v_head_dim == spec.head_dim {
                true => String::new(),
                false => format!("+{}", spec.v_head_dim),
            };
            let reach = match (spec.sliding_window, spec.chunk_size) {
                (Some(window), None) => format!(" window {window}"),
                (None, Some(chunk)) => format!(" chunk {chunk}"),
                (None, None) => String::new(),
                both => panic!("{both:?}"),
            };
            format!("attention {}x{}{values}{reach}", spec.heads, spec.head_dim)
        }
        [Spec::Mla(spec)] if group.name == "indexer" => format!("index {}", spec.latent),
        [Spec::Mla(spec)] => match spec.sliding_window {
            Some(window) => format!("latent {} window {window}", spec.latent),
            None => format!("latent {}", spec.latent),
        },
        // A row of bf16.
        [Spec::Opaque(spec)] => {
            format!("latent {} of {}", spec.entry_bytes / 2, spec.tokens_per_state)
        }
        [Spec::Indexer(ScaledLatent { data_bytes, tokens_per_state, .. })] => match tokens_per_state {
            1 => format!("index {data_bytes}"),
            tokens => format!("index {data_bytes} of {tokens}"),
        },
        [Spec::Mamba2Conv(conv), Spec::Mamba2Ssm(ssm)] => {
            assert_eq!(conv.d_inner, ssm.heads * ssm.head_dim);
            assert_eq!((conv.heads, conv.state_size), (ssm.heads, ssm.state_size));
            format!(
                "mamba2 heads {} dim {} groups {} state {} conv {}",
                ssm.heads, ssm.head_dim, conv.groups, ssm.state_size, conv.conv_states
            )
        }
        [Spec::Mamba1Conv(conv), Spec::Mamba1Ssm(ssm)] => {
            assert_eq!(conv.d_inner, ssm.d_inner);
            format!("mamba1 channels {} state {} conv {}", ssm.d_inner, ssm.state_size, conv.conv_states)
        }
        [Spec::Mamba1Conv(conv)] => {
            format!("conv channels {} conv {}", conv.d_inner, conv.conv_states)
        }
        [Spec::GdnConv(conv), Spec::GdnSsm(ssm)] => {
            assert_eq!(
                (conv.value_heads, conv.value_head_dim, conv.key_head_dim),
                (ssm.value_heads, ssm.value_head_dim, ssm.key_head_dim)
            );
            format!(
                "delta keys {}x{} values {}x{} conv {}",
                conv.key_heads, conv.key_head_dim, conv.value_heads, conv.value_head_dim, conv.conv_states
            )
        }
        [Spec::Linear(spec)] => format!("linear {}x{}", spec.heads, spec.head_dim),
        other => panic!("{} is {other:?}", group.name),
    })
}

struct Exception {
    why: &'static str,
    /// Selects the configs of this exception. All of them must differ, and there must be at least one.
    applies: fn(&Case, &Json) -> bool,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        why: "vLLM's window is sliding_window_size, the class's is one token more",
        applies: |case, config| {
            let windowed = case.caches.keys().any(|cache| cache.contains("window"));
            config["model_type"] == "mimo_v2_flash" && config["sliding_window_size"].is_u64() && windowed
        },
    },
    Exception {
        why: "attention of smollm3 asks use_sliding_window before layer_types",
        applies: |case, config| {
            let windowed = case.caches.keys().any(|cache| cache.contains("window"));
            config["model_type"] == "smollm3" && config["use_sliding_window"] != true && windowed
        },
    },
    Exception {
        why: "a class says 0 for no window",
        applies: |case, _| case.caches.keys().any(|cache| cache.ends_with("window 0")),
    },
    Exception {
        why: "attention of Qwen3-Omni's text model does not look at the window of its class",
        applies: |_, config| config["model_type"] == "qwen3_omni_moe_text" && config["sliding_window"].is_u64(),
    },
    Exception {
        why: "a class rounds heads down where they do not share out the hidden state; here that is an error",
        applies: |case, _| {
            let rounded = ["attention 8x42", "attention 4x73"];
            case.caches.keys().any(|cache| rounded.contains(&cache.as_str()))
        },
    },
    Exception {
        why: "16 key heads (the class's) cannot share 8 value heads; here that is an error",
        applies: |case, config| {
            let family = config["model_type"].as_str().unwrap_or_default();
            let has_states = case.caches.keys().any(|cache| cache.starts_with("delta"));
            has_states
                && family.starts_with("qwen3_")
                && config["linear_num_value_heads"] == 8
                && config.get("linear_num_key_heads").is_none()
        },
    },
    Exception {
        why: "no more layers than there are can share a cache; here that is an error",
        applies: |_, config| {
            let layers = config["num_hidden_layers"].as_u64();
            config["model_type"] == "gemma3n_text"
                && config.get("num_kv_shared_layers").is_none()
                && layers.is_some_and(|layers| layers < 15)
        },
    },
    Exception {
        why: "attention needs the layer_types that this class leaves out; here that is an error",
        applies: |_, config| config == &serde_json::json!({"model_type": "lfm2_moe"}),
    },
];

#[test]
fn the_catalog_agrees_with_the_config_classes() {
    let mut met = vec![false; EXCEPTIONS.len()];
    let (mut agreed, mut faults) = (0, Vec::new());
    for case in fixture().cases {
        let config = case.config();
        let same = said_by_the_catalog(&config).as_ref() == Ok(&said_by_the_class(&case));
        let mut exceptions = EXCEPTIONS.iter().zip(&mut met);
        let exception = exceptions.find(|(exception, _)| (exception.applies)(&case, &config));
        match (exception, same) {
            (None, true) => agreed += 1,
            (None, false) => faults.push(difference(&case, &config)),
            (Some((_, met)), false) => *met = true,
            (Some((exception, _)), true) => faults.push(format!("{config}: agrees, and should not: {}", exception.why)),
        }
    }
    assert!(faults.is_empty(), "{} of them:\n{}", faults.len(), faults.join("\n"));
    for (exception, met) in EXCEPTIONS.iter().zip(met) {
        assert!(met, "nothing differs any more: {}", exception.why);
    }
    assert!(agreed > 1000, "only {agreed}");
}

/// The classes of these configs show which keys matter. No key about something else may be reported as not read.
#[test]
fn no_key_of_a_known_class_is_named_as_unread() {
    let (mut read, mut named) = (0, BTreeSet::new());
    for case in fixture().cases {
        let value: Value = serde_json::from_value(case.config()).unwrap();
        let Ok(model) = Model::from_config(&value, &Options::default()) else {
            continue;
        };
        // Variations have keys that the class lacks.
        let varied = case.config.as_object().is_some_and(|config| config.len() > 2);
        if varied {
            continue;
        }
        read += 1;
        let wrapper = model.wrapper.into_iter();
        let keys = wrapper.chain(model.unread);
        named.extend(keys.map(|key| format!("{}: {key}", model.family)));
    }
    assert_eq!(named, BTreeSet::new());
    assert!(read > 200, "only {read}");
}

#[test]
fn published_models_have_the_types_of_their_classes() {
    let mut compared = 0;
    for case in fixture().cases {
        let Some(dtype) = &case.dtype else {
            continue;
        };
        let value: Value = serde_json::from_value(case.config()).unwrap();
        let model = Model::from_config(&value, &Options::default()).unwrap();
        let specs = model.groups.iter().flat_map(|group| &group.specs);
        let types = specs.filter_map(|spec| match spec {
            Spec::Attention(spec) => Some(spec.dtype),
            Spec::Mamba2Conv(spec) => Some(spec.dtype),
            Spec::GdnConv(spec) => Some(spec.dtype),
            _ => None,
        });
        for found in types {
            assert_eq!(Some(CacheDtype::Plain(found)), CacheDtype::from_name(dtype), "{:?}", case.file);
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared}");
}

fn difference(case: &Case, config: &Json) -> String {
    let what = match &case.file {
        Some(name) => name.clone(),
        None => config.to_string(),
    };
    let ours = match said_by_the_catalog(config) {
        Err(error) => error,
        Ok(layers) => {
            let mut caches = BTreeMap::<&str, Vec<u32>>::new();
            for (layer, cache) in layers.iter().flat_map(|(id, all)| all.iter().map(move |c| (id, c))) {
                caches.entry(cache).or_default().push(*layer);
            }
            format!("{caches:?}")
        }
    };
    format!("{what}\n   the class: {:?}\n   the catalog: {ours}", case.caches)
}

#[test]
fn every_family_and_every_published_config_is_compared() {
    let fixture = fixture();
    let asked = |case: &Case| case.config["model_type"].as_str().map(str::to_owned);
    let asked: BTreeSet<String> = fixture.cases.iter().filter_map(asked).collect();
    // Their classes come with the checkpoints.
    let without = ["gemma4_assistant_text", "kimi_k2", "mimo_v2", "minimax_m1", "minimax_m3_text", "minimax_text_01"];
    let missing = Model::families().filter(|family| !asked.contains(*family) && !without.contains(family));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalog/configs");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let compared = fixture.cases.iter().filter_map(|case| case.file.clone());
    let known: BTreeSet<String> = compared.chain(fixture.without_a_class).collect();
    assert_eq!(files, known);
}

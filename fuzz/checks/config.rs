//! The fuzz check of a model's config.

use transload_layout::catalog::{CacheDtype, Model, Options, Serving};
use transload_layout::document::Value;
use transload_layout::spec::ConvLayout;
use transload_layout::{Deployment, Footprint};

/// Reads the bytes as JSON text. The bytes after a zero byte choose how the model is served.
pub(crate) fn check(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0);
    let (text, choices) = data.split_at(end.unwrap_or(data.len()));
    let Ok(config) = serde_json::from_slice::<Value>(text) else {
        return;
    };
    let choices = Choices::read(choices);
    for cache_dtype in [None, choices.cache_dtype] {
        match Model::from_config(&config, &Options { cache_dtype }) {
            Ok(model) => serve(&model, &choices),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            }
        }
    }
}

struct Choices {
    cache_dtype: Option<CacheDtype>,
    tp: u64,
    pp: u64,
    block_size: Option<u64>,
    tokens: u64,
    order: Option<String>,
}

impl Choices {
    fn read(bytes: &[u8]) -> Self {
        let mut bytes = bytes.iter().skip(1).copied();
        let mut next = move || bytes.next().unwrap_or(0);
        /// Returns small numbers, and a few large ones.
        fn number(byte: u8) -> u64 {
            match byte {
                0..=199 => u64::from(byte),
                200..=254 => 1 << (byte - 195),
                255 => u64::MAX,
            }
        }
        Self {
            cache_dtype: CacheDtype::names().nth(usize::from(next())).and_then(CacheDtype::from_name),
            tp: number(next()).wrapping_add(1),
            pp: number(next()).wrapping_add(1),
            block_size: Some(number(next())).filter(|size| *size > 0),
            tokens: number(next()),
            order: [None, Some("LBHSC"), Some("BLSHC"), Some("?")][usize::from(next() % 4)].map(str::to_owned),
        }
    }
}

fn serve(model: &Model, choices: &Choices) {
    for group in &model.groups {
        assert!(!group.specs.is_empty() && !group.layers.ids().is_empty(), "{model:?}");
        assert!(group.layers.ids().last() < Some(&model.num_layers), "{model:?}");
    }
    let serving = Serving {
        tp: choices.tp,
        pp: choices.pp,
        block_size: choices.block_size,
        order: choices.order.clone(),
        conv_layout: match choices.tp % 3 {
            0 => ConvLayout::Ds,
            _ => ConvLayout::Sd,
        },
        ..Serving::default()
    };
    let plain = Serving::default();
    for (serving, tokens) in [(&plain, 1000), (&serving, choices.tokens)] {
        let document = model.serve(serving, tokens);
        let side = match Deployment::from_document(document) {
            Ok(side) => side,
            Err(faults) => {
                assert!(!faults.0.is_empty(), "an error says why");
                continue;
            }
        };
        same_again(&side);
        assert_eq!(Model::of_deployment(&side).num_layers, model.num_layers);
        for group in side.groups() {
            measure(group.specs(), side.tp(), group.block_size(), tokens);
        }
    }
}

/// Checks that a deployment survives being written and read.
fn same_again(side: &Deployment) {
    let written = side.document().to_value();
    let text = serde_json::to_string(&written).expect("a document is JSON");
    let read: Value = serde_json::from_str(&text).expect("and is read as JSON");
    assert_eq!(Deployment::from_value(&read).as_ref(), Ok(side), "{text}");
}

fn measure(specs: &[transload_layout::spec::Spec], tp: u32, block_size: u64, tokens: u64) {
    let layer = Footprint::of(specs, tp).expect("a deployment's states have sizes");
    assert!(layer.bytes_per_token().is_finite());
    let _ = std::hint::black_box(layer.fixed_bytes());
    for tokens in [0, 1, tokens, tokens.saturating_mul(3), u64::MAX] {
        let (kept, held) = (layer.sequence_bytes(tokens), layer.allocated_bytes(tokens, block_size));
        assert!(kept <= held, "{specs:?}: {kept} of {tokens} tokens in {held}");
    }
}

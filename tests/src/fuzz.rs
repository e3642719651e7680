//! The checks that the fuzz targets run on every input, so that ordinary tests can replay the corpora.
//!
//! Each function returns normally on any bytes whatever; a panic, an overflow or an endless loop is
//! what fuzzing looks for.

use serde_json::Value as Json;
use transload::document::Syntax;
use transload_layout::document::{Document, Value};
use transload_layout::{Deployment, LayerSet, Order, Rank, make_meta_kv_cache};
use transload_transfer::plan::codec::Codec;
use transload_transfer::{Plan, Request, Tables};

/// Reads two deployment documents, as a JSON list of two or as one for both sides. TOML is tried as well. A document that
/// can be read is placed, and a small one is planned and bound.
pub fn document(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let documents = match serde_json::from_str::<Json>(text) {
        Ok(Json::Array(two)) if two.len() == 2 => two,
        Ok(one) => vec![one],
        Err(_) => Vec::new(),
    };
    let mut values: Vec<Value> = documents.into_iter().flat_map(serde_json::from_value).collect();
    values.extend(serde_json::from_str::<Value>(text));
    let toml = transload::document::parse("fuzz.toml", text, Syntax::Toml);
    let sides: Vec<Deployment> = values.iter().flat_map(Deployment::from_value).chain(toml).collect();
    for src in &sides {
        for rank in src.ranks().take(4) {
            let views = make_meta_kv_cache(src, rank);
            for component in views.iter().flatten() {
                std::hint::black_box(component.view.shape());
            }
        }
        let again = Deployment::from_document(src.document().clone());
        assert_eq!(again.as_ref(), Ok(src), "a document is checked alike twice");
        for dst in &sides {
            plan(src, dst);
        }
    }
}

/// Reads a deployment document in the typed form of peers, which has not been checked. Whatever its fields hold, it is a
/// deployment or has faults; and its specs can be asked before that is known.
pub fn typed_document(data: &[u8]) {
    let Ok(document) = postcard::from_bytes::<Document>(data) else {
        return;
    };
    for spec in document.groups.iter().flat_map(|group| &group.specs) {
        let _ = std::hint::black_box((
            spec.tokens_per_state(),
            spec.num_heads(3),
            spec.state_content_size(2),
            spec.first_token_needed(7, 40),
        ));
    }
    match Deployment::from_document(document) {
        Ok(side) => {
            for component in make_meta_kv_cache(&side, Rank(0)).iter().flatten() {
                std::hint::black_box(component.view.shape());
            }
            plan(&side, &side);
        }
        Err(faults) => assert!(!faults.0.is_empty(), "an error says why"),
    }
}

fn plan(src: &Deployment, dst: &Deployment) {
    let ranks = u64::from(src.tp() * src.pp()) * u64::from(dst.tp() * dst.pp());
    if ranks > 256 {
        return;
    }
    for (start, tokens) in [(0, 33), (7, 20)] {
        let request = Request { start, tokens, by_layer: false, codec: Codec::Exact };
        let Ok(plan) = Plan::compile(src, dst, &request) else {
            return;
        };
        std::hint::black_box(plan.digest());
        let Ok(bound) = plan.bind(&Tables::identity(&plan), &Tables::identity(&plan)) else {
            return;
        };
        let moved: u64 = plan.routes().iter().map(|route| plan.route_bytes(route)).sum();
        assert_eq!(bound.bytes(), moved, "binding keeps every byte");
    }
}

/// An order, and the layers of a group.
pub fn order(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(order) = Order::parse(text) {
        let shown = order.to_string();
        assert_eq!(Order::parse(&shown), Ok(order), "{shown} reads as it was shown");
    }
    if let Ok(layers) = LayerSet::parse(text) {
        let shown = layers.to_string();
        assert_eq!(LayerSet::parse(&shown), Ok(layers), "{shown} reads as it was shown");
    }
}

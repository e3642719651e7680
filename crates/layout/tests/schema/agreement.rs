//! Valid documents, damaged at random: the reader and the schema must agree on each.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value as Json, json};
use transload_layout::document::Fault;

use crate::documents::{all_fields, committed};
use crate::{Validator, read};

/// Faults that only the reader finds because a schema cannot express them, by a part of the message.
const BEYOND_THE_SCHEMA: &[&str] = &[
    // What a name, a list of layers or an order is made of.
    "must be 1 to 64 letters, digits",
    "is neither a layer nor a range of layers",
    "ends before it starts",
    "is given twice",
    "is beyond the last, 65535",
    "more than 65536 layers are listed",
    "is not an axis",
    "is missing: every order has",
    "C cannot be combined with K or D",
    "no place beside brackets",
    "inside of the brackets",
    "an order in the brackets is empty",
    "a bracket must be closed",
    // How fields fit each other.
    "is the name of an earlier group",
    "is missing: give it here or for the whole deployment",
    "tp * pp is",
    "entries, but pp is",
    "sums to",
    "(the groups' layers)",
    "is not a multiple of",
    "cannot be shared out over tp",
    "must divide",
    "a multiple of the tokens_per_state",
    "cannot each be on a multiple of dcp",
    "so its tokens cannot be dealt out",
    "recurrent state and per-token caches",
    "is ordered by pages",
    "components",
    "K outside D",
    "no meaning where each layer is an allocation",
    "given both or not at all",
    "is too small: what is inside of it takes",
    "exceeds 8796093022208 bytes",
];

/// Tells whether a document contains a number such as 2.0, which is an integer for JSON Schema but not for the reader.
fn has_whole_float(document: &Json) -> bool {
    let whole = |value: &Json| value.is_f64() && value.as_f64().is_some_and(|n| n.fract() == 0.0);
    !places(document, whole).is_empty()
}

fn beyond_the_schema(fault: &Fault) -> bool {
    let mut parts = BEYOND_THE_SCHEMA.iter();
    parts.any(|part| fault.problem.contains(part))
}

/// Returns replacement values: at, below and above bounds, of all types, and known and unknown names.
fn values() -> Vec<Json> {
    let mut values = vec![
        json!(null),
        json!(true),
        json!(2.0),
        json!(1.5),
        json!(1e300),
        json!([]),
        json!({}),
        json!([{}]),
        json!([1, 2]),
        json!([0, 1, 2, 3, 4]),
        json!([0, 1, 2, 3, 3]),
        json!([1, 2, 3, 4, 5]),
        json!(["L", "B"]),
    ];
    let powers = [2, 12, 16, 32, 40, 43, 63];
    let powers = powers.map(|bits| 1i128 << bits);
    let numbers = powers.into_iter().flat_map(|power| [power - 1, power, power + 1]);
    let numbers = numbers.chain([-1, 0, 1, 2, (1 << 64) - 1, -(1 << 63)]);
    values.extend(numbers.map(|number| match u64::try_from(number) {
        Ok(number) => json!(number),
        Err(_) => json!(number as i64),
    }));
    let texts = [
        "",
        "x",
        "0-3",
        "9",
        "3-0",
        "LBSHC",
        "NHD",
        "LB",
        "one",
        "per_layer",
        "bf16",
        "DS",
        "attention",
        "mla",
        "opaque",
        "transload.deployment/2",
    ];
    values.extend(texts.map(|text| json!(text)));
    values
}

/// A way to damage a document: which of all suitable places to change, and to what.
#[derive(Clone, Debug)]
enum Damage {
    Replace(Index, Json),
    Remove(Index),
    Add(Index, &'static str, Json),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let names = ["colour", "$schema", "sliding_window", "tp", "kind", "order", "conv_states"];
    prop_oneof![
        4 => (any::<Index>(), select(values())).prop_map(|(at, value)| Damage::Replace(at, value)),
        2 => any::<Index>().prop_map(Damage::Remove),
        1 => (any::<Index>(), select(names.to_vec()), select(values()))
            .prop_map(|(at, name, value)| Damage::Add(at, name, value)),
        1 => (any::<Index>(), select(vec![1, 16, 64])).prop_map(|(at, times)| Damage::Repeat(at, times)),
    ]
}

fn places(value: &Json, suits: fn(&Json) -> bool) -> Vec<String> {
    fn walk(value: &Json, path: &str, suits: fn(&Json) -> bool, found: &mut Vec<String>) {
        if suits(value) {
            found.push(path.to_owned());
        }
        match value {
            Json::Object(fields) => {
                for (key, value) in fields {
                    walk(value, &format!("{path}/{key}"), suits, found);
                }
            }
            Json::Array(items) => {
                for (i, value) in items.iter().enumerate() {
                    walk(value, &format!("{path}/{i}"), suits, found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(value, "", suits, &mut found);
    found
}

fn apply(document: &mut Json, damage: Damage) {
    let pick = |document: &Json, at: Index, suits: fn(&Json) -> bool| {
        let places = places(document, suits);
        (!places.is_empty()).then(|| at.get(&places).clone())
    };
    match damage {
        Damage::Replace(at, new) => {
            let place = pick(document, at, |_| true).unwrap_or_default();
            *document.pointer_mut(&place).unwrap() = new;
        }
        Damage::Remove(at) => {
            let place = pick(document, at, |_| true).unwrap_or_default();
            let Some((table, key)) = place.rsplit_once('/') else {
                return;
            };
            match document.pointer_mut(table).unwrap() {
                Json::Object(fields) => drop(fields.shift_remove(key)),
                Json::Array(items) => drop(items.remove(key.parse().unwrap())),
                _ => unreachable!("what has a value inside is a table or a list"),
            }
        }
        Damage::Add(at, name, new) => {
            if let Some(place) = pick(document, at, Json::is_object) {
                document.pointer_mut(&place).unwrap()[name] = new;
            }
        }
        Damage::Repeat(at, times) => {
            let full = |value: &Json| value.as_array().is_some_and(|items| !items.is_empty());
            if let Some(place) = pick(document, at, full) {
                let items = document.pointer_mut(&place).unwrap().as_array_mut().unwrap();
                let last = items[items.len() - 1].clone();
                items.extend(vec![last; times]);
            }
        }
    }
}

fn good_documents() -> Vec<Json> {
    let committed = committed().into_iter().map(|(_, document)| document);
    let documents = all_fields().into_iter().chain(committed);
    documents.filter(|document| read(document).is_ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn reader_and_schema_agree(
        mut document in select(good_documents()),
        damages in proptest::collection::vec(damage(), 1..=2),
    ) {
        thread_local! {
            static VALIDATOR: Validator = Validator::new();
        }
        for damage in damages {
            apply(&mut document, damage);
        }
        let checked = VALIDATOR.with(|validator| validator.check(&document));
        match (read(&document), checked) {
            (Ok(_), Err(problem)) => panic!("read, and does not suit: {problem}\n{document:#}"),
            (Err(faults), Ok(())) if !has_whole_float(&document) => {
                let said = |fault: &&Fault| !beyond_the_schema(fault);
                let missed: Vec<_> = faults.0.iter().filter(said).collect();
                prop_assert!(missed.is_empty(), "suits, in spite of {missed:#?}\n{document:#}");
            }
            (Ok(_), Ok(())) | (Err(_), _) => {}
        }
    }
}

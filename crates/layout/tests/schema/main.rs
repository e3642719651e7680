//! Tests of the JSON Schema of deployment documents with an independent validator. It must accept what the reader
//! accepts, and refuse what the reader refuses, except for faults that no schema can express.
//!
//! `TRANSLOAD_BLESS=1` writes the committed schema anew after a field has changed.

mod agreement;
mod documents;

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value as Json, json};
use transload_layout::Deployment;
use transload_layout::document::{Faults, Value, json_schema};

use documents::{all_fields, committed, root};

struct Validator {
    schemas: boon::Schemas,
    deployment: boon::SchemaIndex,
}

impl Validator {
    /// Compiles the schema, which checks it against the metaschema.
    fn new() -> Self {
        let schema = serde_json::to_value(json_schema()).unwrap();
        let id = schema["$id"].as_str().unwrap().to_owned();
        let mut schemas = boon::Schemas::new();
        let mut compiler = boon::Compiler::new();
        compiler.add_resource(&id, schema).unwrap();
        let deployment = compiler.compile(&id, &mut schemas);
        let deployment = deployment.unwrap_or_else(|error| panic!("{error:#}"));
        Self { schemas, deployment }
    }

    fn check(&self, document: &Json) -> Result<(), String> {
        let checked = self.schemas.validate(document, self.deployment);
        checked.map_err(|error| format!("{error:#}"))
    }
}

fn read(document: &Json) -> Result<Deployment, Faults> {
    let value: Value = serde_json::from_value(document.clone()).unwrap();
    Deployment::from_value(&value)
}

#[test]
fn the_committed_schema_is_current() {
    let path = root().join("docs/src/reference/deployment.schema.json");
    let made = serde_json::to_string_pretty(&json_schema()).unwrap() + "\n";
    if std::env::var_os("TRANSLOAD_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{} is not current: TRANSLOAD_BLESS=1 writes it", path.display());
}

#[test]
fn every_document_of_ours_suits_the_schema() {
    let validator = Validator::new();
    let (mut good, mut bad) = (0, 0);
    for (from, document) in committed() {
        match (read(&document), validator.check(&document)) {
            (Ok(_), Ok(())) => good += 1,
            (Err(_), _) if from.contains("fuzz/corpus") => bad += 1,
            (read, checked) => panic!("{from}: {:?}\n{checked:?}", read.map(drop)),
        }
    }
    assert!(good >= 25 && bad >= 2, "{good} good, {bad} bad");
}

#[test]
fn what_is_written_suits_the_schema() {
    let validator = Validator::new();
    for document in all_fields() {
        let written = read(&document).unwrap().document().to_value();
        let written = serde_json::to_value(written).unwrap();
        validator.check(&written).unwrap();
    }
}

/// This ensures that the documents for the tests of agreement cover every field.
#[test]
fn each_field_of_the_schema_is_in_a_document_that_is_read() {
    let schema = serde_json::to_value(json_schema()).unwrap();
    let mut known = BTreeSet::new();
    let tables = [("", &schema)].into_iter();
    let defs = schema["$defs"].as_object().unwrap().iter();
    for (name, table) in tables.chain(defs.map(|(name, table)| (name.as_str(), table))) {
        let Some(properties) = table["properties"].as_object() else {
            continue;
        };
        known.extend(properties.keys().map(|key| (name.to_owned(), key.clone())));
    }
    let mut used = BTreeSet::new();
    let mut note = |name: &str, table: &Json| {
        let keys = table.as_object().unwrap().keys();
        used.extend(keys.map(|key| (name.to_owned(), key.clone())));
    };
    for document in all_fields() {
        read(&document).unwrap_or_else(|faults| panic!("{faults}\n{document:#}"));
        note("", &document);
        for group in document["group"].as_array().unwrap() {
            note("group", group);
            group["stage"].as_array().into_iter().flatten().for_each(|stage| note("stage", stage));
            for spec in group["spec"].as_array().unwrap() {
                note("spec", &json!({"kind": spec["kind"]}));
                note(spec["kind"].as_str().unwrap(), spec);
            }
        }
    }
    assert_eq!(known, used);
}

/// The reference page names every field.
#[test]
fn the_reference_has_each_field() {
    let reference = root().join("docs/src/reference/deployment.md");
    let reference = fs::read_to_string(reference).unwrap();
    let schema = serde_json::to_value(json_schema()).unwrap();
    let defs = schema["$defs"].as_object().unwrap();
    let tables = defs.values().chain([&schema]);
    for properties in tables.filter_map(|table| table["properties"].as_object()) {
        for key in properties.keys() {
            assert!(reference.contains(&format!("`{key}`")), "{key} is missing");
        }
    }
}

#[test]
fn a_document_may_name_its_schema_for_editors() {
    let mut document = all_fields().swap_remove(0);
    document.as_object_mut().unwrap().remove("$schema");
    let plain = read(&document).unwrap();
    document["$schema"] = json!("https://example.org/deployment.schema.json");
    assert_eq!(read(&document), Ok(plain));
    document["$schema"] = json!(1);
    let faults = read(&document).unwrap_err();
    assert_eq!(faults.to_string(), "$schema: must be text, not 1");
    // Nowhere else.
    document["$schema"] = json!("");
    document["group"][0]["$schema"] = json!("");
    let faults = read(&document).unwrap_err();
    assert_eq!(faults.0[0].path, "group[0].$schema");
}

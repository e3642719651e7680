//! Bad documents: each fault has a key path and says what would be right, and all come in one report.

use serde_json::{Value as Json, json};
use transload_layout::Deployment;
use transload_layout::document::{Faults, Value};

fn good() -> Json {
    json!({
        "schema": "transload.deployment/1", "tp": 2, "block_size": 16, "num_blocks": 64,
        "group": [{"name": "attn", "layers": "0-3", "spec": [
            {"kind": "attention", "heads": 8, "head_dim": 128, "dtype": "bf16"}]}]
    })
}

fn check(document: &Json) -> Result<Deployment, Faults> {
    let value: Value = serde_json::from_value(document.clone()).unwrap();
    Deployment::from_value(&value)
}

/// Sets one field (a JSON pointer) of the good document.
fn with(pointer: &str, value: Json) -> Json {
    let mut document = good();
    let (table, field) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(table).unwrap()[field] = value;
    document
}

fn assert_fault(document: &Json, path: &str, part: &str) {
    let faults = check(document).unwrap_err();
    let found = faults
        .0
        .iter()
        .any(|f| f.path == path && f.problem.contains(part));
    assert!(found, "no fault at {path} with {part:?}:\n{faults}");
}

#[test]
fn the_good_document_is_good() {
    check(&good()).unwrap();
}

#[test]
fn numbers_are_whole_positive_and_not_absurd() {
    for (pointer, path) in [
        ("/tp", "tp"),
        ("/pp", "pp"),
        ("/group/0/block_size", "group[0].block_size"),
        ("/group/0/num_blocks", "group[0].num_blocks"),
        ("/group/0/spec/0/heads", "group[0].spec[0].heads"),
        ("/group/0/spec/0/head_dim", "group[0].spec[0].head_dim"),
        (
            "/group/0/spec/0/sliding_window",
            "group[0].spec[0].sliding_window",
        ),
    ] {
        assert_fault(&with(pointer, json!(0)), path, "has to be from 1 to");
        assert_fault(&with(pointer, json!(-3)), path, "cannot be negative (-3)");
        assert_fault(&with(pointer, json!(1.5)), path, "whole number, not 1.5");
        assert_fault(&with(pointer, json!("8")), path, "whole number, not \"8\"");
        assert_fault(&with(pointer, json!(u64::MAX)), path, "has to be from 1 to");
    }
}

#[test]
fn products_that_overflow_name_what_is_too_large() {
    let mut document = with("/group/0/num_blocks", json!(4_000_000_000u64));
    document["group"][0]["spec"][0]["head_dim"] = json!(1u64 << 40);
    assert_fault(&document, "group[0]", "exceeds");
    let document = with("/group/0/offset", json!(u64::MAX));
    assert_fault(&document, "group[0]", "offset exceeds");
}

#[test]
fn unknown_fields_are_named_with_the_closest_known() {
    assert_fault(
        &with("/blocksize", json!(1)),
        "blocksize",
        "did you mean block_size?",
    );
    let document = with("/group/0/spec/0/headdim", json!(1));
    assert_fault(
        &document,
        "group[0].spec[0].headdim",
        "did you mean head_dim?",
    );
    assert_fault(&with("/zzz", json!(1)), "zzz", "the fields are schema");
    let document = with("/group/0/spec/0/kind", json!("atention"));
    assert_fault(
        &document,
        "group[0].spec[0].kind",
        "did you mean \"attention\"?",
    );
}

#[test]
fn missing_fields_are_named() {
    for (pointer, field, path) in [
        ("", "schema", "schema"),
        ("", "block_size", "group[0].block_size"),
        ("/group/0", "name", "group[0].name"),
        ("/group/0", "layers", "group[0].layers"),
        ("/group/0", "spec", "group[0].spec"),
        ("/group/0/spec/0", "heads", "group[0].spec[0].heads"),
        ("/group/0/spec/0", "dtype", "group[0].spec[0].dtype"),
    ] {
        let mut document = good();
        document
            .pointer_mut(pointer)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove(field);
        assert_fault(&document, path, "missing");
    }
}

#[test]
fn layers_are_checked() {
    for (layers, part) in [
        ("0-3,2", "layer 2 is given twice"),
        ("3-0", "ends before"),
        ("0-999999999999", "beyond the last"),
        ("first", "no layer"),
    ] {
        assert_fault(
            &with("/group/0/layers", json!(layers)),
            "group[0].layers",
            part,
        );
    }
    let mut document = good();
    let twin = document["group"][0].clone();
    document["group"].as_array_mut().unwrap().push(twin);
    assert_fault(&document, "group[1].name", "earlier group");
}

#[test]
fn orders_are_checked() {
    for (order, part) in [
        (json!("LBSHH"), "axis H is given twice"),
        (json!("LBSC"), "axis H is missing"),
        (json!("LBSHX"), "'X' is no axis"),
        (json!("LBH[DS]"), "the bracket gives 1 orders"),
        (json!("LBH[DS,SD"), "closed"),
        (json!([0, 1, 2, 2, 4]), "permutation"),
        (json!(3), "order such as"),
    ] {
        assert_fault(&with("/group/0/order", order), "group[0].order", part);
    }
    let mut document = with("/group/0/order", json!("KLBSHD"));
    document["group"][0]["spec"][0]["v_head_dim"] = json!(64);
    assert_fault(&document, "group[0].order", "one width");
}

#[test]
fn strides_never_overlap() {
    let document = with("/group/0/block_stride", json!(100));
    assert_fault(&document, "group[0].block_stride", "too small");
    let document = with("/group/0/layer_stride", json!(100));
    assert_fault(&document, "group[0].layer_stride", "too small");
    let mut document = with("/group/0/order", json!("BLSHC"));
    document["group"][0]["block_stride"] = json!(1 << 20);
    assert_fault(&document, "group[0].block_stride", "both or not at all");
    let mut document = with("/group/0/allocation", json!("per_layer"));
    document["group"][0]["layer_stride"] = json!(1 << 20);
    assert_fault(&document, "group[0].layer_stride", "no meaning");
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    assert_fault(&with("/tp", json!(3)), "group[0].spec[0].heads", "tp = 3");
}

#[test]
fn pipeline_stages_have_to_add_up() {
    let mut document = with("/pp", json!(2));
    document["pp_layers"] = json!([1, 2]);
    assert_fault(&document, "pp_layers", "sums to 3");
    document["pp_layers"] = json!([4]);
    assert_fault(&document, "pp_layers", "1 entries");
    document["pp_layers"] = json!([u64::MAX, 5]);
    assert_fault(&document, "pp_layers", "too much");
    assert_fault(&with("/num_layers", json!(2)), "num_layers", "from 4");
}

#[test]
fn left_over_layers_go_to_the_stages_before_the_last() {
    let mut document = with("/pp", json!(4));
    document["num_layers"] = json!(61);
    let deployment = check(&document).unwrap();
    let counts: Vec<_> = (0..4)
        .map(|stage| deployment.stage_layers(stage).len())
        .collect();
    assert_eq!(counts, [15, 15, 16, 15]);
}

#[test]
fn all_faults_come_in_one_report() {
    let mut document = with("/tp", json!(0));
    document["model"] = json!(7);
    let mut second = document["group"][0].clone();
    second["name"] = json!("other");
    second["spec"][0]["head_dim"] = json!(0);
    document["group"].as_array_mut().unwrap().push(second);
    document["group"][0]["layers"] = json!("x");
    document["group"][0]["spec"][0]["heads"] = json!(-1);
    document["colour"] = json!("red");
    let report = check(&document).unwrap_err().to_string();
    for path in [
        "tp:",
        "model:",
        "group[0].layers:",
        "group[0].spec[0].heads:",
        "group[1].spec[0].head_dim:",
        "colour:",
    ] {
        assert!(report.contains(path), "{path} is not in\n{report}");
    }
}

#[test]
fn documents_that_are_no_tables_are_refused() {
    for document in [json!(null), json!([]), json!("x"), json!(1)] {
        assert_fault(&document, "", "has to be a table");
    }
    assert_fault(&with("/group", json!({})), "group", "list of tables");
    assert_fault(&with("/group", json!([])), "group", "at least one");
}

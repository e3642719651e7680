//! Invalid documents: every fault has a key path and a correct alternative, and one report contains all of them.

use serde_json::{Value as Json, json};
use transload_layout::catalog::CacheDtype;
use transload_layout::document::{Faults, Value};
use transload_layout::{Axis, Deployment, Dtype};

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

fn with(pointer: &str, value: Json) -> Json {
    let mut document = good();
    let (table, field) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(table).unwrap()[field] = value;
    document
}

fn assert_fault(document: &Json, path: &str, part: &str) {
    let faults = check(document).unwrap_err();
    let found = faults.0.iter().any(|f| f.path == path && f.problem.contains(part));
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
        ("/dcp", "dcp"),
        ("/interleave", "interleave"),
        ("/block_size", "block_size"),
        ("/num_blocks", "num_blocks"),
        ("/group/0/block_size", "group[0].block_size"),
        ("/group/0/num_blocks", "group[0].num_blocks"),
        ("/group/0/spec/0/heads", "group[0].spec[0].heads"),
        ("/group/0/spec/0/head_dim", "group[0].spec[0].head_dim"),
        ("/group/0/spec/0/sliding_window", "group[0].spec[0].sliding_window"),
    ] {
        assert_fault(&with(pointer, json!(0)), path, "must be from 1 to");
        assert_fault(&with(pointer, json!(-3)), path, "cannot be negative (-3)");
        assert_fault(&with(pointer, json!(1.5)), path, "whole number, not 1.5");
        assert_fault(&with(pointer, json!("8")), path, "whole number, not \"8\"");
        assert_fault(&with(pointer, json!(u64::MAX)), path, "must be from 1 to");
    }
}

#[test]
fn tokens_are_dealt_out_to_ranks_that_hold_the_same_units() {
    let side = |fields: Json, group: Json, spec: Json| {
        let mut document = json!({"tp": 8, "dcp": 4, "interleave": 16, "block_size": 32, "num_blocks": 4});
        let (mut one, mut what) = (
            json!({"name": "attn", "layers": "0-3"}),
            json!({"kind": "attention", "heads": 2, "head_dim": 8, "dtype": "u8"}),
        );
        for (table, more) in [(&mut what, spec), (&mut one, group), (&mut document, fields)] {
            table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        one["spec"] = json!([what]);
        document["schema"] = json!("transload.deployment/1");
        document["group"] = json!([one]);
        document
    };
    let none = || json!({});
    let dealt = |document: &Json| {
        let side = check(document).unwrap();
        let group = &side.groups()[0];
        (group.dcp(), group.interleave(), group.entry_tokens(), group.block_size())
    };
    assert_eq!(dealt(&side(none(), none(), none())), (4, 16, 128, 32));
    assert_eq!(dealt(&side(json!({"dcp": 1, "interleave": 7}), none(), none())), (1, 32, 32, 32));
    for whole in [
        side(none(), json!({"tokens": "whole"}), json!({"heads": 8})),
        side(none(), json!({"tokens": "whole"}), json!({"sliding_window": 8})),
    ] {
        assert_eq!(dealt(&whole), (1, 32, 32, 32));
    }
    let state = json!({"kind": "gdn_ssm", "value_heads": 8, "value_head_dim": 1, "key_head_dim": 1, "dtype": "u8"});
    let mut recurrent = side(none(), none(), none());
    recurrent["group"][0]["spec"][0] = state;
    assert_eq!(dealt(&recurrent).0, 1);

    let spec = "group[0].spec[0]";
    let heads = format!("{spec}.heads");
    let opaque = json!({"kind": "opaque", "heads": 1, "entry_bytes": 1, "tokens_per_state": 32});
    let mut compressed = side(none(), none(), none());
    compressed["group"][0]["spec"][0] = opaque;
    for (document, path, part) in [
        (side(json!({"dcp": 3}), none(), none()), "dcp", "must divide tp, which is 8, and not be 3"),
        (side(json!({"dcp": 65}), none(), none()), "dcp", "must be from 1 to 64"),
        (
            side(none(), none(), json!({"heads": 4})),
            &heads,
            "4 cannot each be on a multiple of dcp = 4 ranks, since tp is 8",
        ),
        (side(none(), none(), json!({"heads": 8})), &heads, "8 cannot each be"),
        (side(none(), none(), json!({"sliding_window": 8})), spec, "tokens = \"whole\""),
        (side(none(), none(), json!({"chunk_size": 8})), spec, "tokens = \"whole\""),
        (side(json!({"interleave": 24}), none(), none()), "interleave", "must divide the block_size of group[0]"),
        (side(none(), json!({"tokens": "some"}), none()), "group[0].tokens", "one of \"dealt\", \"whole\""),
        (compressed, "interleave", "a multiple of the tokens_per_state of group[0].spec[0]"),
    ] {
        assert_fault(&document, path, part);
    }
}

#[test]
fn types_have_the_names_of_torch_and_vllm_too() {
    let typed = |name: &str| check(&with("/group/0/spec/0/dtype", json!(name)));
    for (dtype, alias) in Dtype::ALIASES {
        let deployment = typed(alias).unwrap();
        assert_eq!(deployment, typed(dtype.name()).unwrap(), "{alias}");
        let cache = CacheDtype::from_name(alias);
        assert_eq!(cache, Some(CacheDtype::Plain(dtype)), "{alias}");
    }
    assert_eq!(typed("fp8"), typed("f8e4m3"));
    let path = "group[0].spec[0].dtype";
    assert_fault(&with("/group/0/spec/0/dtype", json!("nvfp4")), path, "\"fp8\"");
}

#[test]
fn latents_may_have_windows_and_indexers_have_none() {
    let document = |kind: &str, window: u64| {
        let spec = match kind {
            "mla" => json!({"kind": kind, "latent": 2048, "dtype": "f32"}),
            _ => json!({"kind": kind, "data_bytes": 576, "scale_bytes": 8, "tokens_per_state": 4}),
        };
        let mut document = with("/group/0/spec", json!([spec]));
        document["group"][0]["spec"][0]["sliding_window"] = json!(window);
        document
    };
    for kind in ["mla", "compressed"] {
        let deployment = check(&document(kind, 128)).unwrap();
        let spec = &deployment.document().groups[0].specs[0];
        assert_eq!(spec.first_token_needed(0, 1000), 873);
        let path = "group[0].spec[0].sliding_window";
        assert_fault(&document(kind, 0), path, "must be from 1 to");
    }
    let path = "group[0].spec[0].sliding_window";
    assert_fault(&document("indexer", 128), path, "is not a field here");
}

#[test]
fn floats_are_told_from_whole_numbers_and_huge_ones_are_too_large() {
    assert_fault(&with("/tp", json!(2.0)), "tp", "whole number, not 2.0");
    assert_fault(&with("/tp", json!(1e44)), "tp", "is too large (1e44)");
    for (number, part) in [
        ("18446744073709551616", "is too large (1.8446744073709552e19)"),
        (&"9".repeat(60), "is too large (1e60)"),
        ("-9223372036854775809", "cannot be negative"),
    ] {
        let text = good().to_string().replace("\"tp\":2", &format!("\"tp\":{number}"));
        assert_fault(&serde_json::from_str(&text).unwrap(), "tp", part);
    }
}

#[test]
fn products_that_overflow_name_the_field_that_is_too_large() {
    let document = with("/group/0/num_blocks", json!(4_000_000_000u64));
    assert_fault(&document, "group[0].num_blocks", "268435456 at most");
    let mut document = with("/num_blocks", json!(4_000_000_000u64));
    assert_fault(&document, "num_blocks", "exceeds 8796093022208 bytes (8 TiB)");
    document["group"][0]["num_blocks"] = json!(1);
    document["group"][0]["block_size"] = json!(1u64 << 36);
    assert_fault(&document, "group[0].block_size", "exceeds");
    let document = with("/group/0/spec/0/head_dim", json!(1u64 << 40));
    assert_fault(&document, "group[0].spec[0].heads", "exceeds");
    let document = with("/group/0/block_stride", json!(1u64 << 40));
    assert_fault(&document, "group[0].block_stride", "exceeds");
    let document = with("/group/0/offset", json!(1u64 << 43));
    assert_fault(&document, "group[0].offset", "offset plus");
}

/// A run must never continue from one allocation into the next.
#[test]
fn an_allocation_has_at_most_8_tib() {
    let layers = |num_blocks: u64| {
        let mut document = with("/num_blocks", json!(num_blocks));
        document["tp"] = json!(1);
        document["block_size"] = json!(1u64 << 24);
        document["group"][0]["allocation"] = json!("per_layer");
        document["group"][0]["spec"][0] = json!({"kind": "attention", "heads": 1, "head_dim": 512, "dtype": "u8"});
        document
    };
    let longest = check(&layers(512)).unwrap();
    let bytes = longest.groups()[0].placement(0).allocation_bytes;
    assert_eq!(bytes, transload_layout::MAX_ALLOCATION_BYTES);
    assert_fault(&layers(513), "num_blocks", "512 at most");
}

#[test]
fn unknown_fields_are_named_with_the_closest_known() {
    assert_fault(&with("/blocksize", json!(1)), "blocksize", "did you mean block_size?");
    let document = with("/group/0/spec/0/headdim", json!(1));
    assert_fault(&document, "group[0].spec[0].headdim", "did you mean head_dim?");
    assert_fault(&with("/zzz", json!(1)), "zzz", "the fields are schema");
    let document = with("/group/0/spec/0/kind", json!("atention"));
    assert_fault(&document, "group[0].spec[0].kind", "did you mean \"attention\"?");
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
        document.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(field);
        assert_fault(&document, path, "missing");
    }
}

#[test]
fn layers_are_checked() {
    for (layers, part) in [
        ("0-3,2", "layer 2 is given twice"),
        ("3-0", "ends before"),
        ("0-999999999999", "beyond the last"),
        ("first", "neither a layer"),
    ] {
        assert_fault(&with("/group/0/layers", json!(layers)), "group[0].layers", part);
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
        (json!("LBSHX"), "'X' is not an axis"),
        (json!("LBH[DS]"), "the bracket gives 1 orders"),
        (json!("LBH[DS,SD"), "closed"),
        (json!([0, 1, 2, 2, 4]), "permutation"),
        (json!(3), "order such as"),
        (json!("LBKSH[D,D]"), "K has no place beside brackets"),
        (json!("L[KBSHD,BSHD]"), "K has no place beside brackets"),
        (json!("LBD[SH,SH]"), "D belongs inside of the brackets"),
        (json!("LBC[SH,SH]"), "C belongs inside of the brackets"),
        (json!("LBSH[]"), "an order in the brackets is empty"),
        (json!("LBSH[D]"), "a spec of kind attention has 2 components"),
    ] {
        assert_fault(&with("/group/0/order", order), "group[0].order", part);
    }
    let mut document = with("/group/0/order", json!("KLBSHD"));
    document["group"][0]["spec"][0]["v_head_dim"] = json!(64);
    assert_fault(&document, "group[0].order", "one width");
    let mut document = with("/group/0/order", json!("LBSK[D]"));
    document["group"][0]["spec"] = json!([{"kind": "mla", "latent": 576, "dtype": "bf16"}]);
    assert_fault(&document, "group[0].order", "a spec of kind mla");
}

#[test]
fn strides_never_overlap() {
    // What would do is told at once: a page of 16 tokens of 4 heads, or all blocks of a layer.
    for stride in [1, 100, 512, 2048, 4096, 32_767] {
        let document = with("/group/0/block_stride", json!(stride));
        assert_fault(&document, "group[0].block_stride", "takes 32768");
    }
    check(&with("/group/0/block_stride", json!(32_768))).unwrap();
    for stride in [100, 32_769, 64 * 32_768 - 1] {
        let document = with("/group/0/layer_stride", json!(stride));
        assert_fault(&document, "group[0].layer_stride", "takes 2097152");
    }
    let mut document = with("/group/0/order", json!("BLSHC"));
    document["group"][0]["block_stride"] = json!(1 << 20);
    assert_fault(&document, "group[0].block_stride", "both or not at all");
    let mut document = with("/group/0/order", json!("BLSHC"));
    document["group"][0]["layer_stride"] = json!(1 << 20);
    assert_fault(&document, "group[0].layer_stride", "both or not at all");
    for order in ["[BLSHD,LBSHD]", "[LBSHD,BLSHD]"] {
        let mut document = with("/group/0/order", json!(order));
        check(&document).unwrap();
        document["group"][0]["block_stride"] = json!(1 << 20);
        assert_fault(&document, "group[0].block_stride", "both or not at all");
    }
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
    assert_fault(&document, "pp_layers[0]", "from 0 to 65536");
    document["pp_layers"] = json!([]);
    assert_fault(&document, "pp_layers", "not an empty one");
    // As a peer may send it: typed, and never read from a text.
    document["pp_layers"] = json!([1, 3]);
    let mut typed = check(&document).unwrap().document().clone();
    typed.pp_layers = Some(vec![u64::MAX, 5]);
    let faults = Deployment::from_document(typed).unwrap_err();
    assert!(faults.0[0].problem.contains("too much"), "{faults}");
    assert_fault(&with("/num_layers", json!(2)), "num_layers", "from 4");
}

#[test]
fn a_group_may_be_elsewhere_on_each_stage() {
    let mut document = with("/group/0/order", json!("BLSHC"));
    document["pp"] = json!(2);
    let mut staged = |strides: Json, stages: Json| {
        for (key, value) in strides.as_object().unwrap() {
            document["group"][0][key] = value.clone();
        }
        document["group"][0]["stage"] = stages;
        document.clone()
    };
    let page = 32_768;
    let stages = json!([{"offset": 64, "block_stride": 5 * page}, {"block_stride": 2 * page}]);
    let deployment = check(&staged(json!({"offset": 4, "layer_stride": page}), stages)).unwrap();
    let found = [0, 1].map(|stage| {
        let view = deployment.groups()[0].views(0, stage).next().unwrap().view;
        (view.offset, view.dim(Axis::Block).stride, view.dim(Axis::Layer).stride)
    });
    assert_eq!(found, [(64, 5 * page, page), (4, 2 * page, page)]);
    // A fault of one stage has the path of that stage, a fault of the list that of the group.
    for (stages, path, part) in [
        (json!([{}]), "stage", "has 1 entries, but pp is 2"),
        (json!([]), "stage", "at least one [[group.stage]]"),
        (json!({}), "stage", "must be a list of tables"),
        (json!([{}, {"block_stride": 100}]), "stage[1].block_stride", "takes 65536"),
        (json!([{}, {"offset": 1u64 << 43}]), "stage[1].offset", "exceeds"),
        (json!([{}, {"layer_stride": 0}]), "stage[1].layer_stride", "from 1 to"),
        (json!([{}, {"order": "LB"}]), "stage[1].order", "is not a field here"),
        (json!([{}, {"layer_stride": 2 * page}]), "block_stride", "takes 98304"),
    ] {
        let document = staged(json!({"block_stride": 2 * page, "layer_stride": page}), stages);
        assert_fault(&document, &format!("group[0].{path}"), part);
    }
}

#[test]
fn left_over_layers_go_to_the_stages_before_the_last() {
    let mut document = with("/pp", json!(4));
    document["num_layers"] = json!(61);
    let deployment = check(&document).unwrap();
    let counts: Vec<_> = (0..4).map(|stage| deployment.stage_layers(stage).len()).collect();
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
    for path in
        ["tp:", "model:", "group[0].layers:", "group[0].spec[0].heads:", "group[1].spec[0].head_dim:", "colour:"]
    {
        assert!(report.contains(path), "{path} is not in\n{report}");
    }
}

fn paths(document: &Json) -> Vec<String> {
    let faults = check(document).unwrap_err();
    println!("{faults}\n");
    faults.0.into_iter().map(|fault| fault.path).collect()
}

#[test]
fn what_the_deployment_says_is_checked_once_and_where_it_stands() {
    let mut document = good();
    let twin = document["group"][0].clone();
    document["group"].as_array_mut().unwrap().push(twin);
    document["group"][1]["name"] = json!("other");
    for (key, bad) in [
        ("block_size", json!(0)),
        ("num_blocks", json!(0)),
        ("num_blocks", json!(99_999_999_999_999_u64)),
        ("order", json!("banana")),
        ("order", json!([0, 1])),
        ("tp", json!(0)),
        ("pp", json!(-1)),
    ] {
        document[key] = bad;
        let first = document[key].clone();
        assert!(paths(&document).contains(&key.to_owned()), "{key} = {first}");
    }
    let all = ["tp", "pp", "block_size", "num_blocks", "order"];
    let mut found = paths(&document);
    found.sort_by_key(|path| all.iter().position(|key| key == path));
    assert_eq!(found, all);
    // Also where every group has values of its own, or is a page of several specs.
    for group in document["group"].as_array_mut().unwrap() {
        group["block_size"] = json!(16);
        group["num_blocks"] = json!(64);
        group["order"] = json!("HND");
    }
    assert_eq!(paths(&document).len(), all.len());
    let mut pages = with("/order", json!("banana"));
    let spec = pages["group"][0]["spec"][0].clone();
    pages["group"][0]["spec"] = json!([spec, spec]);
    assert_eq!(paths(&pages), ["order"]);
    // What does not suit a group is told with the group's name.
    assert_fault(&with("/order", json!("LBSC")), "order", "(in group[0])");
    let mut ragged = with("/block_size", json!(6));
    ragged["group"][0]["spec"] = json!([{"kind": "compressed", "data_bytes": 1, "scale_bytes": 1,
        "tokens_per_state": 4}]);
    assert_fault(&ragged, "block_size", "(in group[0])");
}

#[test]
fn a_faulty_group_is_checked_to_its_end() {
    let mut document = good();
    let mut second = document["group"][0].clone();
    second["num_blocks"] = json!(99_999_999_999_999_u64);
    second["order"] = json!("LBSSC");
    second["spec"] = json!([
        {"kind": "attention", "heads": 8, "head_dim": 0, "dtype": "bf17"},
        {"kind": "attention", "heads": 0, "head_dim": 128, "dtype": "bf16"},
        {"kind": "tention"},
        {"kind": "attention", "heads": 5, "head_dim": 1, "dtype": "u8"},
    ]);
    document["group"].as_array_mut().unwrap().push(second);
    assert_eq!(
        paths(&document),
        [
            "group[1].num_blocks",
            "group[1].order",
            "group[1].spec[0].head_dim",
            "group[1].spec[0].dtype",
            "group[1].spec[1].heads",
            "group[1].spec[2].kind",
            "group[1].name",
            "group[1].spec[3].heads",
        ]
    );
}

#[test]
fn one_fault_counts_once() {
    let conv = json!({"kind": "mamba2_conv", "d_inner": 64, "heads": 8, "groups": 1,
        "state_size": 16, "conv_kernel": 4, "dtype": "bf16", "conv_layout": "DS"});
    let alone = |pointer: &str, value: Option<Json>| {
        let mut document = with("/group/0/spec", json!([conv]));
        let (table, field) = pointer.rsplit_once('/').unwrap();
        let table = document.pointer_mut(table).unwrap().as_object_mut().unwrap();
        match value {
            Some(value) => table.insert(field.to_owned(), value),
            None => table.remove(field),
        };
        let found = paths(&document);
        assert_eq!(found.len(), 1, "{pointer}: {found:?}");
        assert!(found[0].ends_with(field), "{pointer}: {found:?}");
    };
    for field in ["d_inner", "heads", "groups", "state_size", "conv_kernel"] {
        let pointer = format!("/group/0/spec/0/{field}");
        alone(&pointer, None);
        for value in [json!(0), json!(-1), json!("x"), json!(i64::MAX)] {
            alone(&pointer, Some(value));
        }
    }
    for pointer in ["/group/0/name", "/group/0/layers", "/group/0/spec", "/num_blocks"] {
        alone(pointer, None);
        alone(pointer, Some(json!({})));
    }
    // Nobody wrote a v_head_dim here.
    let document = with("/group/0/spec/0/head_dim", json!(1u64 << 62));
    assert_eq!(paths(&document), ["group[0].spec[0].head_dim"]);
    // Nor is it known how many stages or layers there should be.
    for pp in [json!(0), json!("x")] {
        let mut document = with("/pp", pp);
        document["pp_layers"] = json!([2, 2]);
        assert_eq!(paths(&document), ["pp"]);
    }
    // Nor whether dcp divides tp.
    for tp in [json!(0), json!("x"), json!(8192)] {
        let mut document = with("/tp", tp);
        document["dcp"] = json!(2);
        assert_eq!(paths(&document), ["tp"]);
    }
    let mut document = with("/pp", json!(2));
    document["pp_layers"] = json!([40, 40]);
    document["group"][0]["layers"] = json!("x");
    assert_eq!(paths(&document), ["group[0].layers"]);
}

#[test]
fn the_taps_of_a_convolution_are_checked_beside_its_states() {
    let mut document = with(
        "/group/0/spec",
        json!([{"kind": "mamba1_conv", "d_inner": 8,
        "conv_states": 3, "conv_kernel": 4, "dtype": "bf16", "conv_layout": "DS"}]),
    );
    check(&document).unwrap();
    for kernel in [0, 1, i64::MAX] {
        document["group"][0]["spec"][0]["conv_kernel"] = json!(kernel);
        assert_eq!(paths(&document), ["group[0].spec[0].conv_kernel"]);
    }
}

#[test]
fn a_spec_without_heads_is_a_fault_and_no_panic() {
    let mut document = with(
        "/group/0/spec",
        json!([{"kind": "mamba2_conv", "d_inner": 64,
        "heads": 0, "groups": 1, "state_size": 16, "conv_kernel": 4, "dtype": "bf16",
        "conv_layout": "DS"}]),
    );
    assert_eq!(paths(&document), ["group[0].spec[0].heads"]);
    // As a peer may send it: typed, and never read from a text.
    document["group"][0]["spec"][0]["heads"] = json!(8);
    let mut typed = check(&document).unwrap().document().clone();
    let transload_layout::Spec::Mamba2Conv(conv) = &mut typed.groups[0].specs[0] else {
        panic!("another spec");
    };
    conv.heads = 0;
    let faults = Deployment::from_document(typed).unwrap_err();
    assert_eq!(faults.0.len(), 1);
    assert_eq!(faults.0[0].path, "group[0].spec[0].heads");
}

#[test]
fn pages_have_one_order_only() {
    let pages = |order: Option<Json>| {
        let mut document = good();
        let spec = document["group"][0]["spec"][0].clone();
        document["group"][0]["spec"] = json!([spec, spec]);
        if let Some(order) = order {
            document["group"][0]["order"] = order;
        }
        document
    };
    for order in [None, Some(json!("LB"))] {
        let deployment = check(&pages(order)).unwrap();
        assert_eq!(deployment.groups()[0].physical_order().to_string(), "LB");
    }
    for order in ["LBSHC", "LBHSC", "LBC", "LBKSDH", "NHD", "BL", "LB[SD,SD]"] {
        assert_fault(&pages(Some(json!(order))), "group[0].order", "write LB, or nothing");
    }
    let array = pages(Some(json!([0, 1, 2, 3, 4])));
    assert_fault(&array, "group[0].order", "write LB, or nothing");
    // A deployment's order is for groups of one spec.
    let mut inherited = pages(None);
    inherited["order"] = json!("BLHSC");
    assert_eq!(
        check(&inherited),
        check(&pages(None)).map(|same| {
            let mut document = same.document().clone();
            document.groups[0].order = None;
            Deployment::from_document(document).unwrap()
        })
    );
}

#[test]
fn a_report_stays_short_whatever_a_document_holds() {
    let mut document = good();
    for i in 0..60_000 {
        document[format!("k{i}")] = json!(1);
    }
    let faults = check(&document).unwrap_err();
    assert_eq!(faults.0.len(), 101);
    let last = faults.0.last().unwrap();
    assert_eq!(last.problem, "59900 more faults are not listed");
}

#[test]
fn documents_that_are_no_tables_are_refused() {
    for document in [json!(null), json!([]), json!("x"), json!(1)] {
        assert_fault(&document, "", "must be a table");
    }
    assert_fault(&with("/group", json!({})), "group", "list of tables");
    assert_fault(&with("/group", json!([])), "group", "one [[group]]");
    let document = with("/group/0/spec", json!([]));
    assert_fault(&document, "group[0].spec", "at least one [[group.spec]]");
    // As a peer may send it: typed, and never read from a text.
    let mut typed = check(&good()).unwrap().document().clone();
    typed.groups[0].specs.clear();
    let faults = Deployment::from_document(typed).unwrap_err();
    assert_eq!(faults.0, check(&document).unwrap_err().0);
}

use std::path::Path;

use super::{ParseError, Syntax, parse};

const GOOD: &str = r#"
schema = "transload.deployment/1"
name = "prefill"
tp = 2
block_size = 16
num_blocks = 64

[[group]]
name = "attn"
layers = "0-3"

[[group.spec]]
kind = "attention"
heads = 8
head_dim = 128
dtype = "bf16"
"#;

#[track_caller]
fn marked<'t>(text: &'t str, path: &str) -> &'t str {
    let Err(ParseError::Faults { faults, .. }) = parse("a.toml", text, Syntax::Toml) else {
        panic!("faults are expected");
    };
    let located = faults.iter().find(|l| l.fault.path == path);
    let located = located.unwrap_or_else(|| panic!("{path} in {faults:?}"));
    &text[located.span.clone().expect("TOML has spans")]
}

fn value_as_json(value: &toml::Value) -> String {
    serde_json::to_string(value).expect("JSON")
}

/// A number beyond 64 bits gives the same error in TOML as in JSON.
#[test]
fn huge_numbers_are_too_large_in_both_syntaxes() {
    for number in ["18446744073709551616", "1e44"] {
        let toml = GOOD.replace("tp = 2", &format!("tp = {number}"));
        let told = parse("a.toml", &toml, Syntax::Toml).unwrap_err();
        assert!(told.to_string().contains("is too large"), "{told}");
    }
}

#[test]
fn both_syntaxes_say_the_same() {
    let value: toml::Value = toml::from_str(GOOD).expect("TOML");
    let json = value_as_json(&value);
    let from_toml = parse("a.toml", GOOD, Syntax::Toml).expect("a deployment");
    let from_json = parse("a.json", &json, Syntax::Json).expect("a deployment");
    assert_eq!(from_toml, from_json);
}

#[test]
fn the_name_says_the_syntax_and_else_the_text() {
    let of = |name: &str, text| Syntax::of(Path::new(name), text);
    assert_eq!(of("a.json", "x = 1"), Syntax::Json);
    assert_eq!(of("a.toml", "{}"), Syntax::Toml);
    assert_eq!(of("/dev/stdin", "\n {}"), Syntax::Json);
    assert_eq!(of("stdin", "\u{feff}{}"), Syntax::Json);
    assert_eq!(of("/dev/stdin", "x = 1"), Syntax::Toml);
}

#[test]
fn faults_mark_their_field() {
    assert_eq!(marked(&GOOD.replace("tp = 2", "tp = 0"), "tp"), "tp = 0");
    let text = GOOD.replace("head_dim = 128", "head_dim = \"wide\"");
    assert_eq!(marked(&text, "group[0].spec[0].head_dim"), "head_dim = \"wide\"");
    let text = GOOD.replace("num_blocks", "blocks");
    assert_eq!(marked(&text, "blocks"), "blocks = 64");
}

#[test]
fn a_missing_field_marks_the_table_that_lacks_it() {
    let text = GOOD.replace("heads = 8\n", "");
    assert_eq!(marked(&text, "group[0].spec[0].heads"), "[[group.spec]]");
}

#[test]
fn text_that_is_neither_says_where_it_stops() {
    let Err(ParseError::Syntax { span, .. }) = parse("a", "tp = = 2", Syntax::Toml) else {
        panic!("a syntax error is expected");
    };
    assert_eq!(span.map(|s| s.start), Some(5));
    let Err(ParseError::Syntax { span, .. }) = parse("a", "{\n \"tp\": ]\n}", Syntax::Json) else {
        panic!("a syntax error is expected");
    };
    assert_eq!(span.map(|s| s.start), Some(9));
}

#[test]
fn messages_say_the_line_and_column_in_both_syntaxes() {
    let told = |text, syntax| parse("a", text, syntax).unwrap_err().to_string();
    let toml = told("pp = 1\ntp = = 2", Syntax::Toml);
    assert!(toml.ends_with(" at line 2 column 6"), "{toml}");
    let json = told("{\n \"é\": ]\n}", Syntax::Json);
    assert_eq!(json, "a is not valid JSON: expected value at line 2 column 7");
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_document() {
    let value: toml::Value = toml::from_str(GOOD).expect("TOML");
    for text in [GOOD.to_owned(), value_as_json(&value)] {
        let marked = format!("\u{feff}{text}");
        let from = |text: &str| parse("stdin", text, Syntax::of(Path::new("stdin"), text)).expect("a deployment");
        assert_eq!(from(&marked), from(&text));
    }
    let text = format!("\u{feff}{}", GOOD.replace("tp = 2", "tp = 0"));
    let Err(ParseError::Faults { text, faults, .. }) = parse("a", &text, Syntax::Toml) else {
        panic!("faults are expected");
    };
    assert_eq!(&text[faults[0].span.clone().expect("a span")], "tp = 0");
}

/// Deep nesting must end in an error, not in a stack overflow.
#[test]
fn deep_nesting_is_refused() {
    let deep = format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(parse("a", &deep, Syntax::Toml), Err(ParseError::Syntax { .. })));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(parse("a", &deep, Syntax::Json), Err(ParseError::Syntax { .. })));
}

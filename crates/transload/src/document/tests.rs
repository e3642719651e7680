use std::path::Path;

use super::{DocumentError, Syntax, parse, read};

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

/// What the fault at `path` marks in the text.
#[track_caller]
fn marked<'t>(text: &'t str, path: &str) -> &'t str {
    let Err(DocumentError::Faults { faults, .. }) = parse("a.toml", text, Syntax::Toml) else {
        panic!("faults are expected");
    };
    let located = faults.iter().find(|l| l.fault.path == path);
    let located = located.unwrap_or_else(|| panic!("{path} in {faults:?}"));
    &text[located.span.clone().expect("TOML has spans")]
}

#[test]
fn both_syntaxes_say_the_same() {
    let value: toml::Value = toml::from_str(GOOD).expect("TOML");
    let json = serde_json::to_string(&value).expect("JSON");
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
    assert_eq!(of("/dev/stdin", "x = 1"), Syntax::Toml);
}

#[test]
fn faults_mark_their_field() {
    assert_eq!(marked(&GOOD.replace("tp = 2", "tp = 0"), "tp"), "tp = 0");
    let text = GOOD.replace("head_dim = 128", "head_dim = \"wide\"");
    assert_eq!(
        marked(&text, "group[0].spec[0].head_dim"),
        "head_dim = \"wide\""
    );
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
    let Err(DocumentError::Syntax { span, .. }) = parse("a", "tp = = 2", Syntax::Toml) else {
        panic!("a syntax error is expected");
    };
    assert_eq!(span.map(|s| s.start), Some(5));
    let Err(DocumentError::Syntax { span, .. }) = parse("a", "{\n \"tp\": ]\n}", Syntax::Json)
    else {
        panic!("a syntax error is expected");
    };
    assert_eq!(span.map(|s| s.start), Some(9));
}

#[test]
fn files_that_are_no_documents_are_told_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.toml");
    assert!(matches!(read(&path), Err(DocumentError::Read { .. })));
    std::fs::write(&path, [0xff, 0xfe]).expect("a file");
    assert!(matches!(read(&path), Err(DocumentError::NotText { .. })));
    std::fs::write(&path, vec![b' '; super::MAX_BYTES as usize + 1]).expect("a file");
    assert!(matches!(read(&path), Err(DocumentError::TooLarge { .. })));
    std::fs::write(&path, GOOD).expect("a file");
    assert_eq!(read(&path).expect("a deployment").name(), "prefill");
}

/// Deep nesting must end in an error, not in a full stack.
#[test]
fn deep_nesting_is_refused() {
    let deep = format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(
        parse("a", &deep, Syntax::Toml),
        Err(DocumentError::Syntax { .. })
    ));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(
        parse("a", &deep, Syntax::Json),
        Err(DocumentError::Syntax { .. })
    ));
}

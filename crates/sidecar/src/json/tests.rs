use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn object(text: &str) -> Object {
    Object::parse(Bytes::copy_from_slice(text.as_bytes())).expect(text)
}

fn text(bytes: Bytes) -> String {
    String::from_utf8(bytes.to_vec()).expect("edits keep UTF-8")
}

#[test]
fn there_are_so_many_members_and_no_more() {
    let object = |members: usize| format!("{{{}}}", vec![r#""":0"#; members].join(","));
    assert!(Object::parse(object(1 << 16).into()).is_ok());
    let many = Object::parse(object((1 << 16) + 1).into()).err();
    assert_eq!(many, Some(NotAnObject::TooManyMembers));
}

#[test]
fn all_bytes_but_the_changed_ones_are_kept() {
    let body = "\n{ \"b\" : 1e400 ,\"a\":[12345678901234567890, 1.0],\t\"b\": {\"b\":\"\\u0041\"} } \n";
    let found = object(body);
    assert_eq!(text(found.edit().finish()), body);
    assert_eq!(text(found.edit().remove("c").finish()), body);
    assert_eq!(found.edit().finish().as_ptr(), found.text().as_ptr());
    assert_eq!(
        text(found.edit().set("n", "null").finish()),
        "\n{ \"b\" : 1e400 ,\"a\":[12345678901234567890, 1.0],\t\"b\": {\"b\":\"\\u0041\"},\"n\":null } \n"
    );
    assert_eq!(text(found.edit().remove("b").finish()), "\n{ \"a\":[12345678901234567890, 1.0] } \n");
    assert_eq!(text(found.edit().set("b", "2").finish()), "\n{ \"b\" : 2 ,\"a\":[12345678901234567890, 1.0] } \n");
    assert_eq!(text(found.edit().remove("b").remove("a").finish()), "\n{  } \n");
}

#[test]
fn keys_are_compared_without_their_escapes() {
    let body = r#"{"kv\u005ftransfer_params":1,"x":{"kv_transfer_params":2},"kv_transfer_params":3}"#;
    let found = object(body);
    assert_eq!(found.get("kv_transfer_params"), Some("3"));
    let left = found.edit().remove("kv_transfer_params").finish();
    assert_eq!(text(left), r#"{"x":{"kv_transfer_params":2}}"#);
}

#[test]
fn what_strict_parsers_refuse_is_refused() {
    for wrong in [
        "",
        " ",
        "{",
        "{}x",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{'a':1}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\":01}",
        "{\"a\":1 /* no */}",
        "\u{feff}{}",
        "{\"a\":\"\u{1}\"}",
        "{\"a\":tru}",
        "{\"\\ud800\":1}",
        "{}{}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{,}",
        "\u{a0}{}",
    ] {
        assert!(matches!(Object::parse(Bytes::from(wrong.to_owned())), Err(NotAnObject::Syntax { .. })), "{wrong:?}");
    }
    assert_eq!(Object::parse(Bytes::from_static(b"{\"\xff\":1}")).err(), Some(NotAnObject::Encoding));
    assert_eq!(Object::parse(Bytes::from_static(b"{\0\"\0")).err().map(|_| ()), Some(()));
    for other in ["[]", "1", "\"{\"", "null", " [{}] "] {
        assert_eq!(Object::parse(Bytes::from(other)).err(), Some(NotAnObject::OtherValue));
    }
}

#[test]
fn nesting_may_be_of_any_depth() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(text(object(&deep).edit().remove("b").finish()), deep);
}

fn spaced(value: &Value, space: &mut dyn FnMut() -> &'static str) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(key, value)| {
                    format!("{}{}{}:{}{}{}", space(), string(key), space(), space(), spaced(value, space), space())
                })
                .collect();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c{}\",:\\\\ \u{e9}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[abc\"\\\\]{0,2}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn edits_are_those_of_the_slow_one(
        members in prop::collection::vec(("[abc\"\\\\]{0,2}", values()), 0..6),
        changes in prop::collection::vec(("[abc]", prop::option::of(values())), 0..4),
        spaces in prop::collection::vec(0..4usize, 16),
    ) {
        let mut turn = 0;
        let mut space = || {
            turn += 1;
            ["", " ", "\n\t", "\r\n "][spaces[turn % spaces.len()]]
        };
        let members: Map<String, Value> = members.into_iter().collect();
        let body = spaced(&Value::Object(members), &mut space);
        let changes: Vec<_> = changes
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_ref().map(Value::to_string)))
            .collect();
        let changes: Vec<_> = changes.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        oracle::check(body.as_bytes(), &changes);
    }
}

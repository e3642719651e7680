//! What must hold of any text and any changes of it: the same, found letter by letter.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{NotAnObject, Object};

/// The members of an object, where a text is one: of several of a name the last.
pub(crate) fn members(text: &[u8]) -> Option<BTreeMap<String, String>> {
    let members = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(text).ok()?;
    let texts = members.into_iter().map(|(key, value)| (key, value.get().to_owned()));
    Some(texts.collect())
}

/// Reads a text, and changes it: each key, which needs no escapes, gets a JSON text as its value, or is removed. A key may
/// be changed again.
///
/// # Panics
/// Where another text comes of it than by a slow edit, or that text says something else.
pub(crate) fn check(text: &[u8], changes: &[(&str, Option<&str>)]) {
    let slow = members(text);
    let object = match Object::parse(Bytes::copy_from_slice(text)) {
        Ok(object) => object,
        Err(why) => {
            assert_eq!(slow, None);
            let encoding = std::str::from_utf8(text).is_err();
            let json = serde_json::from_slice::<&RawValue>(text).is_ok();
            let same = match why {
                NotAnObject::Encoding => encoding,
                NotAnObject::OtherValue => json,
                // None of these texts is that long.
                NotAnObject::TooManyMembers => false,
                // The grammar alone allows half a surrogate pair in a key, which is no text.
                NotAnObject::Syntax { .. } => !encoding && (!json || text.contains(&b'{')),
            };
            assert!(same, "{why}");
            return;
        }
    };
    let mut expected = slow.expect("it is an object");
    for (key, value) in &expected {
        assert_eq!(object.get(key), Some(value.as_str()), "{key:?}");
        assert_eq!(object.object(key).is_some(), value.starts_with('{'));
    }
    assert_eq!(object.edit().finish().as_ptr(), object.text().as_ptr(), "nothing is copied");
    let mut edit = object.edit();
    let mut last: Vec<(&str, Option<&str>)> = Vec::new();
    for &(key, value) in changes {
        edit = match value {
            Some(value) => {
                expected.insert(key.to_owned(), value.to_owned());
                edit.set(key, value)
            }
            None => {
                expected.remove(key);
                edit.remove(key)
            }
        };
        match last.iter_mut().find(|(changed, _)| *changed == key) {
            Some(change) => change.1 = value,
            None => last.push((key, value)),
        }
    }
    let edited = edit.finish();
    let text = std::str::from_utf8(text).expect("objects are UTF-8");
    let slow = slowly(text, &last);
    assert_eq!(std::str::from_utf8(&edited), Ok(slow.as_str()));
    assert_eq!(members(&edited), Some(expected));
}

/// An object's text with these changes, of which each has another key.
fn slowly(text: &str, changes: &[(&str, Option<&str>)]) -> String {
    let (begin, members, end) = cut(text);
    let mut out = begin.to_owned();
    let mut written = Vec::new();
    for (gap, key, value) in members {
        let name: String =
            serde_json::from_str(key.trim_end_matches([' ', '\t', '\r', '\n', ':'])).expect("a key is a string");
        let value = match changes.iter().find(|(changed, _)| *changed == name) {
            None => value,
            Some((_, Some(new))) if !written.contains(&name) => new,
            // Removed, or written already.
            Some(_) => continue,
        };
        if !written.is_empty() {
            out += gap;
        }
        out += key;
        out += value;
        written.push(name);
    }
    for (key, value) in changes {
        if let Some(value) = value
            && !written.iter().any(|name| name == key)
        {
            let comma = if written.is_empty() { "" } else { "," };
            out += &format!("{comma}\"{key}\":{value}");
            written.push((*key).to_owned());
        }
    }
    out + end
}

/// Cuts an object's text into what stands before its members, the members, and what stands behind them. A member is what stands
/// between it and the one before, its key up to its value, and its value.
fn cut(text: &str) -> (&str, Vec<(&str, &str, &str)>, &str) {
    // Where a string, a value that is no string, a colon or comma of the object itself begins, and where it ends.
    let mut tokens: Vec<(usize, usize)> = Vec::new();
    let (mut depth, mut quoted, mut escaped, mut open) = (0, false, false, false);
    for (at, letter) in text.char_indices() {
        let before = depth;
        match letter {
            _ if quoted => {
                quoted = escaped || letter != '"';
                escaped = !escaped && letter == '\\';
            }
            '"' => quoted = true,
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if before == 0 || depth == 0 {
            continue;
        }
        let apart = before == 1 && !quoted && " \t\r\n:,".contains(letter);
        match tokens.last_mut() {
            Some((_, end)) if open && !apart => *end = at + letter.len_utf8(),
            _ if apart => {}
            _ => tokens.push((at, at + letter.len_utf8())),
        }
        open = !apart;
    }
    let brace = text.find('{').expect("an object") + 1;
    let mut end = brace;
    let mut members = Vec::new();
    for member in tokens.chunks(2) {
        let [key, value] = member else { panic!("a key without a value") };
        members.push((&text[end..key.0], &text[key.0..value.0], &text[value.0..value.1]));
        end = value.1;
    }
    let first = tokens.first().map_or(brace, |key| key.0);
    (&text[..first], members, &text[end..])
}

//! The slow oracle of JSON edits: finds members letter by letter and edits the text in the obvious way.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{NotAnObject, Object};

/// Returns the members of an object if the text is one. For a repeated name the last value counts.
pub(crate) fn members(text: &[u8]) -> Option<BTreeMap<String, String>> {
    let members = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(text).ok()?;
    let texts = members.into_iter().map(|(key, value)| (key, value.get().to_owned()));
    Some(texts.collect())
}

/// Applies changes to a text: each key, which needs no escapes, gets a JSON text as its value, or is removed. A key may
/// be changed several times.
///
/// # Panics
/// Panics if the result differs from that of a slow edit, or if its meaning is wrong.
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
                // No text of the tests is long enough for this.
                NotAnObject::TooManyMembers => false,
                // The grammar alone would allow half a surrogate pair in a key, which is not text.
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

/// Applies changes to an object's text. Each key occurs once.
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
            // The member is removed, or was already written.
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

/// Splits an object's text into the part before its members, the members, and the part after them. A member consists of
/// the text since the member before, its key up to its value, and its value.
fn cut(text: &str) -> (&str, Vec<(&str, &str, &str)>, &str) {
    // The start and end of each string, other value, colon and comma of the object itself.
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

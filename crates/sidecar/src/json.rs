//! The members of a JSON object, as places in its text, and edits that keep every other byte.
//!
//! Bodies pass through this crate whose numbers and order of keys belong to others (block ids of 64 bits, say), so they are
//! never parsed into values and written anew.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// A JSON object: its text, and where each member is in it. The default has neither.
#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    text: Bytes,
    members: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    /// The key without its escapes.
    key: Box<str>,
    /// From the key's quotation mark to the value's last byte.
    whole: Range<usize>,
    value: Range<usize>,
}

/// The most members of an object: each takes some 100 bytes besides its text.
const MOST_MEMBERS: usize = 1 << 16;

/// Why a text is not read as an object: what strict parsers refuse, a more lenient one may read as something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum NotAnObject {
    #[error("it is not UTF-8")]
    Encoding,
    #[error("it is not JSON (RFC 8259), at line {line}, column {column}")]
    Syntax { line: usize, column: usize },
    #[error("it is JSON, but not an object")]
    OtherValue,
    #[error("it has more than {MOST_MEMBERS} members")]
    TooManyMembers,
}

impl Object {
    /// Reads one object and nothing but white space around it. Nesting may be of any depth.
    pub(crate) fn parse(text: Bytes) -> Result<Self, NotAnObject> {
        let whole = std::str::from_utf8(&text).map_err(|_| NotAnObject::Encoding)?;
        let syntax = |error: serde_json::Error| NotAnObject::Syntax { line: error.line(), column: error.column() };
        if !whole.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
            return Err(match serde_json::from_str::<&RawValue>(whole) {
                Ok(_) => NotAnObject::OtherValue,
                Err(error) => syntax(error),
            });
        }
        let Members(found) = serde_json::from_str(whole).map_err(syntax)?;
        if found.len() > MOST_MEMBERS {
            return Err(NotAnObject::TooManyMembers);
        }
        let mut end = whole.find('{').map_or(0, |brace| brace + 1);
        let mut members = Vec::with_capacity(found.len());
        for (key, value) in found {
            // Between the value before and this key there are white space and at most one comma.
            let gap = whole[end..].find('"').unwrap_or_default();
            let from = value.as_ptr() as usize - whole.as_ptr() as usize;
            members.push(Member {
                key: key.into(),
                whole: end + gap..from + value.len(),
                value: from..from + value.len(),
            });
            end = from + value.len();
        }
        Ok(Self { text, members })
    }

    /// The text that it was read from.
    pub(crate) fn text(&self) -> &Bytes {
        &self.text
    }

    /// The text of a member's value; of several members of that name the last one's, which is what parsers take.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let member = self.members.iter().rfind(|member| *member.key == *key)?;
        // The whole text was found to be UTF-8, and values begin and end at characters.
        std::str::from_utf8(&self.text[member.value.clone()]).ok()
    }

    /// Whether several members have that name: of those, parsers take one or the other.
    pub(crate) fn repeats(&self, key: &str) -> bool {
        let members = self.members.iter();
        members.filter(|member| *member.key == *key).nth(1).is_some()
    }

    /// A member's value, without copying it.
    pub(crate) fn slice(&self, key: &str) -> Option<Bytes> {
        let member = self.members.iter().rfind(|member| *member.key == *key)?;
        Some(self.text.slice(member.value.clone()))
    }

    /// A member's value, where it is an object.
    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        let value = self.slice(key)?;
        // Errors of the parser are costly, and this is an ordinary case.
        if value.first() != Some(&b'{') {
            return None;
        }
        Self::parse(value).ok()
    }

    /// A member's value, where it is one of `T`.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?).ok()
    }

    /// Begins a copy of it with changes.
    pub(crate) fn edit(&self) -> Edit<'_> {
        Edit { object: self, changes: Vec::new() }
    }
}

/// A copy of an object with some members changed, all other bytes kept.
pub(crate) struct Edit<'a> {
    object: &'a Object,
    /// The value that each of these keys gets; `None` removes it. A key stands here once.
    changes: Vec<(&'a str, Option<Cow<'a, str>>)>,
}

impl<'a> Edit<'a> {
    /// Removes every member of that name.
    pub(crate) fn remove(mut self, key: &'a str) -> Self {
        self.change(key, None);
        self
    }

    /// Gives a member this JSON text as its value, in its place, or at the end where there is none.
    pub(crate) fn set(mut self, key: &'a str, value: impl Into<Cow<'a, str>>) -> Self {
        self.change(key, Some(value.into()));
        self
    }

    fn change(&mut self, key: &'a str, value: Option<Cow<'a, str>>) {
        match self.changes.iter_mut().find(|(changed, _)| *changed == key) {
            Some((_, before)) => *before = value,
            None => self.changes.push((key, value)),
        }
    }

    /// The text with these changes. Where there are none it is the same memory.
    pub(crate) fn finish(self) -> Bytes {
        let Object { text, members } = self.object;
        let changed = |member: &Member| self.changes.iter().position(|(key, _)| **key == *member.key);
        let sets = self.changes.iter().any(|(_, value)| value.is_some());
        if !sets && !members.iter().any(|member| changed(member).is_some()) {
            return text.clone();
        }
        let added: usize =
            self.changes.iter().map(|(key, value)| key.len() + value.as_deref().map_or(0, str::len) + 4).sum();
        let mut out = Writer { out: BytesMut::with_capacity(text.len() + added), any: false };
        let brace = memchr::memchr(b'{', text).map_or(0, |at| at + 1);
        let begin = members.first().map_or(brace, |member| member.whole.start);
        out.out.extend_from_slice(&text[..begin]);
        let mut written = vec![false; self.changes.len()];
        for (index, member) in members.iter().enumerate() {
            let before = match index.checked_sub(1) {
                Some(before) => &text[members[before].whole.end..member.whole.start],
                None => b",",
            };
            match changed(member) {
                None => out.member(before, &[&text[member.whole.clone()]]),
                Some(change) => {
                    let first = !std::mem::replace(&mut written[change], true);
                    if let (Some(value), true) = (&self.changes[change].1, first) {
                        let key = &text[member.whole.start..member.value.start];
                        out.member(before, &[key, value.as_bytes()]);
                    }
                }
            }
        }
        for ((key, value), written) in self.changes.iter().zip(written) {
            if let (Some(value), false) = (value, written) {
                // Keys that are added are names of ours, which need no escape.
                out.member(b",", &[b"\"", key.as_bytes(), b"\":", value.as_bytes()]);
            }
        }
        let end = members.last().map_or(brace, |member| member.whole.end);
        out.out.extend_from_slice(&text[end..]);
        out.out.freeze()
    }
}

struct Writer {
    out: BytesMut,
    any: bool,
}

impl Writer {
    fn member(&mut self, before: &[u8], parts: &[&[u8]]) {
        if std::mem::replace(&mut self.any, true) {
            self.out.extend_from_slice(before);
        }
        for part in parts {
            self.out.extend_from_slice(part);
        }
    }
}

/// A JSON string of this text.
pub(crate) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// All members, duplicates too, with the text of each value.
struct Members<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    let value = map.next_value::<&RawValue>()?.get();
                    // One too many tells that there are too many.
                    if found.len() <= MOST_MEMBERS {
                        found.push((key.0, value));
                    }
                }
                Ok(Members(found))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

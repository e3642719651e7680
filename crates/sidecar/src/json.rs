//! Locates the members of a JSON object in its text, and edits them while keeping every other byte.
//!
//! Numbers and the order of keys in bodies belong to others (64-bit block ids, for example), so bodies are never parsed
//! into values and written anew.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// A JSON object: its text, and the position of each member in it. The default has no text and no members.
#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    text: Bytes,
    members: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    /// The decoded key.
    key: Box<str>,
    /// The range from the key's opening quote to the value's last byte.
    whole: Range<usize>,
    value: Range<usize>,
}

/// The most members of an object; each takes some 100 bytes in addition to its text.
const MOST_MEMBERS: usize = 1 << 16;

/// A reason why a text is not accepted as an object. A more lenient parser may accept what a strict one refuses, and
/// read it differently.
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
    /// Parses one object, with only white space around it. Nesting may be of any depth.
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
            // Between the previous value and this key there are only white space and at most one comma.
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

    pub(crate) fn text(&self) -> &Bytes {
        &self.text
    }

    /// Returns the text of a member's value. If the name occurs several times, the last one counts, as for most
    /// parsers.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let member = self.members.iter().rfind(|member| *member.key == *key)?;
        // The whole text is valid UTF-8, and values begin and end at character boundaries.
        std::str::from_utf8(&self.text[member.value.clone()]).ok()
    }

    /// Returns whether a name occurs several times, in which case parsers disagree about the value.
    pub(crate) fn repeats(&self, key: &str) -> bool {
        let members = self.members.iter();
        members.filter(|member| *member.key == *key).nth(1).is_some()
    }

    pub(crate) fn slice(&self, key: &str) -> Option<Bytes> {
        let member = self.members.iter().rfind(|member| *member.key == *key)?;
        Some(self.text.slice(member.value.clone()))
    }

    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        let value = self.slice(key)?;
        // Avoids the parser's costly errors in this ordinary case.
        if value.first() != Some(&b'{') {
            return None;
        }
        Self::parse(value).ok()
    }

    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?).ok()
    }

    pub(crate) fn edit(&self) -> Edit<'_> {
        Edit { object: self, changes: Vec::new() }
    }
}

/// A pending copy of an object with some members changed and all other bytes kept.
pub(crate) struct Edit<'a> {
    object: &'a Object,
    /// The new value of each key; `None` removes it. Each key occurs once.
    changes: Vec<(&'a str, Option<Cow<'a, str>>)>,
}

impl<'a> Edit<'a> {
    pub(crate) fn remove(mut self, key: &'a str) -> Self {
        self.change(key, None);
        self
    }

    /// Sets a member to this JSON text. The first member with the name gets it and the others are removed; without one
    /// it is appended.
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

    /// Returns the edited text. Without changes it shares the memory of the original.
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
                // Added keys are names of our own, which need no escapes.
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

pub(crate) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// All members of an object, duplicates included, with the text of each value.
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
                    // One member above the limit is enough to detect the excess.
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

/// A key, borrowed if it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

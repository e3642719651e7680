//! What the manifests of objects say.

use serde::Serialize;
use transload::archive::objects::Record;
use transload::store::ManifestName;

use crate::show::number;

/// A manifest of an object, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// Printable ASCII is as it is; other bytes, backslashes and quotes are escaped as Rust escapes them.
    pub(super) namespace: String,
    /// As the namespace.
    pub(super) key: String,
    pub(super) bytes: u64,
    pub(super) meta_bytes: u64,
}

/// As much of a key or namespace as a table has room for, in characters: a model's name and the beginning of a hash.
const SHORT: usize = 48;

impl Shown {
    /// `None` if it is no manifest of an object, or one that cannot be read.
    pub(super) fn of(name: &ManifestName, manifest: &[u8]) -> Option<Self> {
        Some(Record::read(name, manifest)?.ok()?.into())
    }

    /// Lines for a terminal.
    pub(super) fn lines(&self) -> String {
        format!(
            " an object of {} with {} of meta\n namespace: {}\n key:       {}\n",
            number::count(self.bytes, "byte"),
            number::count(self.meta_bytes, "byte"),
            self.namespace,
            self.key,
        )
    }

    /// A few words for a table.
    pub(super) fn short(&self) -> String {
        format!(
            "{} of {}: {}, {} of meta",
            short(&self.key),
            short(&self.namespace),
            number::count(self.bytes, "byte"),
            number::count(self.meta_bytes, "byte"),
        )
    }
}

impl From<Record> for Shown {
    fn from(record: Record) -> Self {
        Self {
            namespace: record.namespace.escape_ascii().to_string(),
            key: record.key.escape_ascii().to_string(),
            bytes: record.bytes,
            meta_bytes: record.meta.len() as u64,
        }
    }
}

/// The beginning of an ASCII text, and how many characters there are more.
pub(super) fn short(text: &str) -> String {
    match text.get(..SHORT) {
        Some(beginning) if text.len() > SHORT => format!("{beginning}…+{}", text.len() - SHORT),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_there_is_little_room() {
        assert_eq!(short(&"k".repeat(48)), "k".repeat(48));
        assert_eq!(short(&"k".repeat(132)), "k".repeat(48) + "…+84");
    }
}

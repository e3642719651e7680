//! The contents of objects' manifests, for display.

use serde::Serialize;
use transload::archive::objects::Record;
use transload::store::ManifestName;

use crate::show::number;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// The namespace. Bytes other than printable ASCII, backslashes and quotes are escaped as in Rust.
    pub(super) namespace: String,
    /// The key, escaped like the namespace.
    pub(super) key: String,
    pub(super) bytes: u64,
    pub(super) meta_bytes: u64,
}

/// The most characters of a key or namespace in a table: a model's name and the beginning of a hash.
const SHORT: usize = 48;

impl Shown {
    /// Reads a manifest. Returns `None` if it does not belong to an object or cannot be read.
    pub(super) fn of(name: &ManifestName, manifest: &[u8]) -> Option<Self> {
        Some(Record::read(name, manifest)?.ok()?.into())
    }

    pub(super) fn lines(&self) -> String {
        format!(
            " an object of {} with {} of meta\n namespace: {}\n key:       {}\n",
            number::count(self.bytes, "byte"),
            number::count(self.meta_bytes, "byte"),
            self.namespace,
            self.key,
        )
    }

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

/// Shortens an ASCII text, with the number of characters that are left out.
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

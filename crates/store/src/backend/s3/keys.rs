//! Keys of objects below the root.

use object_store::path::Path;

use crate::backend::header::HEADER;
use crate::backend::recorded::FIXED;
use crate::error::StoreError;
use crate::hash::ChunkHash;

pub(super) const MARKER: &str = "kv_store_format";

pub(super) const FORMAT: &[u8] = b"transload kv_store s3 1\n";

pub(super) const CHUNKS: &str = "c";
pub(super) const MANIFESTS: &str = "m";

/// The maximum length of an escaped name in a key. Stores that keep objects as files (MinIO, s3s-fs) allow 255 bytes
/// for one segment. Longer names are hashed, and a listing has to read their objects.
const MAX_ESCAPED: usize = 200;

/// Returns a path of segments that need no encoding.
pub(super) fn path(segments: &[String], below: &[&str]) -> Path {
    segments.iter().map(String::as_str).chain(below.iter().copied()).collect()
}

pub(super) fn chunk(root: &[String], hash: &ChunkHash) -> Path {
    path(root, &[CHUNKS, &hash.to_string()])
}

pub(super) fn chunk_of(file: &str) -> Option<ChunkHash> {
    let hash: ChunkHash = file.parse().ok()?;
    (hash.to_string() == file).then_some(hash)
}

/// Returns the key of a manifest. Its last segment is `n-` and the escaped name, in which every byte except letters,
/// digits, `-` and `.` becomes `_` and two hex digits. If that is too long, it is `h-` and the BLAKE3 of the name. So a
/// name is never a path, and most names can be read in a listing of the bucket.
pub(super) fn manifest(root: &[String], whole_name: &str) -> Path {
    let mut escaped = String::from("n-");
    for byte in whole_name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("_{byte:02x}")),
        }
    }
    if escaped.len() > MAX_ESCAPED {
        escaped = format!("h-{}", blake3::hash(whole_name.as_bytes()).to_hex());
    }
    path(root, &[MANIFESTS, &escaped])
}

/// Tells whether the last segment of a key can be a manifest's. The object contains the name.
pub(super) fn is_manifest(file: &str) -> bool {
    file.starts_with("n-") || file.starts_with("h-")
}

pub(super) fn front(whole_name: &str) -> Vec<u8> {
    // The prefix has at most 400 bytes and the name 1,024.
    let len = whole_name.len() as u16;
    [&len.to_le_bytes()[..], whole_name.as_bytes()].concat()
}

/// The bytes at the beginning of an object that always include the name and the length of the references.
pub(super) const BEGINNING: u64 = (HEADER + 2 + 400 + 1024 + FIXED) as u64;

pub(super) fn split_name(stored: &[u8]) -> Result<(&str, usize), StoreError> {
    let damaged = || StoreError::Damaged { what: "a manifest".into(), how: "it does not begin with a name".into() };
    let (len, rest) = stored.split_first_chunk::<2>().ok_or_else(damaged)?;
    let len = usize::from(u16::from_le_bytes(*len));
    let name = rest.get(..len).ok_or_else(damaged)?;
    let name = std::str::from_utf8(name).map_err(|_| damaged())?;
    Ok((name, 2 + len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_come_back_and_keys_fit(name in "\\PC{0,300}", root in "[a-z]{1,400}") {
            let path = manifest(&[root], &name);
            prop_assert!(path.as_ref().len() <= 1024);
            prop_assert_eq!(path.parts().count(), 3);
            let file = path.filename().unwrap();
            prop_assert!(is_manifest(file));
            prop_assert!(file.starts_with("n-") || name.len() > 60);
            let stored = [&front(&name)[..], b"rest"].concat();
            prop_assert_eq!(split_name(&stored).unwrap(), (&name[..], stored.len() - 4));
        }

        #[test]
        fn any_bytes_are_read(stored in prop::collection::vec(any::<u8>(), 0..30)) {
            let _ = split_name(&stored);
        }
    }

    #[test]
    fn no_name_is_a_path() {
        for name in ["", "..", "../../x", "/", "a/b", "chunks", "%2e%2e", "\n", "n-", "_"] {
            let path = manifest(&["kv".into()], name);
            assert_eq!(path.as_ref().matches('/').count(), 2, "{path}");
            assert!(path.as_ref().starts_with("kv/m/n-"), "{path}");
        }
    }
}

//! The names of objects' manifests.

use transload_store::ManifestName;

/// The prefix of the names of all manifests of objects.
pub const NAMES: &str = "transload.objects/1/";

/// The longest key and the longest namespace, in bytes.
pub const LONGEST_NAME: usize = 4096;

const CONTEXT: &str = "transload.objects/1 name";

pub(super) fn is_name(name: &[u8]) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
}

/// Returns the prefix of the names of a namespace's manifests. Two share it only through a deliberate collision.
pub(super) fn beginning(namespace: &[u8]) -> String {
    let digest = blake3::hash(namespace).to_hex();
    format!("{NAMES}{}/", &digest[..32])
}

/// Returns the name of a key's manifest. Both arguments must be [valid](is_name).
pub(super) fn manifest(namespace: &[u8], key: &[u8]) -> ManifestName {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    // A namespace has at most 4,096 bytes.
    hasher.update(&(namespace.len() as u32).to_le_bytes());
    hasher.update(namespace).update(key);
    let digest = hasher.finalize().to_hex();
    let name = format!("{}{digest}", beginning(namespace));
    ManifestName::new(name).expect("117 characters of ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with the `blake3` package of Python.
    #[test]
    fn names_are_as_the_manual_says() {
        let name = manifest(b"ns", b"key");
        assert_eq!(
            name.as_str(),
            "transload.objects/1/f66f9f58f321d1ee3cc813ceba79c2c2/\
             1e26ebfef7b12edb2bb1c4cc7b513f6ab41e754cb847e519622e8a7f57ab560f"
        );
        assert_eq!(name.as_str().len(), 117);
    }

    #[test]
    fn where_the_namespace_ends_makes_a_difference() {
        assert_ne!(manifest(b"a", b"bc"), manifest(b"ab", b"c"));
    }
}

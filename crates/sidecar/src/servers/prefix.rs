//! The properties of a prompt that decide its server: its length, and a hash of its beginning.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// The most and the least bytes of a prompt's text that are hashed.
const MOST: usize = 4 << 10;
const LEAST: usize = 512;

/// Estimates the number of tokens in a prompt written as JSON: the number of its ids, or a quarter of its bytes, since
/// there is no tokenizer.
pub(crate) fn tokens(prompt: &[u8]) -> u64 {
    if prompt.first() == Some(&b'[') && memchr::memchr2(b'"', b'{', prompt).is_none() {
        let ids = prompt.split(|byte| !byte.is_ascii_digit()).filter(|id| !id.is_empty());
        return ids.count() as u64;
    }
    prompt.len() as u64 / 4
}

/// Returns a hash that is equal for prompts that begin alike.
///
/// Conversations grow at the end with each turn. If always the first 4 KiB were hashed, the hash of a short
/// conversation would change with every turn. So the hashed length is a power of two, and the hash of a growing
/// conversation changes three times at most.
pub(crate) fn key(text: &[u8]) -> u64 {
    let length = match text.len() {
        short @ 0..LEAST => short,
        long @ LEAST..MOST => 1 << long.ilog2(),
        MOST.. => MOST,
    };
    hash(&text[..length])
}

/// Returns a hash that is equal in all processes of the same version.
pub(super) fn hash<T: std::hash::Hash + ?Sized>(of: &T) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}

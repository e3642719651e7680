//! What of a prompt decides where it goes: its length, and a hash of how it begins.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// The most of a prompt's text that is hashed, and the least, in bytes.
const MOST: usize = 4 << 10;
const LEAST: usize = 512;

/// About how many tokens a prompt is, as it is written in JSON: as many as it has ids, or a quarter of its bytes, since no
/// tokenizer is at hand.
pub(crate) fn tokens(prompt: &[u8]) -> u64 {
    if prompt.first() == Some(&b'[') && memchr::memchr2(b'"', b'{', prompt).is_none() {
        let ids = prompt.split(|byte| !byte.is_ascii_digit()).filter(|id| !id.is_empty());
        return ids.count() as u64;
    }
    prompt.len() as u64 / 4
}

/// A hash that prompts share which begin alike.
///
/// A conversation grows at its end with each turn. Were all of the first 4 KiB hashed, its hash would change with every turn until
/// it is that long; so a power of two is, and the hash of a growing conversation changes three times at most.
pub(crate) fn key(text: &[u8]) -> u64 {
    let length = match text.len() {
        short @ 0..LEAST => short,
        long @ LEAST..MOST => 1 << long.ilog2(),
        MOST.. => MOST,
    };
    hash(&text[..length])
}

/// A hash that is the same in every process of one version.
pub(super) fn hash<T: std::hash::Hash + ?Sized>(of: &T) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}

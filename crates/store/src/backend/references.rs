//! Which chunks a manifest refers to, without knowing its format.

use std::collections::{HashMap, HashSet};

use crate::hash::ChunkHash;

/// Finds hashes in the bytes of manifests, as a conservative garbage collector finds pointers in a stack.
///
/// A hash counts as named where its bytes stand in a manifest, raw or as hex of either case, at any offset.
/// What merely looks like one keeps a chunk that could have gone; the other way round cannot happen to a
/// format that holds its hashes in one of these two forms.
///
/// Each manifest costs a few nanoseconds a byte, whatever the number of chunks.
#[derive(Debug)]
pub struct References {
    /// Chunks not named so far, by the first eight bytes of their hash (fewer for shorter ones).
    unnamed: HashMap<u64, Vec<ChunkHash>>,
    /// The lengths of hash prefixes that `unnamed` is keyed by: at most 1 to 8.
    starts: Vec<usize>,
    /// A bit for each key of `unnamed`, so that most bytes need no look-up.
    filter: Vec<u64>,
    named: HashSet<ChunkHash>,
    new: Vec<ChunkHash>,
}

const FILTER_BITS: u32 = 22;

impl References {
    /// Begins with the chunks of a store, none of them named.
    pub fn new(chunks: impl IntoIterator<Item = ChunkHash>) -> Self {
        let mut unnamed: HashMap<u64, Vec<ChunkHash>> = HashMap::new();
        let mut filter = vec![0; 1 << (FILTER_BITS - 6)];
        let mut starts = [false; 9];
        for hash in chunks {
            let start = hash.as_bytes().len().min(8);
            let key = key(&hash.as_bytes()[..start]);
            starts[start] = true;
            filter[slot(key).0] |= slot(key).1;
            unnamed.entry(key).or_default().push(hash);
        }
        Self {
            unnamed,
            starts: (1..=8).filter(|&len| starts[len]).collect(),
            filter,
            named: HashSet::new(),
            new: Vec::new(),
        }
    }

    /// Takes note of every chunk that `manifest` names.
    pub fn scan(&mut self, manifest: &[u8]) {
        let mut named = Vec::new();
        self.find(manifest, &mut |hash| named.push(*hash));
        named.into_iter().for_each(|hash| self.add(hash));
    }

    /// Calls `found` with every chunk that `manifest` names, as often as it does.
    pub fn find(&self, manifest: &[u8], found: &mut dyn FnMut(&ChunkHash)) {
        each_start(manifest, |rest| self.find_at(rest, found));
    }

    /// Takes note of one chunk that is known to be referred to.
    pub fn add(&mut self, hash: ChunkHash) {
        if self.named.insert(hash) {
            self.new.push(hash);
        }
    }

    /// The chunks that were named for the first time since the last call, so a caller that scans one manifest
    /// at a time learns what each adds.
    pub fn take_new(&mut self) -> Vec<ChunkHash> {
        std::mem::take(&mut self.new)
    }

    /// Whether a manifest named this chunk.
    pub fn contains(&self, hash: &ChunkHash) -> bool {
        self.named.contains(hash)
    }

    fn find_at(&self, rest: &[u8], found: &mut dyn FnMut(&ChunkHash)) {
        for &start in &self.starts {
            let Some(start) = rest.get(..start) else {
                break;
            };
            let key = key(start);
            let (word, bit) = slot(key);
            if self.filter[word] & bit != 0
                && let Some(chunks) = self.unnamed.get(&key)
            {
                let named = chunks.iter();
                named
                    .filter(|hash| rest.starts_with(hash.as_bytes()))
                    .for_each(&mut *found);
            }
        }
    }
}

/// Calls `visit` with the bytes from each place on where a hash may stand in a manifest, raw or as hex.
pub(super) fn each_start(manifest: &[u8], mut visit: impl FnMut(&[u8])) {
    let mut each = |bytes: &[u8]| (0..bytes.len()).for_each(|at| visit(&bytes[at..]));
    each(manifest);
    // Hex digits in runs: each run is read twice, from its first digit and from its second.
    let mut decoded = Vec::new();
    for run in manifest.split(|byte| !byte.is_ascii_hexdigit()) {
        for from in 0..run.len().min(2) {
            decoded.clear();
            decoded.extend(
                run[from..]
                    .chunks_exact(2)
                    .map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])),
            );
            each(&decoded);
        }
    }
}

/// Up to eight bytes as a number, with their count in front of shorter ones.
fn key(start: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..start.len()].copy_from_slice(start);
    let key = u64::from_le_bytes(bytes);
    match start.len() {
        8 => key,
        len => key | (len as u64) << 56,
    }
}

/// Where the filter keeps the bit of a key. Hashes are spread already; keys of other making are spread here.
fn slot(key: u64) -> (usize, u64) {
    let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS);
    ((spread >> 6) as usize, 1 << (spread & 63))
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the scan has to find, the slow way.
    fn oracle(manifest: &[u8], hash: &ChunkHash) -> bool {
        let contains = |needle: &[u8]| manifest.windows(needle.len()).any(|w| w == needle);
        let lower = manifest.to_ascii_lowercase();
        let hex = hash.to_string();
        contains(hash.as_bytes()) || lower.windows(hex.len()).any(|w| w == hex.as_bytes())
    }

    proptest! {
        #[test]
        fn finds_what_stands_in_the_bytes_and_nothing_else(
            hashes in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=64), 1..8),
            parts in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..4, prop::collection::vec(any::<u8>(), 0..6)),
                0..8,
            ),
        ) {
            let hashes: Vec<ChunkHash> =
                hashes.iter().map(|hash| ChunkHash::new(hash).unwrap()).collect();
            let mut manifest = Vec::new();
            for (which, form, filling) in parts {
                let hash = which.get(&hashes);
                match form {
                    0 => manifest.extend(hash.as_bytes()),
                    1 => manifest.extend(hash.to_string().bytes()),
                    2 => manifest.extend(hash.to_string().to_uppercase().bytes()),
                    _ => manifest.extend(&hash.as_bytes()[1..]),
                }
                manifest.extend(filling);
            }
            let mut references = References::new(hashes.iter().copied());
            references.scan(&manifest);
            for hash in &hashes {
                prop_assert_eq!(references.contains(hash), oracle(&manifest, hash), "{}", hash);
            }
        }
    }

    #[test]
    fn several_manifests_add_up() {
        let hashes: Vec<ChunkHash> = (0..100_u8).map(|n| blake3::hash(&[n]).into()).collect();
        let mut references = References::new(hashes.iter().copied());
        references.scan(hashes[3].as_bytes());
        references.scan(hashes[3].as_bytes());
        assert_eq!(references.take_new(), [hashes[3]]);
        references.scan(format!("{{\"chunks\":[\"{}\"]}}", hashes[5]).as_bytes());
        references.add(hashes[7]);
        let named: Vec<usize> = (0..100)
            .filter(|&n| references.contains(&hashes[n]))
            .collect();
        assert_eq!(named, [3, 5, 7]);
        assert_eq!(references.take_new(), [hashes[5], hashes[7]]);
    }
}

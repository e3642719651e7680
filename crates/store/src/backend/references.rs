//! Search for the chunks that a manifest refers to, without knowing its format.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::hash::ChunkHash;

/// Finds hashes in the bytes of manifests, as a conservative garbage collector finds pointers in a stack.
///
/// A hash counts as named wherever its bytes stand in a manifest, raw or as hex of either case, at any offset. Bytes
/// that happen to look like a hash keep a chunk that could be removed. A chunk that a manifest does name in one of
/// these two forms is never missed.
///
/// The search takes a few nanoseconds for each byte of a manifest, whatever the number of chunks.
#[derive(Clone, Debug, Default)]
pub struct References {
    candidates: Candidates,
    named: HashSet<ChunkHash>,
    new: Vec<ChunkHash>,
}

#[derive(Clone, Debug, Default)]
struct Candidates {
    /// Keyed by the first eight bytes of the hash, or all of a shorter one.
    chunks: HashMap<u64, Vec<ChunkHash>>,
    starts: Starts,
}

impl References {
    /// Starts with the chunks of a store, none of them named.
    pub fn new(chunks: impl IntoIterator<Item = ChunkHash>) -> Self {
        let mut this = Self::default();
        for hash in chunks {
            this.insert(&hash);
        }
        this
    }

    /// Adds a chunk that is not in the set.
    pub(super) fn insert(&mut self, hash: &ChunkHash) {
        let key = self.candidates.starts.insert(hash);
        self.candidates.chunks.entry(key).or_default().push(*hash);
    }

    pub(super) fn remove(&mut self, hash: &ChunkHash) {
        let key = Starts::key(hash);
        if let Entry::Occupied(mut alike) = self.candidates.chunks.entry(key) {
            alike.get_mut().retain(|other| other != hash);
            if alike.get().is_empty() {
                alike.remove();
            }
        }
    }

    /// Marks every chunk that `manifest` names.
    pub fn scan(&mut self, manifest: &[u8]) {
        let Self { candidates, named, new } = self;
        candidates.find(manifest, &mut |hash| {
            if named.insert(*hash) {
                new.push(*hash);
            }
        });
    }

    /// Calls `found` with every chunk that `manifest` names, at least once for each.
    pub fn find(&self, manifest: &[u8], found: &mut dyn FnMut(&ChunkHash)) {
        self.candidates.find(manifest, found);
    }

    /// Marks a chunk that is known to be referred to.
    pub fn add(&mut self, hash: ChunkHash) {
        if self.named.insert(hash) {
            self.new.push(hash);
        }
    }

    /// Returns the chunks that were marked for the first time since the last call, so that a caller that scans one
    /// manifest at a time learns what each adds.
    pub fn take_new(&mut self) -> Vec<ChunkHash> {
        std::mem::take(&mut self.new)
    }

    /// Tells whether a chunk is marked.
    pub fn contains(&self, hash: &ChunkHash) -> bool {
        self.named.contains(hash)
    }
}

impl Candidates {
    fn find(&self, manifest: &[u8], found: &mut dyn FnMut(&ChunkHash)) {
        self.starts.find(manifest, &mut |start, rest| {
            let chunks = self.chunks.get(&key(start)).into_iter().flatten();
            chunks.filter(|hash| rest.starts_with(hash.as_bytes())).for_each(&mut *found);
        });
    }
}

/// A filter of the beginnings of hashes. It tells which positions in a manifest need a look-up; most do not.
/// It only grows. A removed hash costs unneeded look-ups.
#[derive(Clone, Debug)]
pub(super) struct Starts {
    /// One bit for each inserted key, by [`slot`].
    filter: Vec<u64>,
    /// The lengths of the keys, 1 to 8.
    lengths: BTreeSet<usize>,
}

/// The size of a filter in bits, as a power of two: 512 KiB, of which the system allocates only the touched pages. A
/// million hashes set 22 % of the bits.
const FILTER_BITS: u32 = 22;

pub(super) const KEY: usize = 8;

impl Default for Starts {
    fn default() -> Self {
        Self { filter: vec![0; 1 << (FILTER_BITS - 6)], lengths: BTreeSet::new() }
    }
}

impl Starts {
    pub(super) fn insert(&mut self, hash: &ChunkHash) -> u64 {
        self.lengths.insert(hash.as_bytes().len().min(KEY));
        let key = Self::key(hash);
        let (word, bit) = slot(key);
        self.filter[word] |= bit;
        key
    }

    fn key(hash: &ChunkHash) -> u64 {
        key(&hash.as_bytes()[..hash.as_bytes().len().min(KEY)])
    }

    /// Calls `visit` for each position where a hash may stand in a manifest, raw or as hex. It passes the hash's
    /// beginning, which is the whole hash if that is shorter than [`KEY`], and everything from that position on.
    /// Beginnings of one or two bytes are visited once, since a manifest may consist of nothing else.
    pub(super) fn find(&self, manifest: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) {
        let mut visited = Visited::default();
        each_start(manifest, |rest| {
            for &len in &self.lengths {
                let Some(start) = rest.get(..len) else {
                    break;
                };
                let (word, bit) = slot(key(start));
                if self.filter[word] & bit != 0 && visited.is_first(start) {
                    visit(start, rest);
                }
            }
        });
    }
}

#[derive(Default)]
struct Visited(Vec<bool>);

impl Visited {
    fn is_first(&mut self, start: &[u8]) -> bool {
        let at = match *start {
            [a] => usize::from(a),
            [a, b] => 256 + usize::from(u16::from_le_bytes([a, b])),
            _ => return true,
        };
        if self.0.is_empty() {
            self.0 = vec![false; 256 + 65_536];
        }
        !std::mem::replace(&mut self.0[at], true)
    }
}

/// Calls `visit` with the rest of a manifest from each position where a hash may stand, raw or as hex.
fn each_start(manifest: &[u8], mut visit: impl FnMut(&[u8])) {
    let mut each = |bytes: &[u8]| (0..bytes.len()).for_each(|at| visit(&bytes[at..]));
    each(manifest);
    // Decode each run of hex digits twice, from its first and from its second digit, because a hash may begin at
    // either.
    let mut decoded = Vec::new();
    for run in manifest.split(|byte| !byte.is_ascii_hexdigit()) {
        for from in 0..run.len().min(2) {
            decoded.clear();
            decoded.extend(run[from..].chunks_exact(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])));
            each(&decoded);
        }
    }
}

/// Returns up to eight bytes as a number. Shorter ones include their length, to keep them distinct.
fn key(start: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..start.len()].copy_from_slice(start);
    let key = u64::from_le_bytes(bytes);
    match start.len() {
        8 => key,
        len => key | (len as u64) << 56,
    }
}

/// Returns the filter's word and bit of a key. The keys need not be hashes, so the multiplication spreads them.
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

    /// Does what the scan does, without an index: looks for the hash's bytes and hex digits.
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
        let named: Vec<usize> = (0..100).filter(|&n| references.contains(&hashes[n])).collect();
        assert_eq!(named, [3, 5, 7]);
        assert_eq!(references.take_new(), [hashes[5], hashes[7]]);
    }

    fn visits(hashes: &[ChunkHash], manifest: &[u8]) -> usize {
        let mut starts = Starts::default();
        for hash in hashes {
            starts.insert(hash);
        }
        let mut visits = 0;
        starts.find(manifest, &mut |_, _| visits += 1);
        visits
    }

    #[test]
    fn most_bytes_of_a_manifest_cost_no_look_up() {
        let mut manifest = vec![0; 1 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut manifest);
        let digests = |count: u32| -> Vec<ChunkHash> {
            let digests = (0..count).map(|n| blake3::hash(&n.to_le_bytes()).into());
            digests.collect()
        };
        let few = visits(&digests(1000), &manifest);
        assert!(few < 1000, "{few}");
        let hash = |bytes: &[u8]| ChunkHash::new(bytes).unwrap();
        let bytes: Vec<_> = (0..=255).map(|byte| hash(&[byte])).collect();
        assert_eq!(visits(&bytes, &manifest), 256);
        let pairs: Vec<_> = (0..=255).map(|byte| hash(&[byte, 7])).collect();
        let both = visits(&[bytes, pairs].concat(), &manifest);
        assert!((512..2000).contains(&both), "{both}");
    }
}

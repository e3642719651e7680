//! Keys of saved prefixes: a chain of hashes over the tokens, with one key for each token chunk.
//!
//! ```text
//! K(0) = BLAKE3 derive_key("transload archive 2 prefix") of
//!        fingerprint of the cache, model, weights, engine?, its version?, adapter?, salt?, embeddings?
//! K(i) = BLAKE3 derive_key("transload archive 2 token chunk") of
//!        K(i-1), 256 token ids, the multimodal items that begin among them
//! ```
//!
//! So K(i) identifies the first 256 * i tokens and everything else that determines the cache's content. It cannot be
//! guessed without the salt. Integers are little-endian, and token ids are `u32`. A text is its length as a `u64`, then
//! its bytes. An optional value is 0, or 1 and the value. A list begins with its length as a `u64`.

use std::fmt;

use blake3::Hasher;
use serde::{Deserialize, Serialize};
use transload_store::ManifestName;

use crate::origin::{ComputedBy, Sharing};

/// The number of tokens in a token chunk, whatever the block sizes of engines.
///
/// Saved prefixes end at multiples of it, so a request recomputes half of it on average. With fewer tokens, pieces
/// would be small (64 tokens of 128-byte keys for a head and 8 layers are 64 KiB). With more tokens, whole token chunks
/// would be rare.
pub const TOKEN_CHUNK: u64 = 256;

/// The prefix of the names of all manifests of an archive.
pub const NAMES: &str = "transload.archive/2/";

const PREFIX: &str = "transload archive 2 prefix";
const LINK: &str = "transload archive 2 token chunk";

/// The key of a prefix of whole token chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PrefixKey(pub [u8; 32]);

impl PrefixKey {
    /// Returns the name of this prefix's root manifest.
    pub fn root_name(&self) -> ManifestName {
        ManifestName::new(format!("{NAMES}{self}")).expect("84 characters of ASCII")
    }
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixKey({self})")
    }
}

/// The identity of the model that computed a cache. Caches with the same identity are interchangeable, token for token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Model {
    /// The operator's name for the model.
    pub name: String,
    /// A revision, or a digest of the files, that distinguishes the model's weights from others with that name.
    pub weights: String,
    pub(crate) computed_by: Option<ComputedBy>,
    sharing: Sharing,
}

impl Model {
    /// Identifies a model by name and weights, whatever engine computes it.
    pub fn new(name: impl Into<String>, weights: impl Into<String>) -> Self {
        Self { name: name.into(), weights: weights.into(), computed_by: None, sharing: Sharing::Any }
    }

    /// Sets the engine that computes the cache, and how much another engine must have in common with it to find the
    /// cache. All servers that share a store must use the same `sharing`, or they do not find each other's prefixes.
    #[must_use]
    pub fn with_engine(mut self, computed_by: ComputedBy, sharing: Sharing) -> Self {
        self.computed_by = Some(computed_by);
        self.sharing = sharing;
        self
    }

    pub(crate) fn digest(&self, fingerprint: &[u8; 32]) -> [u8; 32] {
        let mut hasher = Hasher::new_derive_key("transload archive 2 model");
        self.identify(&mut hasher, fingerprint);
        *hasher.finalize().as_bytes()
    }

    fn identify(&self, hasher: &mut Hasher, fingerprint: &[u8; 32]) {
        hasher.update(fingerprint);
        text(hasher, self.name.as_bytes());
        text(hasher, self.weights.as_bytes());
        let shared = self.computed_by.as_ref().map(|by| self.sharing.of(by));
        let (engine, version) = shared.unwrap_or_default();
        optional(hasher, engine.map(str::as_bytes));
        optional(hasher, version.map(str::as_bytes));
    }
}

/// A prompt: its token ids, and everything else that determines the content of its cache.
#[derive(Clone, Debug)]
#[must_use]
pub struct Prompt<'a> {
    tokens: &'a [u32],
    adapter: Option<&'a [u8]>,
    salt: Option<&'a [u8]>,
    embeddings: Option<[u8; 32]>,
    /// Position, length and identifier of each item.
    multimodal: Vec<(u64, u64, &'a [u8])>,
}

impl<'a> Prompt<'a> {
    /// Returns a prompt of these tokens, which begin with the sequence's first.
    pub fn new(tokens: &'a [u32]) -> Self {
        Self { tokens, adapter: None, salt: None, embeddings: None, multimodal: Vec::new() }
    }

    /// Sets the adapter (LoRA) that computes the prompt. No adapter differs from an empty name.
    pub fn adapter(mut self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.adapter = Some(id.as_ref());
        self
    }

    /// Sets the tenant's secret. Without it, nobody can tell from a prompt which names its prefixes have. It does not
    /// protect from those who may list the store.
    pub fn salt(mut self, salt: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.salt = Some(salt.as_ref());
        self
    }

    /// Sets the BLAKE3-256 (or another 256-bit) digest of the prompt embeddings, if the prompt has any.
    pub fn embeddings(mut self, digest: [u8; 32]) -> Self {
        self.embeddings = Some(digest);
        self
    }

    /// Adds an image, sound or other item whose placeholder covers `length` tokens from `position` on. The order of
    /// calls does not matter.
    pub fn multimodal(mut self, identifier: &'a (impl AsRef<[u8]> + ?Sized), position: u64, length: u64) -> Self {
        self.multimodal.push((position, length, identifier.as_ref()));
        self
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Tells whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns K(0) to K(n) for n whole token chunks.
    pub(crate) fn chain(&self, fingerprint: &[u8; 32], model: &Model) -> Vec<PrefixKey> {
        let mut hasher = Hasher::new_derive_key(PREFIX);
        model.identify(&mut hasher, fingerprint);
        optional(&mut hasher, self.adapter);
        optional(&mut hasher, self.salt);
        match &self.embeddings {
            None => hasher.update(&[0]),
            Some(digest) => hasher.update(&[1]).update(digest),
        };
        let mut key = *hasher.finalize().as_bytes();
        let mut items = self.multimodal.clone();
        items.sort_unstable();
        let mut items = items.as_slice();
        let mut keys = vec![PrefixKey(key)];
        for (index, chunk) in self.tokens.chunks_exact(TOKEN_CHUNK as usize).enumerate() {
            let end = (index as u64 + 1) * TOKEN_CHUNK;
            let mut hasher = Hasher::new_derive_key(LINK);
            hasher.update(&key);
            let mut ids = [0; 4 * TOKEN_CHUNK as usize];
            for (bytes, token) in ids.chunks_exact_mut(4).zip(chunk) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&ids);
            let (here, later) = items.split_at(items.partition_point(|item| item.0 < end));
            items = later;
            hasher.update(&(here.len() as u64).to_le_bytes());
            for (position, length, identifier) in here {
                hasher.update(&position.to_le_bytes());
                hasher.update(&length.to_le_bytes());
                text(&mut hasher, identifier);
            }
            key = *hasher.finalize().as_bytes();
            keys.push(PrefixKey(key));
        }
        keys
    }
}

fn optional(hasher: &mut Hasher, value: Option<&[u8]>) {
    match value {
        None => {
            hasher.update(&[0]);
        }
        Some(value) => {
            hasher.update(&[1]);
            text(hasher, value);
        }
    }
}

pub(crate) fn text(hasher: &mut Hasher, value: &[u8]) {
    hasher.update(&(value.len() as u64).to_le_bytes());
    hasher.update(value);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use transload_store::internal::is_leftover;

    use super::*;

    fn last(prompt: Prompt<'_>, model: &Model) -> PrefixKey {
        *prompt.chain(&[7; 32], model).last().unwrap()
    }

    /// A store's collection removes by name what no archive of this version needs.
    #[test]
    fn stores_know_these_names() {
        let digest = "0f".repeat(32);
        assert!(is_leftover(&format!("{NAMES}part/{digest}")));
        assert!(!is_leftover(&format!("{NAMES}{digest}")));
        assert!(is_leftover(&format!("transload.archive/1/{digest}")));
    }

    #[test]
    fn a_prefix_has_the_same_keys_in_every_longer_prompt() {
        let tokens: Vec<u32> = (0..2000).collect();
        let model = Model::new("m", "w");
        let long = Prompt::new(&tokens).chain(&[0; 32], &model);
        let short = Prompt::new(&tokens[..800]).chain(&[0; 32], &model);
        assert_eq!((long.len(), short.len()), (8, 4));
        assert_eq!(long[..4], short);
    }

    #[test]
    fn everything_that_decides_the_content_counts() {
        let tokens: Vec<u32> = (0..512).collect();
        let mut other = tokens.clone();
        other[3] = 9;
        let model = Model::new("m", "w");
        let all = || Prompt::new(&tokens);
        let keys = [
            last(all(), &model),
            last(Prompt::new(&other), &model),
            last(Prompt::new(&tokens[..511]), &model),
            last(all(), &Model::new("m", "v")),
            last(all(), &Model::new("n", "w")),
            last(all().adapter(""), &model),
            last(all().adapter("a"), &model),
            last(all().salt("a"), &model),
            last(all().embeddings([0; 32]), &model),
            last(all().multimodal("a", 0, 4), &model),
            last(all().multimodal("a", 1, 4), &model),
            last(all().multimodal("a", 0, 5), &model),
            last(all().multimodal("a", 300, 4), &model),
            last(all().multimodal("a", 0, 4).multimodal("b", 9, 1), &model),
            *Prompt::new(&tokens).chain(&[8; 32], &model).last().unwrap(),
        ];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn engines_share_what_the_setting_says() {
        let tokens: Vec<u32> = (0..256).collect();
        let key = |engine: &str, version: &str, sharing| {
            let by = ComputedBy::new(engine, version);
            let model = Model::new("m", "w").with_engine(by, sharing);
            let bound = model.digest(&[7; 32]);
            (last(Prompt::new(&tokens), &model), bound)
        };
        use Sharing::{Any, Engine, Version};
        let ours = |sharing| key("vllm", "0.32.0", sharing);
        for (engine, version, shared) in [
            ("vllm", "0.32.1+cpu", [Any, Engine, Version].as_slice()),
            ("vllm", "0.33.0", &[Any, Engine]),
            ("sglang", "0.32.0", &[Any]),
        ] {
            for sharing in [Any, Engine, Version] {
                let same = key(engine, version, sharing) == ours(sharing);
                assert_eq!(same, shared.contains(&sharing), "{engine} {version} {sharing}");
            }
        }
        let unsaid = Model::new("m", "w");
        let unsaid = (last(Prompt::new(&tokens), &unsaid), unsaid.digest(&[7; 32]));
        assert_eq!(ours(Any), unsaid, "nothing of the engine counts");
        // A setting is never mistaken for another one.
        assert_ne!(ours(Engine), key("vllm", "", Version));
    }

    #[test]
    fn items_count_from_the_chunk_they_begin_in() {
        let tokens: Vec<u32> = (0..768).collect();
        let model = Model::new("m", "w");
        let plain = Prompt::new(&tokens).chain(&[0; 32], &model);
        let keys = Prompt::new(&tokens)
            .multimodal("late", 900, 4)
            .multimodal("b", 700, 4)
            .multimodal("a", 300, 400)
            .chain(&[0; 32], &model);
        assert_eq!(keys[..2], plain[..2]);
        assert_ne!(keys[2], plain[2]);
        let sorted = Prompt::new(&tokens).multimodal("a", 300, 400).multimodal("b", 700, 4);
        assert_eq!(sorted.chain(&[0; 32], &model), keys, "an item behind the tokens has no part in them");
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let tokens: Vec<u32> = (0..256).collect();
        let mut bytes = vec![7; 32];
        for text in ["m", "w"] {
            bytes.extend(1_u64.to_le_bytes());
            bytes.extend(text.bytes());
        }
        for engine in ["vllm", "0.32"] {
            bytes.push(1);
            bytes.extend((engine.len() as u64).to_le_bytes());
            bytes.extend(engine.bytes());
        }
        bytes.extend([0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"sa");
        bytes.push(0);
        let first = blake3::derive_key(PREFIX, &bytes);
        let mut bytes = first.to_vec();
        tokens.iter().for_each(|t| bytes.extend(t.to_le_bytes()));
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend(5_u64.to_le_bytes());
        bytes.extend(9_u64.to_le_bytes());
        bytes.extend(2_u64.to_le_bytes());
        bytes.extend(b"im");
        let prompt = Prompt::new(&tokens).salt("sa").multimodal("im", 5, 9);
        let by = ComputedBy::new("vllm", "0.32.1");
        let model = Model::new("m", "w").with_engine(by, Sharing::Version);
        let keys = prompt.chain(&[7; 32], &model);
        assert_eq!(keys, [PrefixKey(first), PrefixKey(blake3::derive_key(LINK, &bytes))]);
    }
}

//! The digest of a cache's content. A lease is bound to it, and a pull must state it.
//!
//! Blocks are only valid for the tokens that they were computed from. By this digest, a pull for other content than the
//! lease's is refused before any byte moves: its reference was mixed up, reused, or outlived its request.
//!
//! **Canonical encoding.** BLAKE3 in key derivation mode, context
//! `transload 1 content of a KV cache`, over:
//!
//! | bytes | content |
//! |---|---|
//! | `u64` | number of tokens |
//! | `u32` each | token ids |
//! | 0, or 1 `bytes` | adapter |
//! | `u64` | number of multimodal items |
//! | `u64` `u64` `bytes` each | position and length in tokens, identifier; ascending |
//! | 0, or 1 `bytes` | cache salt |
//! | 0, or 1 and 32 bytes | digest of the prompt embeddings |
//!
//! Integers are little-endian. `bytes` is a `u64` length and that many bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

const CONTEXT: &str = "transload 1 content of a KV cache";
const FINGERPRINT: &str = "transload 1 fingerprint of content in logs";

/// The BLAKE3-256 of everything that determines the content of a request's blocks.
///
/// Stating it proves knowledge of the content, so it is a secret of those who have it. It is compared in constant time
/// and never printed. Logs show its [`fingerprint`](Self::fingerprint).
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct ContentDigest(pub [u8; 32]);

impl ContentDigest {
    /// Returns a number for logs. It shows that two agents with the same `secret` (the cluster's) mean the same
    /// content. It proves nothing, and reveals nothing without the secret.
    pub fn fingerprint(&self, secret: &[u8; 32]) -> ContentFingerprint {
        let mut hasher = blake3::Hasher::new_derive_key(FINGERPRINT);
        hasher.update(secret).update(&self.0);
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        ContentFingerprint(u64::from_le_bytes(bytes))
    }
}

impl PartialEq for ContentDigest {
    /// Compares in constant time, so that the time of a refusal does not tell how much of a guess was right.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for ContentDigest {}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentDigest(..)")
    }
}

/// The form of a [`ContentDigest`] in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentFingerprint(u64);

impl fmt::Display for ContentFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Describes why content cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ContentError {
    /// There are fewer token ids than valid tokens.
    #[error("{valid} tokens are said to be valid, but only {given} token ids were given")]
    MissingTokens { valid: u64, given: u64 },
}

/// Describes the content of a request's blocks, for its [`ContentDigest`].
///
/// ```
/// use transload_plan::content::Content;
///
/// let prompt = [1, 15043, 3186, 29991];
/// // A recurrent model stops one token short, since decode computes the last one again.
/// let digest = Content::first(3, &prompt)?
///     .adapter("lora-7")
///     .multimodal("sha256:5f0e", 1, 2)
///     .digest();
/// assert_eq!(digest, Content::first(3, &prompt[..3])?.multimodal("sha256:5f0e", 1, 2).adapter("lora-7").digest());
/// # Ok::<(), transload_plan::content::ContentError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Content<'a> {
    tokens: &'a [u32],
    adapter: Option<&'a [u8]>,
    multimodal: Vec<(u64, u64, &'a [u8])>,
    cache_salt: Option<&'a [u8]>,
    prompt_embeddings: Option<[u8; 32]>,
}

impl<'a> Content<'a> {
    /// Describes the first `valid` of `tokens`, whose keys, values or states the blocks hold.
    pub fn first(valid: u64, tokens: &'a [u32]) -> Result<Self, ContentError> {
        let missing = ContentError::MissingTokens { valid, given: tokens.len() as u64 };
        let valid = usize::try_from(valid).map_err(|_| missing.clone())?;
        Ok(Self {
            tokens: tokens.get(..valid).ok_or(missing)?,
            adapter: None,
            multimodal: Vec::new(),
            cache_salt: None,
            prompt_embeddings: None,
        })
    }

    /// Sets the adapter (LoRA) that computed the content. No adapter differs from an empty name.
    pub fn adapter(mut self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.adapter = Some(id.as_ref());
        self
    }

    /// Adds an image, sound or other item whose placeholder covers `length` tokens from `position` on.
    ///
    /// The order of calls does not matter. An item that begins after the valid tokens did not affect them and is left
    /// out.
    pub fn multimodal(mut self, identifier: &'a (impl AsRef<[u8]> + ?Sized), position: u64, length: u64) -> Self {
        if position < self.tokens.len() as u64 {
            self.multimodal.push((position, length, identifier.as_ref()));
        }
        self
    }

    /// Sets the salt that separates this request's cache from others.
    pub fn cache_salt(mut self, salt: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.cache_salt = Some(salt.as_ref());
        self
    }

    /// Sets the BLAKE3-256 (or another 256-bit) digest of the prompt embeddings, if the prompt has any.
    pub fn prompt_embeddings(mut self, digest: [u8; 32]) -> Self {
        self.prompt_embeddings = Some(digest);
        self
    }

    /// Returns the digest of the content.
    #[must_use]
    pub fn digest(mut self) -> ContentDigest {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&(self.tokens.len() as u64).to_le_bytes());
        // Hash in pieces that fit the stack: BLAKE3 is slow when fed four bytes at a time.
        for piece in self.tokens.chunks(1024) {
            let mut bytes = [0; 4096];
            for (to, token) in bytes.chunks_exact_mut(4).zip(piece) {
                to.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..piece.len() * 4]);
        }
        optional(&mut hasher, self.adapter);
        self.multimodal.sort_unstable();
        hasher.update(&(self.multimodal.len() as u64).to_le_bytes());
        for (position, length, identifier) in &self.multimodal {
            hasher.update(&position.to_le_bytes());
            hasher.update(&length.to_le_bytes());
            bytes(&mut hasher, identifier);
        }
        optional(&mut hasher, self.cache_salt);
        match &self.prompt_embeddings {
            None => hasher.update(&[0]),
            Some(digest) => hasher.update(&[1]).update(digest),
        };
        ContentDigest(*hasher.finalize().as_bytes())
    }
}

fn optional(hasher: &mut blake3::Hasher, value: Option<&[u8]>) {
    hasher.update(&[u8::from(value.is_some())]);
    if let Some(value) = value {
        bytes(hasher, value);
    }
}

fn bytes(hasher: &mut blake3::Hasher, value: &[u8]) {
    hasher.update(&(value.len() as u64).to_le_bytes());
    hasher.update(value);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn plain(tokens: &[u32]) -> Content<'_> {
        Content::first(tokens.len() as u64, tokens).unwrap()
    }

    #[test]
    fn everything_that_identifies_content_counts() {
        let tokens: Vec<u32> = (0..3000).collect();
        let all = || plain(&tokens);
        let digests = [
            all().digest(),
            Content::first(2999, &tokens).unwrap().digest(),
            all().adapter("").digest(),
            all().adapter("a").digest(),
            all().cache_salt("a").digest(),
            all().multimodal("a", 0, 1).digest(),
            all().multimodal("a", 1, 1).digest(),
            all().multimodal("a", 0, 2).digest(),
            all().multimodal("a", 0, 1).multimodal("b", 9, 1).digest(),
            all().prompt_embeddings([0; 32]).digest(),
            plain(&[]).digest(),
        ];
        let distinct: HashSet<_> = digests.iter().map(|digest| digest.0).collect();
        assert_eq!(distinct.len(), digests.len());
    }

    #[test]
    fn only_a_keyed_fingerprint_is_printed() {
        let digest = plain(&[1, 2, 3]).digest();
        let print = |secret| digest.fingerprint(&[secret; 32]).to_string();
        assert_eq!(format!("{digest:?}"), "ContentDigest(..)");
        assert_eq!(print(1), print(1));
        assert_ne!(print(1), print(2));
        assert_ne!(print(1), plain(&[1, 2]).digest().fingerprint(&[1; 32]).to_string());
    }

    #[test]
    fn tokens_behind_the_valid_ones_and_the_order_of_calls_do_not_count() {
        let digest = Content::first(2, &[1, 2, 3])
            .unwrap()
            .multimodal("b", 1, 1)
            .multimodal("late", 2, 1)
            .multimodal("a", 0, 1)
            .digest();
        let other = plain(&[1, 2]).multimodal("a", 0, 1).multimodal("b", 1, 1);
        assert_eq!(digest, other.digest());
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let tokens: Vec<u32> = (0..1500).collect();
        let mut bytes = 1500u64.to_le_bytes().to_vec();
        tokens.iter().for_each(|t| bytes.extend(t.to_le_bytes()));
        bytes.extend([1, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"ad");
        bytes.extend(0u64.to_le_bytes());
        bytes.extend([0, 1]);
        bytes.extend([9; 32]);
        let digest = plain(&tokens).adapter("ad").prompt_embeddings([9; 32]).digest();
        assert_eq!(digest.0, blake3::derive_key(CONTEXT, &bytes));
    }

    #[test]
    fn missing_tokens_are_an_error() {
        let error = Content::first(4, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, ContentError::MissingTokens { valid: 4, given: 3 });
    }
}

//! Parsing of a file in memory, without copies and allocations.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

use super::cursor::{Cursor, Tokens};
use super::error::KvcError;
use super::key::CacheKey;
use super::names::{FingerprintMode, QuantType, SaveReason};
use super::tlv::{self, Fields};

pub(super) const FIXED: usize = 72;
const HEADER: usize = 48;

/// A file in memory with a valid head. [`verify`](Self::verify) checks its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kvc<'a> {
    /// Everything except the payload.
    pub info: Info<'a>,
    /// The payload, borrowed from the file.
    pub payload: &'a [u8],
}

/// Parses a whole file without checking its payload.
///
/// # Errors
/// The first error found. CRC and key are not checked: see [`Kvc::verify`].
pub fn parse(file: &[u8]) -> Result<Kvc<'_>, KvcError> {
    let info = Info::parse(file, file.len() as u64)?;
    let end = info.payload_offset + info.payload_length;
    // Neither overflows: the info was checked against the file's length.
    let payload = file
        .get(info.payload_offset as usize..)
        .ok_or(KvcError::Truncated { end: end.into(), len: file.len() as u64 })?;
    Ok(Kvc { info, payload })
}

impl Kvc<'_> {
    /// Checks the payload's CRC, and then the key if one is passed.
    ///
    /// # Errors
    /// [`KvcError::CrcMismatch`], [`KvcError::KeyMismatch`].
    pub fn verify(&self, key: Option<&CacheKey>) -> Result<(), KvcError> {
        let mut sum = PayloadSum::new();
        sum.update(self.payload);
        self.info.check_payload(&sum)?;
        key.map_or(Ok(()), |key| self.info.check_key(key))
    }
}

/// The fields of a file, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info<'a> {
    /// The version, always 1.
    pub version: u8,
    /// The bits of the cache's elements, as the writer recorded them.
    pub quant_bits: u8,
    /// The reason for saving.
    pub save_reason: SaveReason,
    /// The header's count of tokens, which nothing checks. [`tokens`](Self::tokens) has the real ones.
    pub cached_token_count: u32,
    /// The number of times that the file was loaded.
    pub hit_count: u32,
    /// The size in tokens of the context.
    pub context_size: u32,
    /// The time of creation, in seconds since 1970.
    pub creation_time: u64,
    /// The time of the last use, in seconds since 1970.
    pub last_used_time: u64,
    /// The payload's length in the header, equal to [`payload_length`](Self::payload_length).
    pub payload_byte_count: u64,
    /// The payload's offset from the start of the file. The payload ends where the file does.
    pub payload_offset: u64,
    /// The payload's length in bytes.
    pub payload_length: u64,
    /// The expected CRC32C (Castagnoli) of the payload.
    pub payload_crc32c: u32,
    /// The prompt or a part of it, for display; usually UTF-8. It is not part of the key.
    pub prompt_text: &'a [u8],
    /// The model's fingerprint.
    pub fingerprint: [u8; 32],
    /// The way in which the fingerprint was computed.
    pub fingerprint_mode: FingerprintMode,
    /// The model's quantisation.
    pub quant_type: QuantType,
    /// The hash of the context parameters that affect the cache's content.
    pub ctx_params_hash: [u8; 32],
    /// The tokens of the cached sequence.
    pub tokens: Tokens<'a>,
    /// The host that saved the file.
    pub hostname: Option<&'a [u8]>,
    /// The version of erllama that saved it.
    pub erllama_version: Option<&'a [u8]>,
    /// Details of the save reason.
    pub save_reason_detail: Option<&'a [u8]>,
}

impl<'a> Info<'a> {
    /// Parses a file of `file_len` bytes. `head` is its beginning: all of it, or everything up to the end of the TLV
    /// section.
    pub(super) fn parse(head: &'a [u8], file_len: u64) -> Result<Self, KvcError> {
        let mut from = Cursor::new(head);
        let header: Option<&[u8; HEADER]> = from.array();
        let header = header.filter(|header| header.starts_with(b"KVC"));
        let header = header
            .ok_or_else(|| KvcError::BadHeader { len: file_len, start: head.iter().take(3).copied().collect() })?;
        let &[_, _, _, version, quant_bits, reason, ..] = header;
        if version != 1 {
            return Err(KvcError::UnsupportedVersion { found: version });
        }
        let save_reason = SaveReason::from_byte(reason).ok_or(KvcError::UnknownSaveReason { found: reason })?;
        let trailer: Option<&[u8; FIXED - HEADER]> = from.array();
        let trailer = trailer.ok_or(KvcError::BadTrailer { len: file_len })?;
        let prompt_text = section(&mut from, "prompt", file_len)?;
        let records = section(&mut from, "TLV", file_len)?;
        let fields = Fields::read(records, from.at() - records.len())?;

        let payload_byte_count = u64_at(header, 40);
        let [payload_offset, payload_length] = [0, 8].map(|at| u64_at(trailer, at));
        check_lengths(payload_byte_count, payload_offset, payload_length, file_len)?;
        Ok(Self {
            version,
            quant_bits,
            save_reason,
            cached_token_count: u32_at(header, 8),
            hit_count: u32_at(header, 12),
            context_size: u32_at(header, 16),
            creation_time: u64_at(header, 24),
            last_used_time: u64_at(header, 32),
            payload_byte_count,
            payload_offset,
            payload_length,
            payload_crc32c: u32_at(trailer, 16),
            prompt_text,
            // Keep this order: the error names the first missing field.
            fingerprint: required(fields.fingerprint, tlv::FINGERPRINT, "fingerprint", "32 bytes")?,
            fingerprint_mode: required(fields.fingerprint_mode, tlv::FINGERPRINT_MODE, "fingerprint_mode", "1 byte")?,
            quant_type: required(fields.quant_type, tlv::QUANT_TYPE, "quant_type", "1 byte")?,
            ctx_params_hash: required(fields.ctx_params_hash, tlv::CTX_PARAMS_HASH, "ctx_params_hash", "32 bytes")?,
            tokens: required(fields.tokens, tlv::TOKEN_IDS, "tokens", "4 bytes a token")?,
            hostname: fields.hostname,
            erllama_version: fields.erllama_version,
            save_reason_detail: fields.save_reason_detail,
        })
    }

    /// Computes the key of the sequence.
    pub fn key(&self) -> CacheKey {
        CacheKey::new(&self.fingerprint, self.quant_type, &self.ctx_params_hash, self.tokens.iter())
    }

    /// Checks that the file has this key.
    ///
    /// # Errors
    /// [`KvcError::KeyMismatch`].
    pub fn check_key(&self, expected: &CacheKey) -> Result<(), KvcError> {
        let actual = self.key();
        match actual == *expected {
            true => Ok(()),
            false => Err(KvcError::KeyMismatch { expected: *expected, actual }),
        }
    }

    /// Checks that a payload that was read in pieces is the one that was saved.
    ///
    /// # Errors
    /// [`KvcError::Truncated`] or [`KvcError::TrailingBytes`] if the file was truncated or extended after its head was
    /// read, and [`KvcError::CrcMismatch`].
    pub fn check_payload(&self, sum: &PayloadSum) -> Result<(), KvcError> {
        let end = self.payload_offset + self.payload_length;
        let len = self.payload_offset.saturating_add(sum.bytes());
        if len < end {
            let end = end.into();
            return Err(KvcError::Truncated { end, len });
        }
        if len > end {
            return Err(KvcError::TrailingBytes { end, len });
        }
        let (expected, actual) = (self.payload_crc32c, sum.crc32c());
        match expected == actual {
            true => Ok(()),
            false => Err(KvcError::CrcMismatch { expected, actual }),
        }
    }
}

/// The length and CRC32C of a payload, computed piece by piece.
#[derive(Clone)]
pub struct PayloadSum {
    digest: Digest,
    bytes: u64,
}

impl PayloadSum {
    /// Returns the sum of an empty payload.
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), bytes: 0 }
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.digest.update(piece);
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
    }

    /// Returns the bytes added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the CRC32C (Castagnoli) of all bytes.
    pub fn crc32c(&self) -> u32 {
        // The digest has 64 bits for other algorithms too. This CRC is the lower half.
        self.digest.finalize() as u32
    }
}

impl Default for PayloadSum {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PayloadSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadSum({} bytes, {:08x})", self.bytes, self.crc32c())
    }
}

fn section<'a>(from: &mut Cursor<'a>, name: &'static str, file_len: u64) -> Result<&'a [u8], KvcError> {
    let at = from.at() as u64;
    let bad = |len: Option<u32>, from: u64| KvcError::BadLengthPrefixedSection {
        name,
        at,
        len,
        left: file_len.saturating_sub(from),
    };
    let len = from.u32().ok_or_else(|| bad(None, at))?;
    let bytes = usize::try_from(len).ok().and_then(|len| from.take(len));
    bytes.ok_or_else(|| bad(Some(len), at + 4))
}

fn check_lengths(header: u64, offset: u64, trailer: u64, len: u64) -> Result<(), KvcError> {
    if header != trailer {
        return Err(KvcError::PayloadLengthMismatch { header, trailer });
    }
    let end = u128::from(offset) + u128::from(trailer);
    match u64::try_from(end) {
        Ok(end) if end == len => Ok(()),
        Ok(end) if end < len => Err(KvcError::TrailingBytes { end, len }),
        _ => Err(KvcError::Truncated { end, len }),
    }
}

fn required<T>(field: Option<T>, tag: u8, name: &'static str, size: &'static str) -> Result<T, KvcError> {
    field.ok_or(KvcError::MissingTlv { tag, name, size })
}

/// Returns the number at byte `at` of a header or trailer. Callers pass offsets inside these arrays.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(<[u8]>::first_chunk);
    number.map_or(0, |number| u32::from_le_bytes(*number))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

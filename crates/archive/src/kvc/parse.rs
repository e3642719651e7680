//! Reading a file that is in memory. Nothing is copied, and nothing is allocated.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

use super::cursor::{Cursor, Tokens};
use super::error::KvcError;
use super::key::CacheKey;
use super::names::{FingerprintMode, QuantType, SaveReason};
use super::tlv::{self, Fields};

/// Bytes of header and trailer, with which every file begins.
pub(super) const FIXED: usize = 72;
const HEADER: usize = 48;

/// A file in memory whose head is right. Its payload is not checked before [`verify`](Self::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kvc<'a> {
    /// Everything but the payload.
    pub info: Info<'a>,
    /// The payload, as it lies in the file.
    pub payload: &'a [u8],
}

/// Reads a whole file, without looking at its payload.
///
/// # Errors
/// The first thing that is wrong. CRC and key are not looked at: see [`Kvc::verify`].
pub fn parse(file: &[u8]) -> Result<Kvc<'_>, KvcError> {
    let info = Info::parse(file, file.len() as u64)?;
    let end = info.payload_offset + info.payload_length;
    // Both fit: the info was checked against the file's length.
    let payload = file
        .get(info.payload_offset as usize..)
        .ok_or(KvcError::Truncated { end: end.into(), len: file.len() as u64 })?;
    Ok(Kvc { info, payload })
}

impl Kvc<'_> {
    /// Checks the payload's CRC, and then the key where one is given.
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

/// Everything that a file says of itself, as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info<'a> {
    /// 1.
    pub version: u8,
    /// Bits of the cache's elements, as the writer saw it.
    pub quant_bits: u8,
    /// Why it was saved.
    pub save_reason: SaveReason,
    /// How many tokens there are, by the header. Those that count are [`tokens`](Self::tokens).
    pub cached_token_count: u32,
    /// How often it was loaded.
    pub hit_count: u32,
    /// Tokens of the context that it was saved from.
    pub context_size: u32,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// Seconds since 1970.
    pub last_used_time: u64,
    /// Bytes of the payload, by the header: equal to [`payload_length`](Self::payload_length).
    pub payload_byte_count: u64,
    /// Where the payload begins, in bytes from the start of the file. May be anywhere.
    pub payload_offset: u64,
    /// Bytes of the payload.
    pub payload_length: u64,
    /// CRC32C (Castagnoli) that the payload should have.
    pub payload_crc32c: u32,
    /// The prompt or a part of it, for people; mostly UTF-8. It is not part of the key.
    pub prompt_text: &'a [u8],
    /// Of the model.
    pub fingerprint: [u8; 32],
    /// How that was taken.
    pub fingerprint_mode: FingerprintMode,
    /// Of the model.
    pub quant_type: QuantType,
    /// Hash of those parameters of the context that decide over the cache's contents.
    pub ctx_params_hash: [u8; 32],
    /// The tokens whose cache this is.
    pub tokens: Tokens<'a>,
    /// Where it was saved.
    pub hostname: Option<&'a [u8]>,
    /// By which version.
    pub erllama_version: Option<&'a [u8]>,
    /// More about the save reason.
    pub save_reason_detail: Option<&'a [u8]>,
}

impl<'a> Info<'a> {
    /// Reads a file of `file_len` bytes, of which `head` are the first: all, or all up to the end of the TLV
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
            // In this order: the first that is missing is the one that is named.
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

    /// The key of the sequence, computed from the file.
    pub fn key(&self) -> CacheKey {
        CacheKey::new(&self.fingerprint, self.quant_type, &self.ctx_params_hash, self.tokens.iter())
    }

    /// Whether this is the file of that key.
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

    /// Whether a payload that was read piece by piece is the one that was saved.
    ///
    /// # Errors
    /// [`KvcError::Truncated`] if it is shorter than it was when its length was read (and with
    /// [`KvcError::TrailingBytes`] likewise), [`KvcError::CrcMismatch`].
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

/// Length and CRC32C of a payload that passes by in pieces.
#[derive(Clone)]
pub struct PayloadSum {
    digest: Digest,
    bytes: u64,
}

impl PayloadSum {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), bytes: 0 }
    }

    /// The next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.digest.update(piece);
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
    }

    /// How many bytes have passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// CRC32C (Castagnoli) of all of them.
    pub fn crc32c(&self) -> u32 {
        // The CRC is the lower half of what serves for 64 bits too.
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

/// The prompt, or all TLV records.
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

/// The number at byte `at` of a header or trailer, which is there: both are arrays.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(<[u8]>::first_chunk);
    number.map_or(0, |number| u32::from_le_bytes(*number))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

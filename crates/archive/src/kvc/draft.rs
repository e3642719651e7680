//! Writing of a file.

use std::io::{self, Write};

use super::key::CacheKey;
use super::names::{FingerprintMode, QuantType, SaveReason};
use super::parse::{FIXED, Info, PayloadSum};
use super::tlv;

/// A file to write, except for its payload, which need not be in memory.
///
/// Fields have the same widths as in the file, so no number wraps, as it does in erllama. There is no [`QuantType`] for
/// the byte that cannot be read again.
///
/// ```
/// # use transload_archive::kvc::{self, Draft, FingerprintMode, QuantType, SaveReason};
/// let draft = Draft::new([1; 32], FingerprintMode::Safe, QuantType::Q4KM, [2; 32], vec![1, 15043])
///     .with_save_reason(SaveReason::Finish)
///     .with_context_size(4096);
/// let mut file = Vec::new();
/// draft.write(b"the cache", &mut file)?;
///
/// let kvc = kvc::parse(&file)?;
/// kvc.verify(Some(&draft.key()))?;
/// assert_eq!(kvc.payload, b"the cache");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    quant_bits: u8,
    save_reason: SaveReason,
    hit_count: u32,
    context_size: u32,
    creation_time: u64,
    last_used_time: u64,
    prompt_text: Vec<u8>,
    fingerprint: [u8; 32],
    fingerprint_mode: FingerprintMode,
    quant_type: QuantType,
    ctx_params_hash: [u8; 32],
    tokens: Vec<u32>,
    hostname: Vec<u8>,
    erllama_version: Vec<u8>,
    save_reason_detail: Vec<u8>,
}

/// Describes why a draft cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The length of a section does not fit into its four bytes.
    #[error("the {section} section would have {bytes} bytes; {most} are the most", most = u32::MAX)]
    TooLong {
        /// `prompt` or `TLV`.
        section: &'static str,
        /// The section's length in bytes.
        bytes: u64,
    },
}

impl Draft {
    /// Returns the draft of a sequence. The save reason is `unknown`, and the other fields are zero or empty.
    pub fn new(
        fingerprint: [u8; 32],
        fingerprint_mode: FingerprintMode,
        quant_type: QuantType,
        ctx_params_hash: [u8; 32],
        tokens: Vec<u32>,
    ) -> Self {
        Self {
            quant_bits: 0,
            save_reason: SaveReason::Unknown,
            hit_count: 0,
            context_size: 0,
            creation_time: 0,
            last_used_time: 0,
            prompt_text: Vec::new(),
            fingerprint,
            fingerprint_mode,
            quant_type,
            ctx_params_hash,
            tokens,
            hostname: Vec::new(),
            erllama_version: Vec::new(),
            save_reason_detail: Vec::new(),
        }
    }

    /// Sets the reason for saving.
    pub fn with_save_reason(mut self, reason: SaveReason) -> Self {
        self.save_reason = reason;
        self
    }

    /// Sets the details of that reason. An empty text is omitted from the file.
    pub fn with_save_reason_detail(mut self, detail: impl Into<Vec<u8>>) -> Self {
        self.save_reason_detail = detail.into();
        self
    }

    /// Sets the bits of the cache's elements.
    pub fn with_quant_bits(mut self, bits: u8) -> Self {
        self.quant_bits = bits;
        self
    }

    /// Sets how often the file was loaded.
    pub fn with_hit_count(mut self, hits: u32) -> Self {
        self.hit_count = hits;
        self
    }

    /// Sets the size in tokens of the context.
    pub fn with_context_size(mut self, tokens: u32) -> Self {
        self.context_size = tokens;
        self
    }

    /// Sets the times of creation and last use, in seconds since 1970.
    pub fn with_times(mut self, creation: u64, last_used: u64) -> Self {
        self.creation_time = creation;
        self.last_used_time = last_used;
        self
    }

    /// Sets the prompt's text, for display.
    pub fn with_prompt_text(mut self, prompt: impl Into<Vec<u8>>) -> Self {
        self.prompt_text = prompt.into();
        self
    }

    /// Sets the host's name. An empty name is omitted from the file.
    pub fn with_hostname(mut self, hostname: impl Into<Vec<u8>>) -> Self {
        self.hostname = hostname.into();
        self
    }

    /// Sets erllama's version. An empty text is omitted from the file.
    pub fn with_erllama_version(mut self, version: impl Into<Vec<u8>>) -> Self {
        self.erllama_version = version.into();
        self
    }

    /// Returns the key of the file.
    pub fn key(&self) -> CacheKey {
        CacheKey::new(&self.fingerprint, self.quant_type, &self.ctx_params_hash, self.tokens.iter().copied())
    }

    /// Returns everything in front of the payload. The file is this followed by the payload.
    ///
    /// # Errors
    /// [`DraftError::TooLong`].
    pub fn prefix(&self, payload: &PayloadSum) -> Result<Vec<u8>, DraftError> {
        let records = self.records();
        let offset = FIXED + 4 + self.prompt_text.len() + 4 + records.len();
        let mut out = Vec::with_capacity(offset);
        out.extend(b"KVC\x01");
        out.extend([self.quant_bits, self.save_reason.byte(), 0, 0]);
        // If the number of tokens did not fit, their section would be too long, which is refused below.
        out.extend((self.tokens.len() as u32).to_le_bytes());
        out.extend(self.hit_count.to_le_bytes());
        out.extend(self.context_size.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.creation_time.to_le_bytes());
        out.extend(self.last_used_time.to_le_bytes());
        out.extend(payload.bytes().to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        out.extend(payload.bytes().to_le_bytes());
        out.extend(payload.crc32c().to_le_bytes());
        out.extend([0; 4]);
        section(&mut out, "prompt", &self.prompt_text)?;
        section(&mut out, "TLV", &records)?;
        Ok(out)
    }

    /// Writes the whole file.
    ///
    /// # Errors
    /// Errors of writing, and [`DraftError`] in one of kind [`io::ErrorKind::InvalidInput`].
    pub fn write(&self, payload: &[u8], to: &mut impl Write) -> io::Result<()> {
        let mut sum = PayloadSum::new();
        sum.update(payload);
        let prefix = self.prefix(&sum).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        to.write_all(&prefix)?;
        to.write_all(payload)
    }

    /// Encodes the records in erllama's order, which is not that of their tags.
    fn records(&self) -> Vec<u8> {
        let ids: Vec<u8> = self.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let count = (self.tokens.len() as u32).to_le_bytes();
        let records: [(u8, &[u8]); 9] = [
            (tlv::FINGERPRINT, &self.fingerprint),
            (tlv::FINGERPRINT_MODE, &[self.fingerprint_mode.byte()]),
            (tlv::QUANT_TYPE, &[self.quant_type.byte()]),
            (tlv::CTX_PARAMS_HASH, &self.ctx_params_hash),
            (tlv::TOKEN_ID_COUNT, &count),
            (tlv::TOKEN_IDS, &ids),
            (tlv::HOSTNAME, &self.hostname),
            (tlv::ERLLAMA_VERSION, &self.erllama_version),
            (tlv::SAVE_REASON_DETAIL, &self.save_reason_detail),
        ];
        let mut out = Vec::new();
        for (tag, value) in records {
            // An empty list of tokens is written. Other empty values are omitted.
            if value.is_empty() && tag != tlv::TOKEN_IDS {
                continue;
            }
            out.push(tag);
            // A value that is too long makes the section too long, which is refused as a whole.
            out.extend((value.len() as u32).to_le_bytes());
            out.extend(value);
        }
        out
    }
}

/// Converts a parsed file so that it can be written again. The result is byte for byte the same if erllama or this
/// module wrote it. Unknown TLVs, gaps and reserved bytes of other writers are lost.
impl From<&Info<'_>> for Draft {
    fn from(info: &Info<'_>) -> Self {
        let optional = |value: Option<&[u8]>| value.unwrap_or_default().to_vec();
        Self {
            quant_bits: info.quant_bits,
            save_reason: info.save_reason,
            hit_count: info.hit_count,
            context_size: info.context_size,
            creation_time: info.creation_time,
            last_used_time: info.last_used_time,
            prompt_text: info.prompt_text.to_vec(),
            fingerprint: info.fingerprint,
            fingerprint_mode: info.fingerprint_mode,
            quant_type: info.quant_type,
            ctx_params_hash: info.ctx_params_hash,
            tokens: info.tokens.iter().collect(),
            hostname: optional(info.hostname),
            erllama_version: optional(info.erllama_version),
            save_reason_detail: optional(info.save_reason_detail),
        }
    }
}

fn section(out: &mut Vec<u8>, section: &'static str, bytes: &[u8]) -> Result<(), DraftError> {
    let len = u32::try_from(bytes.len()).map_err(|_| DraftError::TooLong { section, bytes: bytes.len() as u64 })?;
    out.extend(len.to_le_bytes());
    out.extend(bytes);
    Ok(())
}

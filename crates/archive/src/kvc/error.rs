//! Errors in a KVC file.

use super::key::CacheKey;

/// The first error in a file, in the order of erllama's checks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvcError {
    /// The file has no complete header of 48 bytes that begins with `KVC`.
    #[error("{}", header(*len, start))]
    BadHeader {
        /// The file's length in bytes.
        len: u64,
        /// Its first bytes, at most three.
        start: Vec<u8>,
    },
    /// Byte 3 has an unknown version.
    #[error("byte 3 says version {found}; 1 is the only one there is")]
    UnsupportedVersion {
        /// The version found.
        found: u8,
    },
    /// Byte 5 has an unknown save reason.
    #[error("byte 5 says save reason {found}; there are 0 to 5")]
    UnknownSaveReason {
        /// The byte found.
        found: u8,
    },
    /// The file ends within the 24 bytes behind the header.
    #[error("the file has {len} bytes, too few for its header and trailer, which have 72")]
    BadTrailer {
        /// The file's length in bytes.
        len: u64,
    },
    /// The prompt or the TLV section is longer than the file.
    #[error("{}", section(name, *at, *len, *left))]
    BadLengthPrefixedSection {
        /// `prompt` or `TLV`.
        name: &'static str,
        /// The offset of its length in the file.
        at: u64,
        /// Its claimed length, or `None` if the length itself is truncated.
        len: Option<u32>,
        /// The bytes in the file after its length, or from `at` on if that is truncated.
        left: u64,
    },
    /// A TLV record extends beyond its section.
    #[error("the TLV record at byte {at} reaches over the end of its section, which is at byte {end}")]
    BadTlv {
        /// The record's offset in the file.
        at: u64,
        /// The section's end.
        end: u64,
    },
    /// TLV 02 has an unknown fingerprint mode.
    #[error("TLV 02 at byte {at} says fingerprint mode {found}; there are 0 to 2")]
    UnknownFingerprintMode {
        /// The byte found.
        found: u8,
        /// The record's offset in the file.
        at: u64,
    },
    /// TLV 03 has an unknown quant type.
    #[error("TLV 03 at byte {at} says quant type {found}; there are 0 to 29")]
    UnknownQuantByte {
        /// The byte found.
        found: u8,
        /// The record's offset in the file.
        at: u64,
    },
    /// Header and trailer give different lengths of the payload.
    #[error("the payload has {header} bytes by the header (byte 40) and {trailer} by the trailer (byte 56)")]
    PayloadLengthMismatch {
        /// payload_byte_count.
        header: u64,
        /// payload_length.
        trailer: u64,
    },
    /// The payload extends beyond the file.
    #[error("the payload ends at byte {end}, and the file has {len}: {} are missing", end - u128::from(*len))]
    Truncated {
        /// payload_offset + payload_length.
        end: u128,
        /// The file's length in bytes.
        len: u64,
    },
    /// The file continues after the payload.
    #[error("the payload ends at byte {end}, and the file has {len}: {} are too many", len - end)]
    TrailingBytes {
        /// payload_offset + payload_length.
        end: u64,
        /// The file's length in bytes.
        len: u64,
    },
    /// A required TLV is missing or has the wrong length.
    #[error("there is no TLV {tag:02x} ({name}) of {size}")]
    MissingTlv {
        /// The TLV's tag.
        tag: u8,
        /// The TLV's name.
        name: &'static str,
        /// The required length, in words.
        size: &'static str,
    },
    /// The payload is not the one that was saved.
    #[error("the payload has the CRC32C {actual:08x}; the trailer (byte 64) says {expected:08x}")]
    CrcMismatch {
        /// The checksum in the trailer.
        expected: u32,
        /// The computed checksum.
        actual: u32,
    },
    /// The file is that of another sequence, model or context.
    #[error("the file has the key {actual}, not {expected}")]
    KeyMismatch {
        /// The requested key.
        expected: CacheKey,
        /// The key computed from the file.
        actual: CacheKey,
    },
}

impl KvcError {
    /// The names of all errors in erllama.
    pub const CODES: [&str; 14] = [
        "bad_header",
        "unsupported_version",
        "unknown_save_reason",
        "bad_trailer",
        "bad_length_prefixed_section",
        "bad_tlv",
        "unknown_fingerprint_mode",
        "unknown_quant_byte",
        "payload_length_mismatch",
        "truncated",
        "trailing_bytes",
        "missing_tlv",
        "crc_mismatch",
        "key_mismatch",
    ];

    /// Returns the name of this error in erllama.
    pub const fn code(&self) -> &'static str {
        let index = match self {
            Self::BadHeader { .. } => 0,
            Self::UnsupportedVersion { .. } => 1,
            Self::UnknownSaveReason { .. } => 2,
            Self::BadTrailer { .. } => 3,
            Self::BadLengthPrefixedSection { .. } => 4,
            Self::BadTlv { .. } => 5,
            Self::UnknownFingerprintMode { .. } => 6,
            Self::UnknownQuantByte { .. } => 7,
            Self::PayloadLengthMismatch { .. } => 8,
            Self::Truncated { .. } => 9,
            Self::TrailingBytes { .. } => 10,
            Self::MissingTlv { .. } => 11,
            Self::CrcMismatch { .. } => 12,
            Self::KeyMismatch { .. } => 13,
        };
        Self::CODES[index]
    }
}

fn header(len: u64, start: &[u8]) -> String {
    if len < 48 {
        return format!("the file has {len} bytes, and the header of a KVC file alone has 48");
    }
    let start: String = start.iter().map(|byte| format!(" {byte:02x}")).collect();
    format!("the file begins with{start}; a KVC file begins with 4b 56 43 (`KVC`)")
}

fn section(name: &str, at: u64, len: Option<u32>, left: u64) -> String {
    match len {
        Some(len) => {
            format!("the {name} section at byte {at} claims {len} bytes, and {left} are left")
        }
        None => format!("the {name} section at byte {at} begins with its length in 4 bytes, and {left} are left"),
    }
}

//! KVC files: erllama's format for the cache of a sequence on disk ("KVC v2"; the version byte is 1).
//!
//! [`parse`] reads a file in memory and borrows from it. [`Head`] reads a file whose payload is too long for that.
//! [`Draft`] writes a file. The bytes and the order of the checks are erllama's, so the first error in a file has the same name here and there ([`KvcError::code`]).
//!
//! All numbers are little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 3 | `KVC` |
//! | 3 | 1 | version: 1 |
//! | 4 | 1 | quant_bits |
//! | 5 | 1 | [save reason](SaveReason) |
//! | 6 | 2 | reserved: written as 0, ignored |
//! | 8 | 4 | cached_token_count: the number of tokens; never checked |
//! | 12 | 4 | hit_count: rewritten in place by erllama |
//! | 16 | 4 | context_size |
//! | 20 | 4 | reserved |
//! | 24, 32 | 8, 8 | creation and last use, in seconds since 1970 |
//! | 40 | 8 | payload_byte_count |
//! | 48, 56 | 8, 8 | payload_offset, from the file's start; payload_length |
//! | 64 | 4 | CRC32C (Castagnoli) of the payload alone |
//! | 68 | 4 | reserved |
//! | 72 | 4 + n | n, and the prompt: any bytes, for people only |
//! | | 4 + n | n, and TLV records: tag (1 byte), length (4), value |
//! | payload_offset | payload_length | payload, up to the end of the file |
//!
//! A file is identified by its [key](CacheKey), not by its first bytes: files of other programs begin with `KVC` and
//! version 1 too, and give the same save reasons other meanings.

mod cursor;
mod draft;
mod error;
mod file;
mod key;
mod names;
mod parse;
mod tlv;

pub use cursor::Tokens;
pub use draft::{Draft, DraftError};
pub use error::KvcError;
pub use file::{Head, open_file};
pub use key::{CacheKey, KeyTextError};
pub use names::{FingerprintMode, QuantType, SaveReason, UnknownName};
pub use parse::{Info, Kvc, PayloadSum, parse};

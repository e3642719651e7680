//! KVC files: what erllama keeps of a sequence's cache on disk ("KVC v2"; the version byte is 1).
//!
//! [`parse`] reads what is in memory and borrows from it, [`Head`] reads a file whose payload is too long
//! for that, [`Draft`] writes, and [`Folder`] is the folder that an engine keeps them in. The bytes and the
//! order of the checks are those of erllama, so the first thing that is wrong with a file has the same
//! name here as there ([`KvcError::code`]).
//!
//! All numbers are little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 3 | `KVC` |
//! | 3 | 1 | version: 1 |
//! | 4 | 1 | quant_bits |
//! | 5 | 1 | [save reason](SaveReason) |
//! | 6 | 2 | reserved: written 0, ignored |
//! | 8 | 4 | cached_token_count: how many tokens; not checked by anybody |
//! | 12 | 4 | hit_count: [rewritten in place](set_hit_count) |
//! | 16 | 4 | context_size |
//! | 20 | 4 | reserved |
//! | 24, 32 | 8, 8 | creation and last use, in seconds since 1970 |
//! | 40 | 8 | payload_byte_count |
//! | 48, 56 | 8, 8 | payload_offset, from the file's start; payload_length |
//! | 64 | 4 | CRC32C (Castagnoli) of the payload alone |
//! | 68 | 4 | reserved |
//! | 72 | 4 + n | n, and the prompt: any bytes, for people only |
//! | | 4 + n | n, and TLV records: tag (1 byte), length (4), value |
//! | payload_offset | payload_length | payload: ends where the file ends |
//!
//! A file is known by its [key](CacheKey), not by its first bytes: `KVC` and a version of 1 begin the files
//! of other programs too, and there the same save reasons mean something else.

mod cursor;
mod draft;
mod error;
mod file;
mod folder;
mod key;
mod names;
mod parse;
mod tlv;

pub use cursor::Tokens;
pub use draft::{Draft, DraftError};
pub use error::KvcError;
pub use file::{Head, open_file, set_hit_count};
pub use folder::{Entry, Folder, FolderError, Published};
pub use key::{CacheKey, KeyTextError};
pub use names::{FingerprintMode, QuantType, SaveReason, UnknownName};
pub use parse::{Info, Kvc, PayloadSum, parse};

//! The tags of TLV records, and their parsing.

use super::cursor::{Cursor, Tokens};
use super::error::KvcError;
use super::names::{FingerprintMode, QuantType};

pub(super) const FINGERPRINT: u8 = 1;
pub(super) const FINGERPRINT_MODE: u8 = 2;
pub(super) const QUANT_TYPE: u8 = 3;
pub(super) const CTX_PARAMS_HASH: u8 = 4;
pub(super) const HOSTNAME: u8 = 5;
pub(super) const ERLLAMA_VERSION: u8 = 6;
pub(super) const SAVE_REASON_DETAIL: u8 = 7;
/// Written and never read: the length of the token ids gives the number.
pub(super) const TOKEN_ID_COUNT: u8 = 8;
pub(super) const TOKEN_IDS: u8 = 9;

/// The values of the records. If a tag occurs several times, the last valid value counts.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) fingerprint: Option<[u8; 32]>,
    pub(super) fingerprint_mode: Option<FingerprintMode>,
    pub(super) quant_type: Option<QuantType>,
    pub(super) ctx_params_hash: Option<[u8; 32]>,
    pub(super) tokens: Option<Tokens<'a>>,
    pub(super) hostname: Option<&'a [u8]>,
    pub(super) erllama_version: Option<&'a [u8]>,
    pub(super) save_reason_detail: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    pub(super) fn read(section: &'a [u8], start: usize) -> Result<Self, KvcError> {
        let mut fields = Self::default();
        let mut records = Cursor::new(section);
        while !records.is_at_end() {
            let at = (start + records.at()) as u64;
            let short = KvcError::BadTlv { at, end: (start + section.len()) as u64 };
            let tag = records.u8().ok_or(short.clone())?;
            let value = records.prefixed().ok_or(short)?;
            fields.set(tag, value, at)?;
        }
        Ok(fields)
    }

    /// Sets a field. Unknown tags and values of the wrong length are skipped.
    fn set(&mut self, tag: u8, value: &'a [u8], at: u64) -> Result<(), KvcError> {
        match (tag, value) {
            (FINGERPRINT, _) => set(&mut self.fingerprint, value.try_into().ok()),
            (FINGERPRINT_MODE, &[found]) => {
                let mode = FingerprintMode::from_byte(found);
                self.fingerprint_mode = Some(mode.ok_or(KvcError::UnknownFingerprintMode { found, at })?);
            }
            (QUANT_TYPE, &[found]) => {
                let quant = QuantType::from_byte(found);
                self.quant_type = Some(quant.ok_or(KvcError::UnknownQuantByte { found, at })?);
            }
            (CTX_PARAMS_HASH, _) => set(&mut self.ctx_params_hash, value.try_into().ok()),
            (TOKEN_IDS, _) => set(&mut self.tokens, Tokens::new(value)),
            (HOSTNAME, _) => self.hostname = Some(value),
            (ERLLAMA_VERSION, _) => self.erllama_version = Some(value),
            (SAVE_REASON_DETAIL, _) => self.save_reason_detail = Some(value),
            _ => {}
        }
        Ok(())
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *field = value;
    }
}

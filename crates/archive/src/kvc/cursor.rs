//! Sequential parsing of fields.

use std::fmt;

/// Token ids in the bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tokens<'a>(&'a [[u8; 4]]);

impl<'a> Tokens<'a> {
    /// Returns `None` if the last id is incomplete.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (ids, rest) = bytes.as_chunks();
        rest.is_empty().then_some(Self(ids))
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ids in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.0.iter().map(|id| u32::from_le_bytes(*id))
    }
}

impl fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        self.take(N)?.first_chunk()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(|&[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(super) fn prefixed(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len.try_into().ok()?)
    }
}

//! The record of a device memory slot, which lies in a slot of host memory.

use crate::path::ring::carrier::slots::{ReadWindow, RingError, WriteWindow};
use transload_wire::internal::stream::{HEADER, TRAILER};

/// Describes the bytes of one slot in device memory: their number, and the header and the trailer of the stream around
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The number of bytes in the slot, from its start.
    pub(super) body: u32,
    /// The header, if the stream begins here.
    pub(super) header: Option<[u8; HEADER]>,
    /// The trailer, if the stream ends here.
    pub(super) trailer: Option<[u8; TRAILER]>,
}

/// The length of the number at the beginning.
const BODY: usize = 4;

impl Record {
    /// Writes the record to the start of a slot, and returns its length.
    pub(super) fn write(&self, slot: &mut WriteWindow<'_>) -> usize {
        let mut bytes = self.body.to_le_bytes().to_vec();
        bytes.extend(self.header.iter().flatten());
        bytes.extend(self.trailer.iter().flatten());
        // A page has enough room for it.
        let _ = slot.put(0, &bytes);
        bytes.len()
    }

    /// Reads a peer's record, each byte once. `most` is the size of a slot in device memory.
    pub(super) fn read(slot: &ReadWindow<'_>, most: u32) -> Result<Self, RingError> {
        let begins = slot.offset() == 0;
        let short = BODY + if begins { HEADER } else { 0 };
        let (len, trailer) = match slot.len() {
            len if len == short => (len, false),
            len if len == short + TRAILER => (len, true),
            len => return corrupt("the length of a record", len as u64),
        };
        let mut bytes = [0; BODY + HEADER + TRAILER];
        let bytes = &mut bytes[..len];
        // The slot has that many bytes, as just checked.
        let _ = slot.get(0, bytes);
        let (body, rest) = bytes.split_at(BODY);
        let (header, rest) = rest.split_at(short - BODY);
        let body = u32::from_le_bytes([body[0], body[1], body[2], body[3]]);
        if body > most {
            return corrupt("the length of a slot in device memory", body.into());
        }
        Ok(Self { body, header: header.try_into().ok(), trailer: rest.try_into().ok().filter(|_| trailer) })
    }
}

fn corrupt<T>(field: &'static str, found: u64) -> Result<T, RingError> {
    Err(RingError::Corrupt { field, found })
}

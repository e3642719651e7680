//! The fuzz check of bytes from a peer.

use transload_transfer::wire::internal::frame::{self, FrameReader, MAX_FRAME};
use transload_transfer::wire::internal::stream::{HEADER, StreamHeader, StreamTrailer, TRAILER};
use transload_transfer::wire::message::Envelope;

/// Reads the bytes as a control stream, cut anywhere, and as the head and the tail of a data stream.
pub(crate) fn check(data: &[u8]) {
    let whole = read(data, data.len());
    let cut = usize::from(data.first().copied().unwrap_or(0)) % 17 + 1;
    assert_eq!(read(data, cut), whole);
    if let Some(head) = data.first_chunk::<HEADER>()
        && let Ok(header) = StreamHeader::decode(head)
    {
        assert_eq!(header.encode(), *head);
    }
    if let Some(tail) = data.last_chunk::<TRAILER>() {
        assert_eq!(StreamTrailer::decode(tail).encode(), *tail);
    }
}

/// Returns the messages in a stream up to the first fault, and whether there was one.
fn read(data: &[u8], cut: usize) -> (Vec<Envelope>, bool) {
    let mut reader = FrameReader::new();
    let mut messages = Vec::new();
    for piece in data.chunks(cut.max(1)) {
        reader.push(piece);
        while let Some(read) = reader.next() {
            let Ok(envelope) = read.and_then(|body| frame::decode(&body)) else {
                return (messages, true);
            };
            let again = frame::encode(&envelope).expect("what was read can be said");
            assert!(again.len() <= MAX_FRAME);
            messages.push(envelope);
        }
    }
    (messages, false)
}

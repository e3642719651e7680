//! Codes that streams are given up with. They tell the other side nothing that control does not say
//! better; they help whoever reads a trace.

use crate::quic::StreamCode;

/// No transfer that is under way here has this stream.
pub(crate) const UNKNOWN: StreamCode = StreamCode(2);
/// The receiver's transfer has failed or was given up.
pub(crate) const FENCED: StreamCode = StreamCode(3);
/// Too many streams are under way.
pub(crate) const BUSY: StreamCode = StreamCode(4);
/// The stream is not as it has to be.
pub(crate) const MALFORMED: StreamCode = StreamCode(5);

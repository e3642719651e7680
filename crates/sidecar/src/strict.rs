//! A strict reading of each client connection, in front of hyper's parser, which is lenient.
//!
//! Whatever hyper reads has passed [`Requests`] first: two parsers that could disagree about where a request ends never
//! see the same odd bytes, so that a request cannot hide in another one's body. A head of 500 bytes takes about 0.4 us, one
//! and a half times what hyper's parser takes for it.
//!
//! | file | what it does |
//! |---|---|
//! | `requests` | follows the requests of a connection: where each head and body begins and ends |
//! | `head` | reads the lines of one head |
//! | `chunks` | reads the lines between the chunks of a body, and its trailers |
//! | `syntax` | which bytes may stand where |
//! | `refusal` | what a client is told |
//! | `stream` | the connection that hyper reads, and what the service asks about it |

mod chunks;
mod head;
mod refusal;
mod requests;
mod stream;
mod syntax;

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use refusal::Refusal;
use requests::{Next, Requests};
pub(crate) use stream::{Stream, UnderWay, Upgrade, Verdict, Verdicts};

/// The bytes of a whole head.
pub(crate) const MAX_HEAD: usize = 128 << 10;
/// The bytes of a request line: method, target and version.
pub(crate) const MAX_REQUEST_LINE: usize = 32 << 10;
/// The header lines of a head.
pub(crate) const MAX_HEADERS: usize = 256;
/// The bytes of a header's name. The type that hyper keeps names in has a bound of its own, far above this one.
pub(crate) const MAX_NAME: usize = 256;
/// The bytes of one line before a chunk.
pub(crate) const MAX_CHUNK_LINE: usize = 256;
/// The bytes of all chunk extensions of a body, and of all its trailers, each. Hyper gives up at twice as much.
pub(crate) const MAX_CHUNK_EXTRAS: usize = 8 << 10;
/// The trailer lines of a body.
pub(crate) const MAX_TRAILERS: usize = 64;
/// How long a head may take from its first byte, and the first one of a connection from its acceptance, where nobody says otherwise.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may wait between two requests.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the settings of a server that reads a [`Stream`]: its limits let pass what the stream lets pass, and it
/// closes a connection that is idle for [`IDLE_TIMEOUT`].
#[must_use]
pub(crate) fn http1() -> hyper::server::conn::http1::Builder {
    let mut http1 = hyper::server::conn::http1::Builder::new();
    http1.max_headers(MAX_HEADERS).timer(hyper_util::rt::TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
    http1
}

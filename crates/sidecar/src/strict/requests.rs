//! All bytes of a client's connection, followed from request to request.

use super::Refusal;
use super::chunks::{Chunks, Step};
use super::head::{Body, Head};

/// Follows the requests of one connection and tells which bytes may go on to a parser.
///
/// Bytes are held back while they are part of a line or head that is not whole: the caller shows those again, with what
/// has come behind them. No bytes are kept or copied here.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    state: State,
    heads: u64,
    /// The request that is being read asks for another protocol.
    upgrade: bool,
}

/// What is known of the bytes that were shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Checked {
    /// So many bytes from the first one may go on. The others are to be shown again.
    pub(crate) passed: usize,
    /// What comes behind them.
    pub(crate) next: Next,
}

/// What comes behind the bytes that may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, or bytes that are too few to tell.
    More,
    /// Another request, whose turn has not come.
    Request,
    /// What the client sends once its wish for another protocol has been answered. Nothing is checked until
    /// [`Requests::decline_upgrade`].
    Upgrade,
    /// Bytes that are refused. The connection has no other requests.
    Refused(Refusal),
}

#[derive(Debug)]
enum State {
    Head(Head),
    Sized(u64),
    Chunked(Chunks),
    Upgrade,
    Refused { refusal: Refusal, in_body: bool },
}

impl Default for State {
    fn default() -> Self {
        Self::Head(Head::default())
    }
}

impl Requests {
    /// Checks the bytes of the connection from the first one that has not passed, up to the head of a request after this many.
    pub(crate) fn check(&mut self, bytes: &[u8], most: u64) -> Checked {
        let mut passed = 0;
        let next = loop {
            if self.heads >= most && matches!(self.state, State::Head(_)) {
                break match bytes.len() == passed {
                    true => Next::More,
                    false => Next::Request,
                };
            }
            match self.step(&bytes[passed..]) {
                Ok(Some(size)) => passed += size,
                Ok(None) if matches!(self.state, State::Upgrade) => break Next::Upgrade,
                Ok(None) => break Next::More,
                Err(refusal) => {
                    let in_body = self.in_body();
                    self.state = State::Refused { refusal, in_body };
                    break Next::Refused(refusal);
                }
            }
        };
        Checked { passed, next }
    }

    /// Goes on with requests after the wish for another protocol was not granted.
    pub(crate) fn decline_upgrade(&mut self) {
        if matches!(self.state, State::Upgrade) {
            self.state = State::default();
        }
    }

    /// The number of heads that have passed.
    #[must_use]
    pub(crate) fn heads(&self) -> u64 {
        self.heads
    }

    /// Tells whether what comes next, or was refused, belongs to the body of a request whose head has passed.
    #[must_use]
    pub(crate) fn in_body(&self) -> bool {
        match self.state {
            State::Sized(_) | State::Chunked(_) => true,
            State::Head(_) | State::Upgrade => false,
            State::Refused { in_body, .. } => in_body,
        }
    }

    /// Tells whether bytes that were held back are the beginning of a head.
    #[must_use]
    pub(crate) fn in_head(&self, held: &[u8]) -> bool {
        matches!(&self.state, State::Head(head) if head.has_begun(held))
    }

    /// Reads one head, or a part of a body, and returns its size; `None` needs more bytes or an answer.
    fn step(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        let (size, ended) = match &mut self.state {
            State::Head(head) => {
                let Some(head) = head.read(bytes)? else {
                    return Ok(None);
                };
                self.heads += 1;
                self.upgrade = head.upgrade;
                self.state = match head.body {
                    Body::Sized(size) => State::Sized(size),
                    Body::Chunked => State::Chunked(Chunks::default()),
                };
                (head.size, head.body == Body::Sized(0))
            }
            State::Sized(left) => {
                let size = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                if size == 0 {
                    return Ok(None);
                }
                *left -= size as u64;
                (size, *left == 0)
            }
            State::Chunked(chunks) => match chunks.read(bytes)? {
                Step::Passed(size) => (size, false),
                Step::Last(size) => (size, true),
                Step::More => return Ok(None),
            },
            State::Upgrade => return Ok(None),
            State::Refused { refusal, .. } => return Err(*refusal),
        };
        if ended {
            self.state = match self.upgrade {
                true => State::Upgrade,
                false => State::default(),
            };
        }
        Ok(Some(size))
    }
}

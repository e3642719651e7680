//! Follows the bytes of a client's connection from request to request.

use super::Refusal;
use super::chunks::{Chunks, Step};
use super::head::{Body, Head};

/// Tracks the requests of one connection and says which bytes may be passed to a parser.
///
/// Bytes of an incomplete line or head are held back: the caller has to show them again, together with those that
/// follow. No bytes are stored or copied here.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    state: State,
    heads: u64,
    /// The current request asks for another protocol.
    upgrade: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Checked {
    /// The number of bytes that may be passed on, from the first one. The others have to be shown again.
    pub(crate) passed: usize,
    pub(crate) next: Next,
}

/// The state after the bytes that may be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    More,
    /// The next request follows, and has to wait for its turn.
    Request,
    /// The client has asked for another protocol, and waits for the answer. Nothing is checked until
    /// [`Requests::decline_upgrade`].
    Upgrade,
    /// The next bytes are refused. The connection yields no further requests.
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
    /// Checks bytes, beginning with the first one that has not been passed on. It stops before the head of the request
    /// after number `most`.
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

    pub(crate) fn decline_upgrade(&mut self) {
        if matches!(self.state, State::Upgrade) {
            self.state = State::default();
        }
    }

    #[must_use]
    pub(crate) fn heads(&self) -> u64 {
        self.heads
    }

    /// Returns whether the next bytes, or the refused ones, belong to the body of a request whose head has passed.
    #[must_use]
    pub(crate) fn in_body(&self) -> bool {
        match self.state {
            State::Sized(_) | State::Chunked(_) => true,
            State::Head(_) | State::Upgrade => false,
            State::Refused { in_body, .. } => in_body,
        }
    }

    #[must_use]
    pub(crate) fn in_head(&self, held: &[u8]) -> bool {
        matches!(&self.state, State::Head(head) if head.has_begun(held))
    }

    /// Reads one head, or a part of a body, and returns its size. Returns `None` if it needs more bytes or an answer
    /// about an upgrade.
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

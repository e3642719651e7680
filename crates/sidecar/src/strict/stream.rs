//! A connection from which hyper reads only checked bytes, and the service's view of it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{Next, Refusal, Requests};
use crate::socket::Reset;

/// A client's connection whose bytes pass [`Requests`] before they can be read.
///
/// Bytes are read directly into the reader's buffer; those of an incomplete head are held here until it is complete. In
/// place of a refused head the reader gets a short request. So it first answers the requests before that one and then
/// calls its service, whose [`Verdicts`] know the refusal. A fault in a body is an error of the kind
/// [`io::ErrorKind::InvalidData`].
#[derive(Debug)]
pub(crate) struct Stream<T> {
    io: T,
    requests: Requests,
    flow: Flow,
    /// Bytes that were read but could not be passed on yet. It has no allocation while it is empty.
    held: Vec<u8>,
    /// The number of held bytes that may be passed on, followed by the number of those that have been.
    passed: usize,
    given: usize,
    head_timeout: Duration,
    /// The deadline of the incomplete head, or of the first one.
    deadline: Option<Pin<Box<Sleep>>>,
    closing: Closing,
    shared: Arc<Shared>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Checked,
    /// The next request waits until the service has answered the one before.
    Waiting,
    /// The service has not yet answered the request for another protocol.
    Asking,
    /// Bytes belong to another protocol and are passed on unchecked.
    Opaque,
    /// A head was refused; nothing more is read.
    Ended,
    /// A body was refused.
    Fault,
    /// The client has closed its side, or has never sent anything.
    Eof,
}

#[derive(Debug)]
enum Closing {
    Open,
    Shutdown,
    /// Further bytes of the client are read and dropped: closing a socket with unread bytes may discard the last
    /// answer.
    Lingering {
        deadline: Pin<Box<Sleep>>,
        left: usize,
    },
}

/// The time and the number of bytes for which the rest of a client's data is read after an early answer.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 16 << 20);

/// The most bytes that are read while a request, or a request for another protocol, is being answered. They are read to
/// notice that the client leaves; hyper itself does not read on once it has bytes of a next request.
const EARLY: usize = 16 << 10;

/// The request that hyper gets in place of a refused one.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

const LATE: Refusal = Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's head did not arrive in time");

/// The service's view of the requests of a [`Stream`]. The service asks once for each request, in order.
#[derive(Debug, Clone)]
pub(crate) struct Verdicts(Arc<Shared>);

#[derive(Debug)]
#[must_use]
pub(crate) enum Verdict {
    Passed,
    /// The request passed the check and asks for another protocol: `Connection` says so, and the only `Upgrade` names
    /// no version of HTTP.
    Upgrade(Upgrade),
    /// The request stands in for a refused one, and the service has to answer with the refusal.
    Refused(Refusal),
}

/// A request that is being answered. Dropping this marks it as answered, and the client's next request may follow.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Shared>);

/// A client's request for another protocol. What the client sends next waits until this is accepted, or dropped, which
/// declines it.
#[derive(Debug)]
pub(crate) struct Upgrade(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of requests that the service was asked to answer, followed by the number that it has answered.
    asked: u64,
    answered: u64,
    /// An answer broke off whose end is marked only by the end of the connection.
    cut: bool,
    /// The number of the refused request, and the refusal.
    head: Option<(u64, Refusal)>,
    body: Option<Refusal>,
    /// The number of the request that asks for another protocol.
    upgrade: Option<u64>,
    accepted: Option<bool>,
    reader: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, accepted: bool) {
        self.change(|state| {
            state.accepted.get_or_insert(accepted);
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Verdicts {
    /// Returns the verdict on the next request. The service has to call this for each request, before it awaits
    /// anything.
    pub(crate) fn next_request(&self) -> Verdict {
        let mut state = self.0.lock();
        state.asked += 1;
        match (state.head, state.upgrade) {
            (Some((number, refusal)), _) if number == state.asked => Verdict::Refused(refusal),
            (_, Some(number)) if number == state.asked => Verdict::Upgrade(Upgrade(Arc::clone(&self.0))),
            _ => Verdict::Passed,
        }
    }

    /// Holds the client's next request back until the result is dropped. The service has to call this once for each
    /// request.
    pub(crate) fn under_way(&self) -> UnderWay {
        UnderWay(Arc::clone(&self.0))
    }

    #[must_use]
    pub(crate) fn body_refusal(&self) -> Option<Refusal> {
        self.0.lock().body
    }
}

impl UnderWay {
    /// Makes the connection end with a reset, so that the incomplete answer cannot be taken for a complete one.
    pub(crate) fn cut(&self) {
        self.0.lock().cut = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.change(|state| state.answered += 1);
    }
}

impl Upgrade {
    /// Accepts the other protocol: further bytes are not checked. Must be called before the answer 101 is sent.
    pub(crate) fn accept(self) {
        self.0.answer(true);
    }
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        self.0.answer(false);
    }
}

impl<T> Stream<T> {
    /// Wraps a connection that has just been accepted. Must be called within a tokio runtime. A head may take
    /// `head_timeout` from its first byte, and the first head from now on.
    pub(crate) fn new(io: T, head_timeout: Duration) -> (Self, Verdicts) {
        let shared = Arc::<Shared>::default();
        let stream = Self {
            io,
            requests: Requests::default(),
            flow: Flow::Checked,
            held: Vec::new(),
            passed: 0,
            given: 0,
            head_timeout,
            deadline: Some(Box::pin(sleep(head_timeout))),
            closing: Closing::Open,
            shared: Arc::clone(&shared),
        };
        (stream, Verdicts(shared))
    }

    #[cfg(test)]
    pub(super) fn held_capacity(&self) -> usize {
        self.held.capacity()
    }

    /// Passes on held bytes that have been checked. Returns whether there were any.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let size = buf.remaining().min(self.passed - self.given);
        if size == 0 {
            return false;
        }
        buf.put_slice(&self.held[self.given..self.given + size]);
        self.given += size;
        if self.given == self.passed {
            // The rest moves into a new buffer, so that a large head's memory is freed.
            self.held = self.held[self.passed..].to_vec();
            (self.passed, self.given) = (0, 0);
        }
        true
    }

    /// Checks the held bytes together with those in `buf` from `start` on. Leaves in `buf` the bytes that may be passed
    /// on.
    fn check(&mut self, buf: &mut ReadBuf<'_>, start: usize) {
        let turn = self.shared.lock().answered + 1;
        let checked = if self.held.is_empty() {
            let new = &buf.filled()[start..];
            let checked = self.requests.check(new, turn);
            if !matches!(checked.next, Next::Refused(_)) {
                self.held.extend_from_slice(&new[checked.passed..]);
            }
            buf.set_filled(start + checked.passed);
            checked
        } else {
            self.held.extend_from_slice(&buf.filled()[start..]);
            buf.set_filled(start);
            let checked = self.requests.check(&self.held[self.passed..], turn);
            self.passed += checked.passed;
            checked
        };
        if checked.passed > 0 {
            self.deadline = None;
        }
        match checked.next {
            Next::More => {
                if self.deadline.is_none() && self.requests.in_head(&self.held[self.passed..]) {
                    self.deadline = Some(Box::pin(sleep(self.head_timeout)));
                }
            }
            Next::Request => self.flow = Flow::Waiting,
            Next::Upgrade => {
                self.deadline = None;
                self.flow = Flow::Asking;
                let mut state = self.shared.lock();
                state.upgrade = Some(self.requests.heads());
                state.accepted = None;
            }
            Next::Refused(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.deadline = None;
        self.held.truncate(self.passed);
        let mut state = self.shared.lock();
        if self.requests.in_body() {
            self.flow = Flow::Fault;
            state.body = Some(refusal);
        } else {
            self.flow = Flow::Ended;
            state.head = Some((self.requests.heads() + 1, refusal));
            self.held.extend_from_slice(REFUSED);
            self.passed = self.held.len();
        }
    }

    /// Returns whether all earlier requests are answered, so that the next one may follow.
    fn has_turn(&self, cx: &Context<'_>) -> bool {
        let mut state = self.shared.lock();
        let has_turn = state.answered >= self.requests.heads();
        if !has_turn {
            state.reader = Some(cx.waker().clone());
        }
        has_turn
    }

    /// Returns the service's answer to the request for another protocol, if there is one.
    fn ask(&mut self, cx: &Context<'_>) -> Option<bool> {
        let mut state = self.shared.lock();
        if state.accepted.is_none() {
            state.reader = Some(cx.waker().clone());
        }
        state.accepted
    }

    /// Returns whether the client may still send bytes that will not be read.
    fn is_cut_short(&self) -> bool {
        match self.flow {
            Flow::Ended | Flow::Fault | Flow::Waiting => true,
            Flow::Checked => self.requests.in_body(),
            Flow::Asking | Flow::Opaque | Flow::Eof => false,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stream<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if buf.remaining() == 0 || this.give(buf) {
                return Poll::Ready(Ok(()));
            }
            match this.flow {
                Flow::Checked => {}
                Flow::Waiting if this.has_turn(cx) => {
                    this.flow = Flow::Checked;
                    let start = buf.filled().len();
                    this.check(buf, start);
                    continue;
                }
                Flow::Waiting if this.held.len() >= EARLY => return Poll::Pending,
                Flow::Waiting => {}
                Flow::Asking => match this.ask(cx) {
                    Some(true) => {
                        this.flow = Flow::Opaque;
                        this.passed = this.held.len();
                        continue;
                    }
                    Some(false) => {
                        this.requests.decline_upgrade();
                        this.flow = Flow::Checked;
                        let start = buf.filled().len();
                        this.check(buf, start);
                        continue;
                    }
                    None if this.held.len() >= EARLY => return Poll::Pending,
                    None => {}
                },
                Flow::Opaque => return Pin::new(&mut this.io).poll_read(cx, buf),
                // The reader still has to answer a request, and polls only to notice that the client has left.
                Flow::Ended => return Poll::Pending,
                Flow::Fault => {
                    let refusal = this.shared.lock().body;
                    let reason = refusal.map_or("", |refusal| refusal.message);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
                }
                Flow::Eof => return Poll::Ready(Ok(())),
            }
            let start = buf.filled().len();
            if Pin::new(&mut this.io).poll_read(cx, buf)?.is_pending() {
                let deadline = this.deadline.as_mut().map(|deadline| deadline.as_mut().poll(cx));
                ready!(deadline.unwrap_or(Poll::Pending));
                this.deadline = None;
                match this.requests.in_head(&this.held) {
                    true => this.refuse(LATE),
                    false => this.flow = Flow::Eof,
                }
            } else if buf.filled().len() == start {
                this.held = Vec::new();
                this.flow = Flow::Eof;
            } else if matches!(this.flow, Flow::Asking | Flow::Waiting) {
                this.held.extend_from_slice(&buf.filled()[start..]);
                buf.set_filled(start);
            } else {
                this.check(buf, start);
                if buf.filled().len() > start {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Reset + Unpin> AsyncWrite for Stream<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        if this.shared.lock().cut {
            this.io.reset();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.closing {
                Closing::Open => {
                    ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
                    this.closing = match this.is_cut_short() {
                        false => Closing::Shutdown,
                        true => Closing::Lingering {
                            deadline: Box::pin(sleep_until(Instant::now() + LINGER.0)),
                            left: LINGER.1,
                        },
                    };
                }
                Closing::Shutdown => return Poll::Ready(Ok(())),
                Closing::Lingering { deadline, left } => {
                    let mut scratch = [0; 4096];
                    let mut scratch = ReadBuf::new(&mut scratch);
                    let over = match Pin::new(&mut this.io).poll_read(cx, &mut scratch) {
                        Poll::Ready(Ok(())) if !scratch.filled().is_empty() => {
                            *left = left.saturating_sub(scratch.filled().len());
                            *left == 0
                        }
                        Poll::Ready(_) => true,
                        Poll::Pending => {
                            ready!(deadline.as_mut().poll(cx));
                            true
                        }
                    };
                    if over {
                        this.closing = Closing::Shutdown;
                    }
                }
            }
        }
    }
}

//! A connection that gives hyper checked bytes only, and what the service asks about it.

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

/// A client's connection whose bytes have passed [`Requests`] before they are read from it.
///
/// Bytes go straight into the reader's buffer; those of a head that has come in part are held back here until it is whole.
/// In place of a refused head the reader gets a short request, so that it answers the requests before that one and then
/// asks its service, whose [`Verdicts`] know the refusal. A fault in a body is an error of the kind
/// [`io::ErrorKind::InvalidData`].
#[derive(Debug)]
pub(crate) struct Stream<T> {
    io: T,
    requests: Requests,
    flow: Flow,
    /// Bytes that were read before they could be given on. Without memory of its own while there are none.
    held: Vec<u8>,
    /// So many of these may be given on, of which so many have been.
    passed: usize,
    given: usize,
    head_timeout: Duration,
    /// When the head that has come in part, or the first one, is late.
    deadline: Option<Pin<Box<Sleep>>>,
    closing: Closing,
    shared: Arc<Shared>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// Bytes are checked.
    Checked,
    /// The service has yet to answer a request before the one that comes next.
    Waiting,
    /// The service has yet to answer a wish for another protocol.
    Asking,
    /// Bytes are of another protocol.
    Opaque,
    /// A head was refused; nothing is read any more.
    Ended,
    /// A body was refused.
    Fault,
    /// The client has ended its side, or has never begun.
    Eof,
}

/// How far the end of the connection has got.
#[derive(Debug)]
enum Closing {
    Open,
    Shutdown,
    /// What the client still sends is read and dropped: closing a socket with unread bytes may take the last answer from it.
    Lingering {
        deadline: Pin<Box<Sleep>>,
        left: usize,
    },
}

/// How long, and for how many bytes, a client may go on sending that has been answered without being heard out.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 16 << 20);

/// What a client sends before its request, or its wish for another protocol, is answered is read up to here, to see whether it
/// leaves: a reader with bytes of a next request at hand looks no further.
const EARLY: usize = 16 << 10;

/// The request that stands for a refused one.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

const LATE: Refusal = Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's head did not arrive in time");

/// What the service knows about the requests of a [`Stream`]. It is asked once for each request, in their order.
#[derive(Debug, Clone)]
pub(crate) struct Verdicts(Arc<Shared>);

/// What the next request of a connection is.
#[derive(Debug)]
#[must_use]
pub(crate) enum Verdict {
    /// It is the client's.
    Passed,
    /// It is the client's and asks for another protocol, with a `Connection` that says so and one `Upgrade` that names none of
    /// HTTP's.
    Upgrade(Upgrade),
    /// It stands for one that is refused, which is to be answered.
    Refused(Refusal),
}

/// A request that is being answered: it is when this is dropped, and the client's next one has its turn.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Shared>);

/// A client's wish for another protocol. What the client sends after its request waits until this is dropped, which
/// declines, or accepted.
#[derive(Debug)]
pub(crate) struct Upgrade(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The requests that the service was asked to answer, and those that it has answered.
    asked: u64,
    answered: u64,
    /// An answer broke off where its end is the connection's.
    cut: bool,
    /// The refused head and its number.
    head: Option<(u64, Refusal)>,
    body: Option<Refusal>,
    /// The number of the request that asks for another protocol.
    upgrade: Option<u64>,
    accepted: Option<bool>,
    /// The reader, while it waits for one of these.
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

    /// Tells the reader of a change.
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
    /// Returns what the next request is. The service has to ask for each request it is called with, before it awaits
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

    /// Keeps the client's next request back until this is dropped, which the service has to do once for each request.
    pub(crate) fn under_way(&self) -> UnderWay {
        UnderWay(Arc::clone(&self.0))
    }

    /// Returns why reading a request's body failed, where its bytes were refused.
    #[must_use]
    pub(crate) fn body_refusal(&self) -> Option<Refusal> {
        self.0.lock().body
    }
}

impl UnderWay {
    /// Has the connection end in such a way that nobody takes what came of the answer for all of it.
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
    /// Accepts: the stream's further bytes are not looked at. To be called before the answer 101 is sent.
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
    /// Begins with a connection that has just been accepted, within a tokio runtime. A head may take this long from its first byte,
    /// and the first one from now.
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

    /// Gives on held bytes that have passed, and tells whether there were any.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let size = buf.remaining().min(self.passed - self.given);
        if size == 0 {
            return false;
        }
        buf.put_slice(&self.held[self.given..self.given + size]);
        self.given += size;
        if self.given == self.passed {
            // A new buffer, so that a large head's memory goes.
            self.held = self.held[self.passed..].to_vec();
            (self.passed, self.given) = (0, 0);
        }
        true
    }

    /// Checks what is held back, or else what has been read into `buf` from `start` on, and leaves there what may be
    /// given on.
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

    /// Tells whether the turn of the next request has come.
    fn has_turn(&self, cx: &Context<'_>) -> bool {
        let mut state = self.shared.lock();
        let has_turn = state.answered >= self.requests.heads();
        if !has_turn {
            state.reader = Some(cx.waker().clone());
        }
        has_turn
    }

    /// Learns what the service says to the client's wish for another protocol.
    fn ask(&mut self, cx: &Context<'_>) -> Option<bool> {
        let mut state = self.shared.lock();
        if state.accepted.is_none() {
            state.reader = Some(cx.waker().clone());
        }
        state.accepted
    }

    /// Tells whether the client may have more to send that nobody will read.
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
                // The reader has a request to answer and asks only whether the client has left.
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
                let late = this.deadline.as_mut().map(|late| late.as_mut().poll(cx));
                ready!(late.unwrap_or(Poll::Pending));
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

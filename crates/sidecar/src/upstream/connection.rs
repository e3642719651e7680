//! A connection to a server, driven by the task that waits for an answer on it.
//!
//! A request and its answer pass between two sockets within one task: no other task has to be woken for each piece, and
//! dropping the request closes the connection at once.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::outgoing::Outgoing;
use crate::socket::Peer;

/// The most headers that a server's answer may have.
const MOST_HEADERS: usize = 256;

pub(super) struct Connection {
    sender: SendRequest<Outgoing>,
    pub(super) peer: Peer,
    /// The future that reads and writes the socket; `None` once the connection has ended.
    driver: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
}

impl Connection {
    pub(super) async fn new<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        stream: T,
        peer: Peer,
    ) -> io::Result<Self> {
        let (sender, driver) = http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Self { sender, peer, driver: Some(Box::pin(driver.with_upgrades())) })
    }

    /// Returns whether the connection can take a request. It cannot if the server has closed it, or if the last request
    /// is still being sent though it has been answered.
    pub(super) fn is_ready(&mut self) -> bool {
        // No waker is needed: sending the next request polls again.
        let mut cx = Context::from_waker(Waker::noop());
        self.drive(&mut cx);
        matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            // Sending hands the request to the driver, and the driver's reading completes the answer.
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            drive(&mut self.driver, cx);
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// Reads and writes as far as possible without blocking.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, cx);
    }

    /// Spawns a task that drives the connection to its end, as needed after an upgrade.
    pub(super) fn detach(self) {
        if let Some(driver) = self.driver {
            tokio::spawn(driver);
        }
    }
}

fn drive(driver: &mut Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>, cx: &mut Context<'_>) {
    // hyper reports an error to the waiting request as well, so it can be ignored here.
    if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
        *driver = None;
    }
}

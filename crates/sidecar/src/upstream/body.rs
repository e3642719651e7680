//! Bodies of requests to servers, and of their answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::Connection;
use super::pool::Place;

/// The body of a request to a server: what is here already, then what still comes from the client.
pub(crate) struct Outgoing {
    here: Bytes,
    rest: Option<Incoming>,
}

impl Outgoing {
    /// No body.
    #[must_use]
    pub(crate) const fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// All of a body.
    #[must_use]
    pub(crate) const fn whole(here: Bytes) -> Self {
        Self { here, rest: None }
    }

    /// Whether all of it is here.
    pub(crate) const fn is_whole(&self) -> bool {
        self.rest.is_none()
    }

    /// A copy, where no more of it comes.
    pub(super) fn copy(&self) -> Option<Self> {
        let whole = self.rest.as_ref().is_none_or(Body::is_end_stream);
        whole.then(|| Self::whole(self.here.clone()))
    }

    /// The beginning of a body, whose rest still comes.
    #[must_use]
    pub(crate) const fn streamed(here: Bytes, rest: Incoming) -> Self {
        Self {
            here,
            rest: Some(rest),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if !self.here.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.here)))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.here.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let here = self.here.len() as u64;
        let Some(rest) = &self.rest else {
            return SizeHint::with_exact(here);
        };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(here));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(here)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// The body of a server's answer. At its end the connection is kept for the next request; dropped before, it is closed.
pub(crate) struct Answer {
    body: Incoming,
    kept: Option<(Connection, Place)>,
}

impl Answer {
    /// The answer that came by a connection. Its extensions say from where.
    pub(super) fn of(
        mut response: Response<Incoming>,
        connection: Connection,
        place: Place,
    ) -> Response<Self> {
        response.extensions_mut().insert(connection.peer);
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|body| {
            let mut answer = Self {
                body,
                kept: Some((connection, place)),
            };
            if !upgraded {
                answer.keep_if_over();
            }
            answer
        })
    }

    /// Lets the connection go its own way, as after an upgrade.
    pub(crate) fn detach(mut self) {
        if let Some((connection, _)) = self.kept.take() {
            connection.detach();
        }
    }

    fn keep_if_over(&mut self) {
        if self.body.is_end_stream()
            && let Some((connection, place)) = self.kept.take()
        {
            place.put(connection);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some((connection, _)) = &mut self.kept {
            connection.drive(cx);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.keep_if_over(),
            None => {
                if let Some((connection, place)) = self.kept.take() {
                    place.put(connection);
                }
            }
            Some(Err(_)) => self.kept = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

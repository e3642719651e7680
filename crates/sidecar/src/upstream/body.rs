//! Bodies of servers' answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::Connection;
use super::pool::Place;

/// The body of a server's answer. Reading it to its end returns the connection to the pool; dropping it earlier closes
/// the connection.
pub(crate) struct Answer {
    body: Incoming,
    kept: Option<(Connection, Place)>,
}

impl Answer {
    /// Wraps an answer received on a connection, whose peer address goes into the answer's extensions.
    pub(super) fn of(mut response: Response<Incoming>, connection: Connection, place: Place) -> Response<Self> {
        response.extensions_mut().insert(connection.peer);
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|body| {
            let mut answer = Self { body, kept: Some((connection, place)) };
            if !upgraded {
                answer.pool_if_ended();
            }
            answer
        })
    }

    /// Leaves the connection to a task of its own, as needed after an upgrade.
    pub(crate) fn detach(mut self) {
        if let Some((connection, _)) = self.kept.take() {
            connection.detach();
        }
    }

    fn pool_if_ended(&mut self) {
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some((connection, _)) = &mut self.kept {
            connection.drive(cx);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.pool_if_ended(),
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

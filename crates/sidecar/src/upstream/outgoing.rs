//! Bodies of requests to servers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;

use crate::exchange::Trouble;

/// The body of a request to a server: bytes that have arrived, followed by those that the client still sends.
pub(crate) struct Outgoing {
    here: Bytes,
    rest: Option<Incoming>,
    /// Checks each piece of the rest before it is sent, and is called with `None` at the end.
    check: Option<Check>,
}

type Check = Box<dyn FnMut(Option<&[u8]>) -> Result<(), Trouble> + Send>;

#[derive(Debug, Error)]
pub(crate) enum BodyError {
    #[error("it broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("{}", .0.message)]
    Refused(Trouble),
}

impl Outgoing {
    #[must_use]
    pub(crate) const fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    #[must_use]
    pub(crate) const fn whole(here: Bytes) -> Self {
        Self { here, rest: None, check: None }
    }

    pub(crate) const fn is_whole(&self) -> bool {
        self.rest.is_none()
    }

    pub(super) fn copy(&self) -> Option<Self> {
        let whole = self.rest.as_ref().is_none_or(Body::is_end_stream);
        whole.then(|| Self::whole(self.here.clone()))
    }

    #[must_use]
    pub(crate) const fn streamed(here: Bytes, rest: Incoming) -> Self {
        Self { here, rest: Some(rest), check: None }
    }

    /// Creates a body that is checked while it is forwarded.
    pub(crate) fn checked(
        rest: Incoming,
        check: impl FnMut(Option<&[u8]>) -> Result<(), Trouble> + Send + 'static,
    ) -> Self {
        Self { check: Some(Box::new(check)), ..Self::streamed(Bytes::new(), rest) }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.here.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.here)))));
        }
        let Self { rest, check, .. } = &mut *self;
        let Some(rest) = rest else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *rest).poll_frame(cx)).transpose()?;
        if let Some(ask) = check {
            let data = frame.as_ref().and_then(Frame::data_ref);
            if let Some(data) = data {
                ask(Some(data)).map_err(BodyError::Refused)?;
            }
            // hyper does not poll past an announced length, so the end is detected together with the last piece. The
            // final check then runs before that piece is sent.
            if data.is_none() || rest.is_end_stream() {
                ask(None).map_err(BodyError::Refused)?;
                *check = None;
            }
        }
        Poll::Ready(frame.map(Ok))
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

//! Answers to clients, and the limit on requests of each client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::Broken;
use super::connections::Busy;
use super::driver::Driver;
use super::pass::Passing;
use crate::exchange::{Trouble, error};
use crate::strict::UnderWay;

/// The body of an answer, which also holds the client's slot.
pub(crate) struct Reply {
    body: Kind,
    broken: bool,
    _place: Option<Place>,
    under_way: Option<UnderWay>,
    _busy: Option<Busy>,
    /// The client speaks HTTP/1.0, where an answer may end with the connection.
    is_old: bool,
}

enum Kind {
    Here(Bytes),
    Passed(Box<Passing>),
    Exchange(Box<Driver>),
}

impl Reply {
    const fn new(body: Kind) -> Self {
        Self { body, broken: false, _place: None, under_way: None, _busy: None, is_old: false }
    }

    pub(super) const fn here(body: Bytes) -> Self {
        Self::new(Kind::Here(body))
    }

    pub(super) fn passed(passing: Passing) -> Self {
        Self::new(Kind::Passed(Box::new(passing)))
    }

    pub(super) const fn exchange(driver: Box<Driver>) -> Self {
        Self::new(Kind::Exchange(driver))
    }

    pub(super) fn holding(mut self, place: Option<Place>) -> Self {
        self._place = place;
        self
    }

    pub(super) fn under_way(mut self, under_way: UnderWay, is_old: bool, busy: Option<Busy>) -> Self {
        self.under_way = Some(under_way);
        self._busy = busy;
        self.is_old = is_old;
        self
    }
}

pub(super) fn empty(status: StatusCode) -> Response<Reply> {
    with(status, HeaderMap::new(), Bytes::new())
}

pub(super) fn with(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::here(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

pub(super) fn refusal(trouble: Trouble) -> Response<Reply> {
    let (status, headers, body) = error(trouble);
    with(status, headers, body)
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.broken {
            return Poll::Ready(Some(Err(Broken.into())));
        }
        let frame = ready!(match &mut self.body {
            Kind::Here(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Here(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Passed(passing) => Pin::new(&mut **passing).poll_frame(cx),
            Kind::Exchange(driver) => Pin::new(&mut **driver).poll_frame(cx),
        });
        match frame {
            Some(Err(Broken)) => {
                // An error makes hyper drop unwritten data, so it first gets a chance to write the head and what came
                // before the break.
                self.broken = true;
                if let Some(under_way) = self.under_way.as_ref().filter(|_| self.is_old) {
                    under_way.cut();
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.broken
            && match &self.body {
                Kind::Here(bytes) => bytes.is_empty(),
                Kind::Passed(passing) => passing.is_end_stream(),
                Kind::Exchange(driver) => driver.is_end_stream(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Kind::Here(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Passed(passing) => passing.size_hint(),
            Kind::Exchange(_) => SizeHint::default(),
        }
    }
}

/// The number of requests in flight of each client, if that is limited. Without a limit nothing is counted.
pub(crate) struct Clients {
    most: Option<u32>,
    /// Contains only clients with requests.
    requests: Mutex<HashMap<IpAddr, u32>>,
}

pub(crate) struct Place {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    pub(crate) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self { most, requests: Mutex::default() })
    }

    /// # Errors
    /// Returns an error if the client has as many requests as it may.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr) -> Result<Option<Place>, Trouble> {
        let Some(most) = self.most else {
            return Ok(None);
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let count = requests.entry(client).or_default();
        if *count >= most {
            let message = format!("This address has {most} requests under way already (--max-requests-per-client).");
            return Err(Trouble::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        *count += 1;
        Ok(Some(Place { clients: self.clone(), client }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut requests = self.clients.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = requests.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                requests.remove(&self.client);
            }
        }
    }
}

//! Connections to servers. A connection is opened for a request and kept open for the next one.
//!
//! A request is sent once. If a kept connection turns out to be closed, a request that may safely be repeated is sent a
//! second time. An error says whether the server can have seen the request; the caller decides what follows from that.

mod body;
mod connection;
mod outgoing;
mod pool;
mod validity;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HOST, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

pub(crate) use self::body::Answer;
use self::connection::Connection;
pub(crate) use self::outgoing::{BodyError, Outgoing};
use self::pool::Pools;
use crate::Role;
use crate::target::{Host, ServerUrl};
use crate::{socket, tls};

#[derive(Clone)]
pub(crate) struct Upstream {
    inner: Arc<Inner>,
    pools: Arc<Pools>,
}

struct Inner {
    tls: tls::Upstream,
    connect_timeout: Duration,
    /// Decides whether an address that a name resolves to may be dialled.
    may_dial: fn(IpAddr) -> bool,
    /// Limits concurrent DNS look-ups, separately for each role. A look-up occupies a thread until the resolver
    /// answers, so names that clients choose must not use up the threads for all others.
    look_ups: [Arc<Semaphore>; 2],
}

const LOOK_UPS: usize = 32;

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SendError {
    /// The server was not reached, so it has not seen the request.
    #[error("it cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// This process has no file descriptor left for a connection; no server is at fault.
    #[error("no file descriptor is left for a connection")]
    NoFiles,
    /// The server's certificate is not trusted, or the server does not speak TLS. It has not seen the request.
    #[error("it cannot be trusted: {0}")]
    Untrusted(#[source] io::Error),
    /// The connection was not established in time, so the server has not seen the request.
    #[error("it cannot be reached: no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The connection broke; the server may have seen the request.
    #[error("the connection broke: {0}")]
    Broken(#[source] hyper::Error),
    /// The answer violates HTTP, or is not an answer to this request.
    #[error("its answer is not valid: {0}")]
    Malformed(&'static str),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer exceeds the caller's limit in bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

impl Upstream {
    /// Creates a sender that keeps at most `idle` connections without a request open to each server.
    #[must_use]
    pub(crate) fn new(
        tls: tls::Upstream,
        connect_timeout: Duration,
        idle: usize,
        may_dial: fn(IpAddr) -> bool,
    ) -> Self {
        let inner =
            Inner { tls, connect_timeout, may_dial, look_ups: [(); 2].map(|()| Arc::new(Semaphore::new(LOOK_UPS))) };
        Self { inner: Arc::new(inner), pools: Arc::new(Pools::new(idle)) }
    }

    /// Creates a sender with its own connections and everything else shared, for one of `of` runtimes. Connections of
    /// one runtime are slower on another one, and may end with their own. Each runtime gets an equal share of the idle
    /// connections.
    #[must_use]
    pub(crate) fn apart(&self, of: usize) -> Self {
        Self { inner: self.inner.clone(), pools: Arc::new(self.pools.apart(of)) }
    }

    pub(crate) fn renew(&self) {
        self.inner.tls.renew();
    }

    /// Sends a request and waits for the head of its answer. The request's URI has only path and query. Dropping the
    /// future, or the answer before its end, closes the connection.
    pub(crate) async fn send(
        &self,
        role: Role,
        url: &ServerUrl,
        request: Request<Outgoing>,
    ) -> Result<Response<Answer>, SendError> {
        let sent = self.offer(role, url, request).await;
        sent.map_err(|(error, _)| error)
    }

    /// Like [`Self::send`], but returns the request if the server has seen nothing of it.
    pub(crate) async fn offer(
        &self,
        role: Role,
        url: &ServerUrl,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Answer>, (SendError, Option<Box<Request<Outgoing>>>)> {
        let place = self.pools.of_server(role, url);
        let protocol = request.headers().get(UPGRADE).cloned();
        let answered = |response, connection, place| match validity::fault(&response, protocol.as_ref()) {
            None => Ok(Answer::of(response, connection, place)),
            Some(fault) => Err((SendError::Malformed(fault), None)),
        };
        // Requests of HTTP/1.0 may lack the header.
        let hostless = !request.headers().contains_key(HOST);
        if hostless && let Ok(host) = HeaderValue::try_from(url.target.to_string()) {
            request.headers_mut().insert(HOST, host);
        }
        while let Some(mut kept) = place.take() {
            let copy = repeatable_copy(role, &request);
            match kept.send(request).await {
                Ok(response) => return answered(response, kept, place),
                Err(mut error) => match (error.take_message(), copy) {
                    // The server had closed the connection before anything of the request was sent.
                    (Some(unsent), _) => request = unsent,
                    // Most likely the server closed the connection at the moment of its reuse.
                    (None, Some(copy)) if !error.error().is_parse() => {
                        request = copy;
                        break;
                    }
                    (None, _) => return Err((SendError::Broken(error.into_error()), None)),
                },
            }
        }
        // The handshake's future is large: boxed, it is freed at once instead of living as long as the client's
        // connection.
        let mut connection = match Box::pin(self.connect(role, url)).await {
            Ok(connection) => connection,
            Err(error) => {
                if hostless {
                    request.headers_mut().remove(HOST);
                }
                return Err((error, Some(Box::new(request))));
            }
        };
        let response = connection.send(request).await.map_err(|error| (SendError::Broken(error.into_error()), None))?;
        answered(response, connection, place)
    }

    /// Sends a `GET` request and reads an answer of at most `limit` bytes.
    pub(crate) async fn get(
        &self,
        url: &ServerUrl,
        role: Role,
        path: &str,
        limit: usize,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), SendError> {
        let got = tokio::time::timeout(within, self.get_whole(url, role, path, limit)).await;
        got.unwrap_or(Err(SendError::Timeout(within)))
    }

    pub(crate) async fn probe(
        &self,
        url: &ServerUrl,
        role: Role,
        path: &str,
        within: Duration,
    ) -> Result<StatusCode, SendError> {
        // A healthy server answers a health check with a few bytes.
        const MOST: usize = 64 << 10;
        let (status, _) = self.get(url, role, path, MOST, within).await?;
        Ok(status)
    }

    async fn get_whole(
        &self,
        url: &ServerUrl,
        role: Role,
        path: &str,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), SendError> {
        let request = Request::get(path).body(Outgoing::empty());
        let request =
            request.map_err(|wrong| SendError::Unreachable(io::Error::new(io::ErrorKind::InvalidInput, wrong)))?;
        let response = self.send(role, url, request).await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(SendError::Broken)?.into_data() {
                if whole.len() + data.len() > limit {
                    return Err(SendError::TooLong(limit));
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok((status, whole.freeze()))
    }

    /// Returns whether the server accepts TCP connections within this time.
    pub(crate) async fn reaches(&self, url: &ServerUrl, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, self.dial(Role::Decode, url)).await, Ok(Ok(_)))
    }

    async fn connect(&self, role: Role, url: &ServerUrl) -> Result<Connection, SendError> {
        let within = self.inner.connect_timeout;
        let dialled = async {
            let stream = self.dial(role, url).await?;
            socket::prepare(&stream)?;
            let peer = socket::Peer::of(&stream)?;
            if !url.tls {
                return Connection::new(stream, peer).await;
            }
            let name = match &url.target.host {
                Host::Name(name) => ServerName::try_from(name.to_string()).map_err(io::Error::other)?,
                Host::V4(address) => ServerName::from(IpAddr::from(*address)),
                Host::V6(address) => ServerName::from(IpAddr::from(*address)),
            };
            let connector = TlsConnector::from(self.inner.tls.config(role));
            Connection::new(connector.connect(name, stream).await?, peer).await
        };
        match tokio::time::timeout(within, dialled).await {
            Ok(connected) => connected.map_err(|error| {
                let inner = error.get_ref();
                if socket::no_file_left(&error) {
                    SendError::NoFiles
                } else if inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
                    SendError::Untrusted(error)
                } else {
                    SendError::Unreachable(error)
                }
            }),
            Err(_) => Err(SendError::ConnectTimeout(within)),
        }
    }

    async fn dial(&self, role: Role, url: &ServerUrl) -> io::Result<TcpStream> {
        let port = url.target.port;
        let name = match &url.target.host {
            Host::V4(address) => {
                return TcpStream::connect(SocketAddr::from((*address, port))).await;
            }
            Host::V6(address) => {
                return TcpStream::connect(SocketAddr::from((*address, port))).await;
            }
            Host::Name(name) => name,
        };
        let mut wrong = None;
        let addresses: Vec<SocketAddr> = if &**name == "localhost" {
            // `localhost` needs no look-up (RFC 6761).
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        } else {
            self.look_up(role, name, port).await?
        };
        // Each address gets a share of the time, so that one that drops packets does not keep the next from being
        // tried.
        let each = self.inner.connect_timeout / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        for address in addresses {
            if !(self.inner.may_dial)(address.ip()) {
                let why = "the name stands for an address that may not be dialled";
                wrong.get_or_insert(io::Error::new(io::ErrorKind::PermissionDenied, why));
                continue;
            }
            match tokio::time::timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => wrong = Some(error),
                Err(late) => wrong = Some(late.into()),
            }
        }
        Err(wrong.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
    }

    async fn look_up(&self, role: Role, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let permits = self.inner.look_ups[role as usize].clone();
        let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        // A separate task runs the look-up: if the caller gives up, the look-up still occupies its thread and has to
        // keep its permit.
        let looking_up = tokio::spawn(async move {
            let _permit = permit;
            match tokio::net::lookup_host((&*name, port)).await {
                Ok(found) => Ok(found.collect()),
                // A resolver's error does not tell that file descriptors have run out; opening a file does.
                Err(error) => Err(std::fs::File::open("/dev/null").err().unwrap_or(error)),
            }
        });
        looking_up.await.map_err(io::Error::other)?
    }
}

/// Copies a request that may safely be sent twice: `GET`, `HEAD` or `OPTIONS` without a body, or a prefill, which costs
/// only time.
fn repeatable_copy(role: Role, request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if role != Role::Prefill && !(is_safe && request.body().is_end_stream()) {
        return None;
    }
    let mut copy = Request::new(request.body().copy()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

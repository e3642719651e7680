//! A real hyper server behind a stream, whose requests are compared with the slow reading.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::reading::{self, End};
use crate::strict::{self, Refusal, Stream, Upgrade, Verdict, Verdicts};

#[derive(Default)]
pub(in crate::strict) struct Seen {
    pub(in crate::strict) requests: Vec<reading::Request>,
    pub(in crate::strict) refusals: Vec<Refusal>,
    pub(in crate::strict) upgrades: Vec<Upgrade>,
}

pub(in crate::strict) type Log = Arc<Mutex<Seen>>;

/// Answers `ok`, after the number of seconds in a path `/wait/SECONDS`.
async fn answer(request: Request<Incoming>, verdicts: Verdicts, log: Log) -> Result<Response<Full<Bytes>>, Infallible> {
    let _under_way = verdicts.under_way();
    match verdicts.next_request() {
        Verdict::Refused(refusal) => {
            log.lock().unwrap().refusals.push(refusal);
            return Ok(refused(refusal));
        }
        Verdict::Upgrade(upgrade) => log.lock().unwrap().upgrades.push(upgrade),
        Verdict::Passed => {}
    }
    let (head, mut body) = request.into_parts();
    let wait = head.uri.path().strip_prefix("/wait/");
    let wait = wait.and_then(|wait| wait.parse().ok()).unwrap_or(0);
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| (name.to_string(), value.as_bytes().to_vec());
    let number = {
        let mut log = log.lock().unwrap();
        log.requests.push(reading::Request {
            method: head.method.to_string(),
            target: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            headers: head.headers.iter().map(header).collect(),
            http11: head.version == http::Version::HTTP_11,
            ..reading::Request::default()
        });
        log.requests.len() - 1
    };
    while let Some(frame) = body.frame().await {
        let mut log = log.lock().unwrap();
        let seen = &mut log.requests[number];
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => seen.body.extend_from_slice(&data),
            Ok(Err(frame)) => seen.trailers = frame.into_trailers().unwrap().iter().map(header).collect(),
            Err(error) => {
                let Some(refusal) = verdicts.body_refusal() else {
                    assert!(
                        format!("{error:?}").contains("UnexpectedEof"),
                        "hyper refuses a body that passed: {error:?}"
                    );
                    break;
                };
                log.refusals.push(refusal);
                return Ok(refused(refusal));
            }
        }
    }
    log.lock().unwrap().requests[number].whole = true;
    sleep(Duration::from_secs(wait)).await;
    Ok(Response::new(Full::new("ok".into())))
}

fn refused(refusal: Refusal) -> Response<Full<Bytes>> {
    let (status, headers, body) = crate::exchange::error(refusal.into());
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let close = http::HeaderValue::from_static("close");
    response.headers_mut().insert(http::header::CONNECTION, close);
    response
}

pub(in crate::strict) fn serve() -> (DuplexStream, Log, JoinHandle<hyper::Result<()>>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let (stream, verdicts) = Stream::new(server, strict::HEAD_TIMEOUT);
    let log = Log::default();
    let seen = Arc::clone(&log);
    let service = hyper::service::service_fn(move |request| answer(request, verdicts.clone(), Arc::clone(&seen)));
    let connection = strict::http1().serve_connection(TokioIo::new(stream), service).with_upgrades();
    (client, log, tokio::spawn(connection))
}

/// Reads until nothing arrives for some seconds. Also returns whether the server has closed its side.
pub(in crate::strict) async fn read(client: &mut DuplexStream, seconds: u64) -> (String, bool) {
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 4096];
        tokio::select! {
            size = client.read(&mut piece) => match size.unwrap() {
                0 => return (String::from_utf8(text).unwrap(), true),
                size => text.extend_from_slice(&piece[..size]),
            },
            () = sleep(Duration::from_secs(seconds)) => return (String::from_utf8(text).unwrap(), false),
        }
    }
}

pub(in crate::strict) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(future)
}

/// Returns a request as hyper presents it: without the headers that hyper hides, and with headers sorted.
fn shown(mut request: reading::Request) -> reading::Request {
    // A path may have the address of another server in it.
    if !request.target.starts_with('/')
        && let Some((_, rest)) = request.target.split_once("://")
    {
        let path = rest.find(['/', '?']).map_or("", |at| &rest[at..]);
        request.target = if path.starts_with('/') { path.into() } else { format!("/{path}") };
    }
    request.headers.sort();
    request.trailers.sort();
    if !request.whole {
        request.trailers.clear();
    }
    request
}

/// Panics if hyper reads other requests, bodies or trailers than the slow reading, or answers differently.
pub(super) async fn check(pieces: &[&[u8]]) {
    let reading = reading::read(&pieces.concat());
    let (mut client, log, server) = serve();
    for piece in pieces {
        // The server may have closed by now.
        let _ = client.write_all(piece).await;
        tokio::task::yield_now().await;
    }
    let (text, ended) = read(&mut client, 1).await;
    server.abort();
    let seen = std::mem::take(&mut *log.lock().unwrap());

    let closed = reading.requests.iter().position(|request| request.whole && !request.keeps_alive());
    let count = closed.map_or(reading.requests.len(), |last| last + 1);
    let requests = &reading.requests[..count];
    let whole = requests.iter().filter(|request| request.whole).count();
    let expected = reading.requests.into_iter().take(count).map(shown);
    let requests = seen.requests.into_iter().map(shown).collect::<Vec<_>>();
    assert_eq!(requests, expected.collect::<Vec<_>>());
    assert_eq!(text.matches(" 200 OK\r\n").count(), whole);
    let refusals = seen.refusals.iter();
    let refusals = refusals.map(|refusal| refusal.status.as_u16()).collect::<Vec<_>>();
    let expected = match reading.end {
        _ if closed.is_some() => vec![],
        End::BadHead(status) => vec![status],
        End::BadBody => vec![400],
        End::More | End::Upgrade => vec![],
    };
    assert_eq!(ended, closed.is_some() || !expected.is_empty());
    let errors = text.matches(r#"{"object":"error","#).count();
    assert_eq!(errors, expected.len());
    assert_eq!(refusals, expected);
}

//! A collector of traces: OTLP over HTTP or gRPC, with or without TLS.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) kind: i32,
    pub(crate) times: (u64, u64),
    /// 0 unset, 2 error.
    pub(crate) status: i32,
    pub(crate) attributes: BTreeMap<String, Value>,
    pub(crate) scope: String,
    pub(crate) resource: BTreeMap<String, Value>,
}

impl Span {
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.attributes.get(key).map(text)
    }

    /// Returns an attribute of the proxy by the last part of its name.
    pub(crate) fn pd(&self, key: &str) -> Option<String> {
        self.get(&format!("llm_d.pd_proxy.{key}"))
    }

    pub(crate) fn context(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(is) => is.to_string(),
        Value::IntValue(count) => count.to_string(),
        other => format!("{other:?}"),
    }
}

type Exports = Arc<Mutex<Vec<(String, HeaderMap, ExportTraceServiceRequest)>>>;

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    exports: Exports,
    open: watch::Sender<bool>,
}

impl Collector {
    pub(crate) async fn http() -> Self {
        Self::start(false, None, true).await
    }

    pub(crate) async fn grpc() -> Self {
        Self::start(true, None, true).await
    }

    pub(crate) async fn with_tls(grpc: bool, tls: rustls::ServerConfig) -> Self {
        Self::start(grpc, Some(tls), true).await
    }

    /// Starts a collector that does not answer until it is opened.
    pub(crate) async fn closed() -> Self {
        Self::start(false, None, false).await
    }

    async fn start(grpc: bool, tls: Option<rustls::ServerConfig>, open: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (exports, open) = (Exports::default(), watch::Sender::new(open));
        let (kept, opened) = (exports.clone(), open.subscribe());
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, opened, tls) = (kept.clone(), opened.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, grpc, kept, opened).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, grpc, kept, opened).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, exports, open }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn asked(&self) -> Vec<(String, HeaderMap)> {
        let exports = self.exports.lock().expect("a lock");
        let heads = exports.iter().map(|(path, headers, _)| (path.clone(), headers.clone()));
        heads.collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let exports = self.exports.lock().expect("a lock");
        let mut spans = Vec::new();
        for resource in exports.iter().flat_map(|(_, _, export)| &export.resource_spans) {
            let told = resource.resource.as_ref().map(|told| &told.attributes[..]);
            for scope in &resource.scope_spans {
                spans.extend(scope.spans.iter().map(|span| Span {
                    name: span.name.clone(),
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    kind: span.kind,
                    times: (span.start_time_unix_nano, span.end_time_unix_nano),
                    status: span.status.as_ref().map_or(0, |status| status.code),
                    attributes: map(&span.attributes),
                    scope: scope.scope.as_ref().map_or_else(String::new, |scope| scope.name.clone()),
                    resource: map(told.unwrap_or_default()),
                }));
            }
        }
        spans.sort_by_key(|span| span.times.0);
        spans
    }

    /// Returns the only span with this name, given without its prefix.
    pub(crate) fn span(&self, name: &str) -> Span {
        let name = format!("llm_d.pd_proxy.{name}");
        let mut found = self.spans();
        found.retain(|span| span.name == name);
        assert_eq!(found.len(), 1, "{name} of {:?}", self.names());
        found.remove(0)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let spans = self.spans();
        let names = spans.iter().map(|span| span.name.replace("llm_d.pd_proxy.", ""));
        names.collect()
    }
}

async fn serve<S>(stream: S, grpc: bool, kept: Exports, opened: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (kept, mut opened) = (kept.clone(), opened.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            opened.wait_for(|open| *open).await.expect("the test goes on");
            // A gRPC message begins with five bytes of framing.
            let message = if grpc { body.slice(5..) } else { body };
            let export = ExportTraceServiceRequest::decode(message).expect("a message of OTLP");
            let mut exports = kept.lock().expect("a lock");
            exports.push((head.uri.path().to_owned(), head.headers, export));
            Ok::<_, Infallible>(taken(grpc))
        }
    });
    let stream = TokioIo::new(stream);
    if grpc {
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(stream, service).await;
    } else {
        let http = hyper::server::conn::http1::Builder::new();
        let _ = http.serve_connection(stream, service).await;
    }
}

fn taken(grpc: bool) -> Response<StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>> {
    let frames = if grpc {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let message = Bytes::from_static(&[0; 5]);
        vec![Ok(Frame::data(message)), Ok(Frame::trailers(trailers))]
    } else {
        Vec::new()
    };
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
    *response.status_mut() = StatusCode::OK;
    let kind = if grpc { "application/grpc" } else { "application/x-protobuf" };
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(kind));
    response
}

fn map(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    let all = attributes.iter();
    all.filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?.value?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

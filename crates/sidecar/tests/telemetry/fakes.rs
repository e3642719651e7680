//! Scripted servers that record their requests, with a sidecar in front of them and its client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use transload_sidecar::settings::{Beside, KvConnector, Limits, Mode, PrefillFailure, Settings, UpstreamTls};
use transload_sidecar::{Otlp, Running, ServerUrl, Target};

use crate::collector::Collector;

/// A text in prompts and secrets that must not be in any span.
pub(crate) const SECRET: &str = "do-not-tell";

/// The time limit of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The answer of a server to a request, given the request's number and body.
pub(crate) type Script = fn(usize, &Value) -> (u16, Value);

/// A server of either role.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<HeaderMap>>>,
    open: watch::Sender<bool>,
    answered: watch::Sender<usize>,
}

impl Fake {
    pub(crate) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<HeaderMap>>>::default();
        let (open, answered) = (watch::Sender::new(true), watch::Sender::new(0));
        let (seen, opened, done) = (asked.clone(), open.subscribe(), answered.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, opened, done) = (seen.clone(), opened.clone(), done.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (seen, mut opened, done) = (seen.clone(), opened.clone(), done.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.expect("a body").to_bytes();
                        let body = serde_json::from_slice(&body).unwrap_or_default();
                        let number = {
                            let mut seen = seen.lock().expect("a lock");
                            seen.push(head.headers);
                            seen.len() - 1
                        };
                        opened.wait_for(|open| *open).await.expect("the test goes on");
                        done.send_modify(|count| *count += 1);
                        let (status, answer) = script(number, &body);
                        let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
                        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
                        let json = http::HeaderValue::from_static("application/json");
                        response.headers_mut().insert("content-type", json);
                        Ok::<_, Infallible>(response)
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, asked, open, answered }
    }

    /// Makes the server hold its answers back, or release them.
    pub(crate) fn hold(&self, holds: bool) {
        self.open.send_replace(!holds);
    }

    /// Waits until the server has answered a request whose client is still connected.
    pub(crate) async fn answered(&self) {
        let mut answered = self.answered.subscribe();
        let waited = tokio::time::timeout(PATIENCE, answered.wait_for(|count| *count > 0));
        assert!(waited.await.is_ok(), "nobody waited for its answer");
    }

    /// Returns the headers of the requests so far.
    pub(crate) fn asked(&self) -> Vec<HeaderMap> {
        self.asked.lock().expect("a lock").clone()
    }
}

/// The answer of a prefill server that has done its part.
pub(crate) fn prefills(_: usize, _: &Value) -> (u16, Value) {
    (200, json!({"kv_transfer_params": {"remote_host": "p"}, "usage": {"prompt_tokens": 3}}))
}

/// The answer of a decode server that has generated text.
pub(crate) fn decodes(_: usize, _: &Value) -> (u16, Value) {
    let choice = json!({"index": 0, "finish_reason": "stop", "message": {"content": SECRET}});
    (200, json!({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}))
}

/// A sidecar with a server of each role and a collector.
pub(crate) struct Scene {
    pub(crate) prefill: Fake,
    pub(crate) decode: Fake,
    pub(crate) collector: Collector,
    running: Running,
}

impl Scene {
    /// Starts the scene. `environment` is the sidecar's. If it names no endpoint, spans go to the collector over HTTP.
    pub(crate) async fn start(
        environment: &[(&str, &str)],
        scripts: (Script, Script),
        settle: impl FnOnce(&mut Settings),
    ) -> Self {
        let collector = Collector::http().await;
        let endpoint = format!("http://{}", collector.address);
        let mut all =
            vec![("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
        all.retain(|(name, _)| !environment.iter().any(|(given, _)| given == name));
        all.extend(environment);
        Self::beside(collector, &all, scripts, settle).await
    }

    pub(crate) async fn beside(
        collector: Collector,
        environment: &[(&str, &str)],
        (prefill, decode): (Script, Script),
        settle: impl FnOnce(&mut Settings),
    ) -> Self {
        let prefill = Fake::start(prefill).await;
        let decode = Fake::start(decode).await;
        let otlp = Otlp::from_environment(&|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let mut settings = settings(decode.address, otlp);
        settle(&mut settings);
        let running = Running::start(settings).await.expect("it starts");
        Self { prefill, decode, collector, running }
    }

    /// Requests a chat completion with these additional headers, and waits for the whole answer.
    pub(crate) async fn chat(&self, headers: &[(&str, &str)]) -> (StatusCode, Bytes) {
        let body = json!({"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4});
        self.ask("/v1/chat/completions", headers, &body).await
    }

    /// Requests a chat completion that names the prefill server.
    pub(crate) async fn disaggregated(&self, headers: &[(&str, &str)]) -> (StatusCode, Bytes) {
        let prefill = self.prefill.address.to_string();
        let mut all = vec![("x-prefiller-host-port", prefill.as_str())];
        all.extend(headers);
        self.chat(&all).await
    }

    pub(crate) async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> (StatusCode, Bytes) {
        let response = self.begin(path, headers, body).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("an answer");
        (status, body.to_bytes())
    }

    /// Sends a request and returns the answer before its body.
    pub(crate) async fn begin(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response<Incoming> {
        let stream = TcpStream::connect(self.running.addresses()[0]);
        let stream = TokioIo::new(stream.await.expect("a connection"));
        let handshake = hyper::client::conn::http1::handshake(stream);
        let (mut sender, connection) = handshake.await.expect("HTTP");
        tokio::spawn(connection);
        let mut request = Request::post(path)
            .header("host", "sidecar")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {SECRET}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::from(body.to_string()));
        let sent = sender.send_request(request.body(body).expect("a request"));
        sent.await.expect("an answer")
    }

    /// Ends the sidecar. Returns the collector and the servers with the requests that they got.
    pub(crate) async fn end(self) -> (Collector, Fake, Fake) {
        let drained = tokio::time::timeout(PATIENCE, self.running.drain(PATIENCE));
        drained.await.expect("it ends");
        (self.collector, self.prefill, self.decode)
    }
}

fn settings(decode: SocketAddr, otlp: Option<Otlp>) -> Settings {
    let target = Target::parse(&decode.to_string()).expect("a target");
    Settings {
        mode: Mode::Sidecar(Beside {
            decode: ServerUrl { tls: false, target },
            ranks: 1,
            pod_ip: None,
            prefill_tls: false,
            sample: false,
            allow: None,
            verify_remote_host: false,
        }),
        connector: KvConnector::NixlV2,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin: None,
        serving_tls: None,
        upstream_tls: UpstreamTls::default(),
        limits: Limits::default(),
        prefill_failure: PrefillFailure::Fallback,
        prefill_retries: 0,
        prefill_backoff: Duration::from_millis(1),
        decode_chunk: None,
        bootstrap_port: 8998,
        trust_client_params: false,
        #[cfg(feature = "tickets")]
        certs: None,
        drain: PATIENCE,
        otlp,
    }
}

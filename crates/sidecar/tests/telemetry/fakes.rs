//! Scripted servers that record their requests, with a sidecar in front of them and its client.

use serde_json::{Value, json};
use transload_sidecar::settings::{Beside, Mode, Settings};
use transload_sidecar::{Otlp, Running, ServerUrl};
use transload_test_servers::{Client, Fake, PATIENCE, Script, request};

use crate::collector::Collector;

/// A text in prompts and secrets that must not be in any span.
pub(crate) const SECRET: &str = "do-not-tell";

/// Returns the status and the body of a server's answer, from the request's number and body.
pub(crate) type Answer = fn(usize, &Value) -> (u16, Value);

/// Returns a server that can be held back.
fn server(answer: Answer) -> Fake {
    Fake::answering(move |number, request| {
        let (status, body) = answer(number, &serde_json::from_slice(&request.body).unwrap_or_default());
        Script { held: Some(0), ..Script::json(status, &body.to_string()) }
    })
}

pub(crate) fn prefills(_: usize, _: &Value) -> (u16, Value) {
    (200, json!({"kv_transfer_params": {"remote_host": "p"}, "usage": {"prompt_tokens": 3}}))
}

pub(crate) fn decodes(_: usize, _: &Value) -> (u16, Value) {
    let choice = json!({"index": 0, "finish_reason": "stop", "message": {"content": SECRET}});
    (200, json!({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}))
}

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
        scripts: (Answer, Answer),
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
        (prefill, decode): (Answer, Answer),
        settle: impl FnOnce(&mut Settings),
    ) -> Self {
        let prefill = server(prefill);
        let decode = server(decode);
        let otlp = Otlp::from_environment(&|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let mut settings = settings(&decode, otlp);
        settle(&mut settings);
        let running = Running::start(settings).await.expect("it starts");
        Self { prefill, decode, collector, running }
    }

    /// Requests a chat completion with these additional headers. Returns the answer's status once the answer is complete.
    pub(crate) async fn chat(&self, headers: &[(&str, &str)]) -> u16 {
        let body = json!({"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4});
        self.ask("/v1/chat/completions", headers, &body).await
    }

    pub(crate) async fn disaggregated(&self, headers: &[(&str, &str)]) -> u16 {
        let prefill = self.prefill.address.to_string();
        self.chat(&[&[("x-prefiller-host-port", prefill.as_str())], headers].concat()).await
    }

    pub(crate) async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> u16 {
        let answer = self.begin(path, headers, body).await.answer().await;
        assert!(answer.whole, "{answer:?}");
        answer.status()
    }

    /// Asks, and returns before there is an answer.
    pub(crate) async fn begin(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Client {
        let mut client = Client::connect(self.running.addresses()[0]).await;
        let secret = format!("Bearer {SECRET}");
        let headers = [&[("authorization", &*secret)], headers].concat();
        client.send(request("POST", path, &headers, &body.to_string())).await.expect("it takes a request");
        client
    }

    /// Ends the sidecar. Returns the collector and the servers with the requests that they got.
    pub(crate) async fn end(self) -> (Collector, Fake, Fake) {
        let drained = tokio::time::timeout(PATIENCE, self.running.drain(PATIENCE));
        drained.await.expect("it ends");
        (self.collector, self.prefill, self.decode)
    }
}

fn settings(decode: &Fake, otlp: Option<Otlp>) -> Settings {
    let beside = Beside::new(ServerUrl::parse(&decode.url()).expect("a URL"));
    let mode = Mode::Sidecar(Beside { verify_remote_host: false, ..beside });
    Settings { admin: None, otlp, ..Settings::new(mode, ([127, 0, 0, 1], 0).into()) }
}

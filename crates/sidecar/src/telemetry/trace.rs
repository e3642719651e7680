//! The trace of one request: a span for the request and one for each leg.

use std::time::{Duration, Instant, SystemTime};

use http::header::HeaderValue;
use http::{HeaderMap, StatusCode};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use super::{Telemetry, context};
use crate::Role;
use crate::exchange::{Event, Route, Tally};
use crate::observe::{Outcome, Path};
use crate::settings::{KvConnector, Mode, Settings};
use crate::target::{ServerUrl, Target};

/// The trace of one request. If nothing is exported it is empty, and every call costs one branch.
///
/// A leg that has ended keeps its span until the next leg is sent or the request ends, since its answer may still prove
/// to be a failure. A trace that is dropped before [`finish`](Self::finish) belongs to a client that has left.
pub(crate) struct Trace(Option<Box<Kind>>);

#[expect(clippy::large_enum_variant, reason = "all of them are boxed")]
enum Kind {
    /// The trace is not sampled. Servers get this context, so that they do not sample it either.
    NotRecorded(SpanContext),
    Recorded(Recorded),
    /// The trace has ended except for a prefill leg, which may continue.
    Over(Leg),
}

struct Recorded {
    tracer: SdkTracer,
    request: Span,
    accepted: Instant,
    id: String,
    connector: KvConnector,
    /// The number of prefill servers that the client names.
    candidates: i64,
    /// The client has chosen the data-parallel rank.
    data_parallel: bool,
    streaming: bool,
    prefill: Option<Leg>,
    decode: Option<Leg>,
    chunked: Option<(Span, Instant)>,
    first_byte: Option<Instant>,
}

/// The span of a leg. Dropping it ends the span, with the time at which the leg ended.
pub(crate) struct Leg {
    span: Span,
    role: Role,
    began: Instant,
    ended: Option<Instant>,
    failed: bool,
}

impl Trace {
    /// Starts the trace of a request to a P/D route, as a child of the client's span.
    pub(crate) fn begin(
        telemetry: Option<&Telemetry>,
        settings: &Settings,
        route: Route,
        headers: &HeaderMap,
        id: &str,
        rank: u16,
    ) -> Self {
        let Some(telemetry) = telemetry else {
            return Self(None);
        };
        let parent = match context::extract(headers) {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let builder = SpanBuilder::from_name("llm_d.pd_proxy.request").with_kind(SpanKind::Server);
        let mut request = telemetry.tracer.build_with_context(builder, &parent);
        if !request.span_context().is_valid() {
            // The process is shutting down.
            return Self(None);
        }
        if !request.is_recording() {
            let context = request.span_context().clone();
            return Self(Some(Box::new(Kind::NotRecorded(context))));
        }
        let (path, api) = match route {
            Route::ChatCompletions => ("/v1/chat/completions", "chat_completions"),
            Route::Completions => ("/v1/completions", "chat_completions"),
            Route::Responses => ("/v1/responses", "responses"),
            Route::Messages => ("/v1/messages", "messages"),
            Route::Tokens => ("/inference/v1/generate", "generate"),
            Route::Generate => ("/generate", "generate"),
        };
        let connector = settings.connector.name();
        request.set_attributes([
            KeyValue::new("llm_d.pd_proxy.connector", connector),
            KeyValue::new("llm_d.pd_proxy.kv_connector", connector),
            KeyValue::new("llm_d.pd_proxy.request_path", path),
            KeyValue::new("llm_d.pd_proxy.request_id", id.to_owned()),
            KeyValue::new("llm_d.openai.api", api),
        ]);
        let (candidates, data_parallel) = match &settings.mode {
            Mode::Sidecar(beside) => {
                let named = headers.get("x-data-parallel-host-port");
                let chosen = beside.ranks > 1 && rank == 0 && named.is_some_and(|n| !n.is_empty());
                (candidates(headers), chosen)
            }
            Mode::Proxy(_) => (0, false),
        };
        Self(Some(Box::new(Kind::Recorded(Recorded {
            tracer: telemetry.tracer.clone(),
            request,
            accepted: Instant::now(),
            id: id.to_owned(),
            connector: settings.connector,
            candidates,
            data_parallel,
            streaming: false,
            prefill: None,
            decode: None,
            chunked: None,
            first_byte: None,
        }))))
    }

    fn recorded(&mut self) -> Option<&mut Recorded> {
        match self.0.as_deref_mut() {
            Some(Kind::Recorded(recorded)) => Some(recorded),
            _ => None,
        }
    }

    pub(crate) fn denied(&mut self, target: &Target) {
        if let Some(recorded) = self.recorded() {
            let why = "the prefill target is not on the allow-list";
            recorded.request.set_attributes([
                KeyValue::new("llm_d.pd_proxy.error", "ssrf_protection_denied"),
                KeyValue::new("llm_d.pd_proxy.denied_target", target.to_string()),
            ]);
            recorded.request.set_status(Status::error(why));
        }
    }

    /// Records whether a prefill server is used, or the reason why not, and whether the client wants its answer as
    /// events.
    pub(crate) fn chosen(&mut self, decode_only: Option<&'static str>, streaming: bool) {
        let Some(recorded) = self.recorded() else {
            return;
        };
        recorded.streaming = streaming;
        let used = KeyValue::new("llm_d.pd_proxy.disaggregation_used", decode_only.is_none());
        recorded.request.set_attribute(used);
        if let Some(reason) = decode_only {
            let reason = KeyValue::new("llm_d.pd_proxy.reason", reason);
            recorded.request.set_attribute(reason);
        } else if recorded.candidates > 0 {
            let count = KeyValue::new("llm_d.pd_proxy.prefill_candidates", recorded.candidates);
            recorded.request.set_attribute(count);
        }
    }

    /// Adds the context of the request's own span to the headers for a server.
    pub(crate) fn pass(&self, headers: &mut HeaderMap) {
        match self.0.as_deref() {
            None | Some(Kind::Over(_)) => {}
            Some(Kind::NotRecorded(of)) => context::inject(of, headers),
            Some(Kind::Recorded(recorded)) => {
                context::inject(recorded.request.span_context(), headers);
            }
        }
    }

    /// Starts the span of a leg and adds its context to the headers for the server.
    pub(crate) fn leg(
        &mut self,
        role: Role,
        server: &ServerUrl,
        tally: Option<Tally>,
        headers: &mut HeaderMap,
        now: Instant,
    ) {
        match self.0.as_deref_mut() {
            None | Some(Kind::Over(_)) => {}
            Some(Kind::NotRecorded(of)) => context::inject(of, headers),
            Some(Kind::Recorded(recorded)) => {
                let span = recorded.leg(role, server, tally, now);
                context::inject(span.span_context(), headers);
            }
        }
    }

    pub(crate) fn on(&mut self, event: &Event, now: Instant) {
        let Some(recorded) = self.recorded() else {
            return;
        };
        match event {
            Event::Head(role, status, _) => {
                if let Some(leg) = recorded.of(*role) {
                    leg.answered(*status);
                }
            }
            Event::End(role, _) => recorded.ended(*role, now),
            Event::Failed(role, _) => recorded.failed(*role, now),
            Event::Data(..) | Event::Tick => {}
        }
    }

    pub(crate) fn stopped(&mut self, role: Role) {
        if let Some(recorded) = self.recorded() {
            recorded.ended(role, Instant::now());
        }
    }

    /// Records that the server of a leg has failed, whatever its status was.
    pub(crate) fn failed(&mut self, role: Role, now: Instant) {
        if let Some(recorded) = self.recorded() {
            recorded.failed(role, now);
        }
    }

    /// Takes the span of a prefill leg that continues after the request.
    pub(crate) fn detach(&mut self) -> Option<Leg> {
        match self.0.take().map(|kind| *kind) {
            Some(Kind::Over(leg)) => Some(leg),
            Some(other) => {
                self.0 = Some(Box::new(other));
                None
            }
            None => None,
        }
    }

    pub(crate) fn first_byte(&mut self, now: Instant) {
        if let Some(recorded) = self.recorded() {
            recorded.first_byte.get_or_insert(now);
        }
    }

    /// Ends the trace. Later calls have no effect.
    pub(crate) fn finish(&mut self, outcome: Outcome, path: Path, status: Option<StatusCode>, tally: Option<Tally>) {
        if let Some(recorded) = self.recorded() {
            let path = KeyValue::new("transload.path", path.name());
            recorded.request.set_attribute(path);
            let left = recorded.finish(outcome, status, tally, Instant::now());
            self.0 = left.map(|leg| Box::new(Kind::Over(leg)));
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(recorded) = self.recorded() {
            recorded.finish(Outcome::ClientLeft, None, None, Instant::now());
        }
    }
}

impl Recorded {
    fn of(&mut self, role: Role) -> Option<&mut Leg> {
        match role {
            Role::Prefill => self.prefill.as_mut(),
            Role::Decode => self.decode.as_mut(),
        }
    }

    /// Returns whether a leg is one of several of a chunked decode, so that its end is not the end of the decode.
    fn is_chunk(&self, role: Role) -> bool {
        role == Role::Decode && self.chunked.is_some()
    }

    fn ended(&mut self, role: Role, now: Instant) {
        let chunk = self.is_chunk(role);
        if let Some(leg) = self.of(role).filter(|_| !chunk) {
            leg.ended.get_or_insert(now);
        }
    }

    fn failed(&mut self, role: Role, now: Instant) {
        let chunk = self.is_chunk(role);
        if let Some(leg) = self.of(role).filter(|_| !chunk) {
            leg.fail();
            leg.ended.get_or_insert(now);
        }
    }

    /// Starts the span of a leg. The legs of a chunked decode share one.
    fn leg(&mut self, role: Role, server: &ServerUrl, tally: Option<Tally>, now: Instant) -> &Span {
        let target = server.target.to_string();
        if role == Role::Prefill {
            // A decode leg that has ended before was a probe, which found too little of the prompt in the cache.
            self.decode = self.decode.take().filter(|leg| leg.ended.is_none());
            let chosen = KeyValue::new("llm_d.pd_proxy.prefill_target", target.clone());
            self.request.set_attribute(chosen);
            let mut leg = self.child("llm_d.pd_proxy.prefill", role, now);
            let target = KeyValue::new("llm_d.pd_proxy.prefill_target", target);
            leg.span.set_attribute(target);
            if self.connector == KvConnector::Sglang {
                let at_once = KeyValue::new("llm_d.pd_proxy.prefill.async", true);
                leg.span.set_attribute(at_once);
            }
            return &self.prefill.insert(leg).span;
        }
        if tally.is_none() || self.chunked.is_none() {
            let mut leg = self.child("llm_d.pd_proxy.decode", role, now);
            leg.span.set_attributes([
                KeyValue::new("llm_d.pd_proxy.decode.target", target),
                KeyValue::new("llm_d.pd_proxy.decode.streaming", self.streaming),
                KeyValue::new("llm_d.pd_proxy.decode.data_parallel", self.data_parallel),
            ]);
            self.decode = Some(leg);
        }
        if let (Some(tally), None, Some(decode)) = (tally, &self.chunked, &self.decode) {
            let name = "llm_d.pd_proxy.chunked_decode";
            let mut span = child(&self.tracer, &decode.span, name);
            span.set_attributes([
                count("llm_d.pd_proxy.chunked_decode.chunk_size", tally.size),
                KeyValue::new("llm_d.pd_proxy.chunked_decode.streaming", self.streaming),
            ]);
            self.chunked = Some((span, now));
        }
        match (&self.chunked, &self.decode) {
            (Some((span, _)), _) | (None, Some(Leg { span, .. })) => span,
            (None, None) => &self.request,
        }
    }

    fn child(&self, name: &'static str, role: Role, now: Instant) -> Leg {
        let mut span = child(&self.tracer, &self.request, name);
        span.set_attributes([
            KeyValue::new("llm_d.pd_proxy.request_id", self.id.clone()),
            KeyValue::new("llm_d.pd_proxy.connector", self.connector.name()),
        ]);
        Leg { span, role, began: now, ended: None, failed: false }
    }

    /// Ends all spans, except that of a prefill leg that is still running, which is returned.
    fn finish(
        &mut self,
        outcome: Outcome,
        status: Option<StatusCode>,
        tally: Option<Tally>,
        now: Instant,
    ) -> Option<Leg> {
        let lost = outcome == Outcome::UpstreamFailed;
        if let Some((mut span, began)) = self.chunked.take() {
            let tally = tally.unwrap_or_default();
            let took = now.saturating_duration_since(began);
            span.set_attributes([
                count("llm_d.pd_proxy.chunked_decode.chunks", tally.legs),
                count("llm_d.pd_proxy.chunked_decode.total_tokens", tally.tokens),
                millis("llm_d.pd_proxy.chunked_decode.duration_ms", took),
            ]);
            if lost {
                span.set_status(Status::error("chunk decode failed"));
            }
        }
        // Set now: dropping the decode leg below ends its span.
        self.totals(now);
        if let Some(mut leg) = self.decode.take() {
            leg.ended.get_or_insert(now);
            if lost {
                leg.fail();
            }
        }
        if let Some(status) = status {
            let code = i64::from(status.as_u16());
            let code = KeyValue::new("http.response.status_code", code);
            self.request.set_attribute(code);
        }
        if lost || status.is_some_and(|status| status.is_server_error()) {
            let why = "no server gave a whole answer";
            self.request.set_status(Status::error(why));
        }
        let outcome = KeyValue::new("transload.outcome", outcome.name());
        self.request.set_attribute(outcome);
        self.request.end();
        self.prefill.take().filter(|leg| leg.ended.is_none())
    }

    fn totals(&mut self, now: Instant) {
        let Some(decode) = &mut self.decode else {
            return;
        };
        let since = |at: Instant, from: Instant| at.saturating_duration_since(from);
        let total = since(now, self.accepted);
        let mut of = vec![
            millis("llm_d.pd_proxy.total_duration_ms", total),
            millis("llm_d.pd_proxy.decode_duration_ms", decode.took(now)),
        ];
        if let Some(at) = self.first_byte {
            let first = since(at, self.accepted);
            of.push(millis("llm_d.pd_proxy.true_ttft_ms", first));
        }
        if let Some(prefill) = self.prefill.as_ref().filter(|leg| !leg.failed) {
            let at_once = self.connector == KvConnector::Sglang;
            if at_once {
                let name = "llm_d.pd_proxy.decode.concurrent_with_prefill";
                of.push(KeyValue::new(name, true));
                of.push(KeyValue::new("llm_d.pd_proxy.concurrent_pd", true));
            }
            if let Some(ended) = prefill.ended {
                let took = prefill.took(now);
                of.push(millis("llm_d.pd_proxy.prefill_duration_ms", took));
                if !at_once {
                    let ours = since(decode.began, ended);
                    of.push(millis("llm_d.pd_proxy.coordinator_overhead_ms", ours));
                }
            }
        }
        decode.span.set_attributes(of);
    }
}

impl Leg {
    fn answered(&mut self, status: StatusCode) {
        if self.role == Role::Prefill {
            let code = i64::from(status.as_u16());
            let code = KeyValue::new("llm_d.pd_proxy.prefill.status_code", code);
            self.span.set_attribute(code);
        }
        if !status.is_success() {
            self.fail();
        }
    }

    fn fail(&mut self) {
        self.failed = true;
        self.span.set_status(Status::error(match self.role {
            Role::Prefill => "prefill request failed",
            Role::Decode => "decode request failed",
        }));
    }

    fn took(&self, now: Instant) -> Duration {
        let ended = self.ended.unwrap_or(now);
        ended.saturating_duration_since(self.began)
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        let now = Instant::now();
        let took = self.took(now);
        self.span.set_attribute(match self.role {
            Role::Prefill => millis("llm_d.pd_proxy.prefill.duration_ms", took),
            Role::Decode => millis("llm_d.pd_proxy.decode.duration_ms", took),
        });
        let ago = now.saturating_duration_since(self.ended.unwrap_or(now));
        let at = SystemTime::now();
        self.span.end_with_timestamp(at.checked_sub(ago).unwrap_or(at));
    }
}

fn child(tracer: &SdkTracer, of: &Span, name: &'static str) -> Span {
    let parent = Context::new().with_remote_span_context(of.span_context().clone());
    let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal);
    tracer.build_with_context(builder, &parent)
}

/// Counts the prefill servers that a client names: each of several lines is one, a single line is a comma-separated
/// list.
fn candidates(headers: &HeaderMap) -> i64 {
    let lines: Vec<&HeaderValue> = headers.get_all("x-prefiller-host-port").iter().collect();
    let count = match lines[..] {
        [line] => line.as_bytes().split(|byte| *byte == b',').count(),
        _ => lines.len(),
    };
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn count(name: &'static str, count: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

fn millis(name: &'static str, time: Duration) -> KeyValue {
    KeyValue::new(name, Value::F64(time.as_secs_f64() * 1_000.0))
}

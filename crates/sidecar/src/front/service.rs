//! Decides how a request is handled: as an exchange, or forwarded unchanged.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::CONNECTION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use super::connections::Busy;
use super::driver::{Driver, Piece};
use super::headers::{self, DATA_PARALLEL, PREFILLER, REQUEST_ID};
use super::incoming::{not_json, parse, whole};
use super::params::{may_hide, without_params};
use super::reply::{self, Reply};
use super::{Choice, Client, Front};
use crate::Role;
use crate::exchange::request::{Bootstrap, several_prompts};
use crate::exchange::{Exchange, Meeting, Request as Wanted, Route, Trouble};
use crate::json;
use crate::observe::{Outcome, Path, Record};
use crate::servers::prefix;
use crate::settings::{KvConnector, Mode, Policy};
use crate::strict::{Verdict, Verdicts};
use crate::target::{self, ServerUrl};
use crate::telemetry::Trace;

impl Front {
    /// Never fails: a fault is an error answer, or a body that breaks off.
    pub(super) async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        client: Client,
        verdict: Verdict,
        verdicts: &Verdicts,
    ) -> Result<Response<Reply>, Infallible> {
        let under_way = verdicts.under_way();
        let is_old = request.version() == Version::HTTP_10;
        let busy = request.extensions().get::<Busy>().cloned();
        let response = self.respond(request, client, verdict, verdicts).await;
        Ok(response.map(|body| body.under_way(under_way, is_old, busy)))
    }

    async fn respond(
        self: &Arc<Self>,
        request: Request<Incoming>,
        client: Client,
        verdict: Verdict,
        verdicts: &Verdicts,
    ) -> Response<Reply> {
        let upgrade = match verdict {
            Verdict::Passed => None,
            Verdict::Upgrade(upgrade) => Some(upgrade),
            Verdict::Refused(refusal) => return reply::refusal(refusal.into()),
        };
        let route =
            Route::of(request.uri().path(), self.settings.connector).filter(|_| request.method() == Method::POST);
        let place = match self.clients.enter(client.address.ip()) {
            Ok(place) => place,
            Err(trouble) => {
                if route.is_some() {
                    let record = self.observer.begin(&request_id(), Instant::now());
                    record.status(trouble.status.as_u16());
                    record.finish(Outcome::Rejected, Instant::now());
                }
                return reply::refusal(trouble);
            }
        };
        let response = if request.method() == Method::GET && self.is_health(request.uri().path()) {
            Ok(self.health(request.uri().path()))
        } else {
            match route {
                Some(route) => self.disaggregate(route, request, client).await,
                None => self.pass(request, client, upgrade).await,
            }
        };
        let response = response.unwrap_or_else(|trouble| {
            // The stream knows more precisely what was wrong with the body's framing.
            let refusal = verdicts.body_refusal();
            let is_unread = refusal.is_some()
                || matches!(trouble.status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE);
            let mut response = reply::refusal(refusal.map_or(trouble, Into::into));
            if is_unread {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            response
        });
        response.map(|body| body.holding(place))
    }

    fn is_health(&self, path: &str) -> bool {
        match &self.settings.mode {
            Mode::Sidecar(_) => path == "/health",
            Mode::Proxy(_) => matches!(path, "/health" | "/healthcheck"),
        }
    }

    fn health(&self, path: &str) -> Response<Reply> {
        if path == "/health" {
            return reply::empty(StatusCode::OK);
        }
        let count = |role| self.servers.snapshot().iter().filter(|server| server.role == role).count();
        let body = serde_json::json!({
            "status": "ok",
            "prefill_instances": count(Role::Prefill),
            "decode_instances": count(Role::Decode),
        });
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        reply::with(StatusCode::OK, headers, body.to_string().into())
    }

    async fn disaggregate(
        self: &Arc<Self>,
        route: Route,
        request: Request<Incoming>,
        client: Client,
    ) -> Result<Response<Reply>, Trouble> {
        let (mut head, body) = request.into_parts();
        let id = request_id();
        if let Some(theirs) = head.headers.get(REQUEST_ID) {
            tracing::debug!(id, ?theirs, "the client's own request id");
        }
        let record = self.observer.begin(&id, Instant::now());
        let mut trace = Trace::begin(self.telemetry.as_deref(), &self.settings, route, &head.headers, &id, client.rank);
        let begun = self.begin(route, &mut head, body, client, &id, (&record, &mut trace)).await;
        let (exchange, choice) = match begun {
            Ok(Begun::Exchange(exchange, choice)) => (exchange, choice),
            Ok(Begun::Passed(text)) => {
                record.path(Path::DecodeOnly);
                let reason = match &self.settings.mode {
                    Mode::Sidecar(_) => "no_prefill_header",
                    Mode::Proxy(_) => "not_json",
                };
                trace.chosen(Some(reason), false);
                trace.pass(&mut head.headers);
                let response = self.pass_whole(head, text, client).await;
                let (outcome, status) = match &response {
                    Ok(response) if response.status().as_u16() < 400 => (Outcome::Ok, response.status()),
                    Ok(response) => (Outcome::ErrorStatus, response.status()),
                    Err(trouble) => (Outcome::UpstreamFailed, trouble.status),
                };
                record.status(status.as_u16());
                record.finish(outcome, Instant::now());
                trace.finish(outcome, Path::DecodeOnly, Some(status), None);
                return response;
            }
            Err(trouble) => {
                record.status(trouble.status.as_u16());
                let outcome =
                    if trouble.status.is_server_error() { Outcome::UpstreamFailed } else { Outcome::Rejected };
                record.finish(outcome, Instant::now());
                trace.finish(outcome, Path::Rejected, Some(trouble.status), None);
                return Err(trouble);
            }
        };
        let path = path_of(&head.uri);
        let mut driver =
            Box::new(Driver::new(self.clone(), *exchange, (head.method, path, head.headers), choice, record, trace));
        let piece = std::future::poll_fn(|cx| driver.poll_piece(cx)).await;
        match piece {
            Piece::Head(status, headers, reason) => {
                let mut response = Response::new(Reply::exchange(driver));
                if let Some(reason) = reason {
                    response.extensions_mut().insert(reason);
                }
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                Ok(response)
            }
            // The first piece of an exchange is always a head.
            _ => Err(Trouble::new(StatusCode::BAD_GATEWAY, "The servers gave no answer.")),
        }
    }

    async fn begin(
        &self,
        route: Route,
        head: &mut http::request::Parts,
        body: Incoming,
        client: Client,
        id: &str,
        (record, trace): (&Record, &mut Trace),
    ) -> Result<Begun, Trouble> {
        let named = self.named_prefill(&head.headers, trace)?;
        let decode = self.decode_of(&head.headers, client)?;
        if headers::is_encoded(&head.headers) {
            let message = "The body has a Content-Encoding. Send it without one.";
            return Err(Trouble::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let text = whole(Bytes::new(), body, &self.settings.limits, &self.rules.bodies).await?;
        record.received(Instant::now());
        let object = match parse(text.clone()).await {
            Ok(object) => object,
            Err(wrong) if named.is_some() || may_hide(&text, wrong) => return Err(not_json(wrong)),
            Err(_) => return Ok(Begun::Passed(text)),
        };
        let object = match self.settings.trust_client_params {
            true => object,
            false => {
                let text = without_params(&object)?;
                // If nothing was removed the parsed object is still valid.
                if text.as_ptr() == object.text().as_ptr() { object } else { parse(text).await.map_err(not_json)? }
            }
        };
        let several = several_prompts(route, &object);
        if several && named.is_some() {
            let message =
                "The body holds several prompts, whose KV cache cannot be prefilled as one. Send one prompt a request.";
            return Err(Trouble::bad_request(message));
        }
        let prompt = route.prompt(&object);
        let tokens = prefix::tokens(prompt.as_bytes());
        let mut choice = Choice { prefill: named, decode, tokens, ..Choice::default() };
        let disaggregated = match &self.settings.mode {
            Mode::Sidecar(_) => choice.prefill.is_some(),
            Mode::Proxy(choosing) => {
                if choosing.policy == Policy::Prefix {
                    choice.prefix = Some(prefix::key(prompt.as_bytes()));
                }
                !several && tokens >= choosing.min_prompt && self.servers.any(Role::Prefill)
            }
        };
        let bootstrap = match self.settings.connector {
            KvConnector::Sglang if disaggregated => self.bootstrap(&mut choice),
            _ => None,
        };
        let meeting = match self.settings.connector {
            KvConnector::NixlV2 if disaggregated && self.settings.overlap => Some(self.meeting(&mut choice)),
            _ => None,
        };
        let reads_answers = disaggregated || self.rules.decode_chunk.is_some();
        headers::to_server(&mut head.headers);
        let id = HeaderValue::from_str(id).map_err(|_| Trouble::bad_request("no id"))?;
        headers::to_legs(&mut head.headers, &id, reads_answers);
        self.authorize(&mut head.headers);
        let disaggregated = disaggregated && (self.settings.connector != KvConnector::Sglang || bootstrap.is_some());
        let decode_only = match &self.settings.mode {
            _ if disaggregated => None,
            Mode::Sidecar(_) => Some("no_prefill_header"),
            Mode::Proxy(_) if several => Some("several_prompts"),
            Mode::Proxy(choosing) if tokens < choosing.min_prompt => Some("short_prompt"),
            Mode::Proxy(_) => Some("no_prefill_server"),
        };
        trace.chosen(decode_only, object.get("stream") == Some("true"));
        let wanted = Wanted { route, body: object, disaggregated, bootstrap, meeting };
        Ok(Begun::Exchange(Box::new(Exchange::new(self.rules.clone(), wanted, Instant::now())), choice))
    }

    fn named_prefill(&self, headers: &HeaderMap, trace: &mut Trace) -> Result<Option<ServerUrl>, Trouble> {
        let Mode::Sidecar(beside) = &self.settings.mode else {
            return Ok(None);
        };
        let lines = headers.get_all(PREFILLER).iter().map(HeaderValue::as_bytes);
        let draw = |count| {
            if beside.sample { rand::random_range(0..count) } else { 0 }
        };
        let Some(target) =
            target::named(lines, draw).map_err(|wrong| Trouble::bad_request(format!("{PREFILLER}: {wrong}.")))?
        else {
            return Ok(None);
        };
        if !target::allowed(beside.allow.as_ref(), &target) {
            tracing::warn!(%target, "a request named a prefill server that is not allowed");
            trace.denied(&target);
            return Err(Trouble::new(
                StatusCode::FORBIDDEN,
                format!("{PREFILLER} names a server that is not allowed."),
            ));
        }
        Ok(Some(ServerUrl { tls: beside.prefill_tls, target }))
    }

    /// Returns the only decode server for a request in a sidecar; `None` in a proxy.
    pub(super) fn decode_of(&self, headers: &HeaderMap, client: Client) -> Result<Option<ServerUrl>, Trouble> {
        let Mode::Sidecar(beside) = &self.settings.mode else {
            return Ok(None);
        };
        let mut rank = client.rank;
        if let Some(named) = headers.get(DATA_PARALLEL).filter(|named| !named.is_empty() && rank == 0) {
            let port = self.settings.listen.port();
            let host = beside.pod_ip.as_deref().unwrap_or_default();
            let found = (0..beside.ranks).find(|rank| {
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
                named.as_bytes() == format!("{host}:{}", port.saturating_add(*rank)).as_bytes()
            });
            rank = found.ok_or_else(|| Trouble::silent(StatusCode::BAD_REQUEST))?;
        }
        Ok(Some(beside.decode_of(rank)))
    }

    /// Chooses the prefill server that is asked first, and says how a decode server can meet it.
    fn meeting(&self, choice: &mut Choice) -> Meeting {
        choice.taken = self.claim(Role::Prefill, choice, &[], None, Instant::now());
        let earlier = choice.taken.as_ref().and_then(|claim| self.meetings.with(claim.url()));
        Meeting { id: rand::random(), earlier }
    }

    /// Returns the meeting point for SGLang's servers at the prefill server, which is chosen here and stays fixed.
    fn bootstrap(&self, choice: &mut Choice) -> Option<Bootstrap> {
        if choice.prefill.is_none() {
            let claim = self.claim(Role::Prefill, choice, &[], None, Instant::now())?;
            choice.prefill = Some(claim.url().clone());
            choice.taken = Some(claim);
        }
        let host = choice.prefill.as_ref()?.target.host.to_string();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Bootstrap {
            host: json::string(host),
            port: self.settings.bootstrap_port,
            room: rand::random::<u64>() >> 1,
        })
    }

    /// Adds our own API key if the client sends no authorization.
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        if let Mode::Proxy(choosing) = &self.settings.mode
            && let Some(key) = &choosing.api_key
            && !headers.contains_key(http::header::AUTHORIZATION)
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", key.0))
        {
            value.set_sensitive(true);
            headers.insert(http::header::AUTHORIZATION, value);
        }
    }
}

enum Begun {
    Exchange(Box<Exchange>, Choice),
    /// The body is not a JSON object for any parser. The decode server judges it.
    Passed(Bytes),
}

pub(super) fn path_of(uri: &http::Uri) -> PathAndQuery {
    uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}

/// Creates a request id of our own, the same on both legs: 128 random bits.
fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

//! Runs one exchange: sends its legs, reports their events, and passes its output to the client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::ext::ReasonPhrase;
use tokio::time::Sleep;

use super::{Choice, Front, Phase};
use crate::Role;
use crate::exchange::{Action, Asked, Event, Exchange, Failure};
use crate::observe::{FailureKind, Outcome, Path, Record};
use crate::servers::{Claim, Pair};
use crate::socket::{Peer, is_local};
use crate::target::ServerUrl;
use crate::telemetry::Trace;
use crate::upstream::{Answer, Outgoing, SendError};

/// A running exchange. Dropping it early means that the client has left, and aborts every leg.
pub(super) struct Driver {
    front: Arc<Front>,
    exchange: Exchange,
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    choice: Choice,
    record: Option<Record>,
    trace: Trace,
    /// The status of the client's answer.
    status: Option<StatusCode>,
    /// The status of the last head that has a reason phrase of the server's own, with that phrase.
    reason: Option<(StatusCode, ReasonPhrase)>,
    prefill: Option<Leg>,
    decode: Option<Leg>,
    /// The leg that ended last; its answer may still prove to be a failure.
    ended: Option<(Role, Leg)>,
    /// A pair of servers that may not fit each other.
    suspect: Option<Pair>,
    asked: Vec<(Role, ServerUrl)>,
    timer: Option<Pin<Box<Sleep>>>,
    /// The number of bytes of the client's answer that are still to come, if its head announces a length.
    left: Option<u64>,
    written: bool,
    over: bool,
}

struct Leg {
    claim: Claim,
    state: LegState,
    reason: Option<ReasonPhrase>,
    peer: Option<Peer>,
    /// The server has failed although it answers.
    blamed: bool,
}

enum LegState {
    Asked(Pin<Box<dyn Future<Output = Result<Response<Answer>, SendError>> + Send>>),
    Answering(Answer, Option<HeaderMap>),
}

pub(super) enum Piece {
    Head(StatusCode, HeaderMap, Option<ReasonPhrase>),
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    Cut,
}

impl Driver {
    pub(super) fn new(
        front: Arc<Front>,
        exchange: Exchange,
        leg: (Method, PathAndQuery, HeaderMap),
        choice: Choice,
        record: Record,
        trace: Trace,
    ) -> Self {
        let (method, path, headers) = leg;
        Self {
            front,
            exchange,
            method,
            path,
            headers,
            choice,
            record: Some(record),
            trace,
            status: None,
            reason: None,
            prefill: None,
            decode: None,
            ended: None,
            suspect: None,
            asked: Vec::new(),
            timer: None,
            left: None,
            written: false,
            over: false,
        }
    }

    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        let piece = std::task::ready!(self.poll_next(cx));
        if self.left == Some(0) && !self.over {
            // hyper does not poll past the announced length, so the actions after the last byte are carried out now.
            let _ = self.poll_next(cx);
        }
        Poll::Ready(piece)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        loop {
            while let Some(action) = self.exchange.next() {
                if let Some(piece) = self.act(action) {
                    return Poll::Ready(piece);
                }
            }
            if let Some((_, leg)) = self.ended.take()
                && !leg.blamed
            {
                leg.claim.succeeded(Instant::now());
            }
            if self.over {
                return Poll::Ready(Piece::End);
            }
            let decode = if self.exchange.holds_decode() { None } else { self.poll_leg(Role::Decode, cx) };
            let event = decode.or_else(|| self.poll_leg(Role::Prefill, cx)).or_else(|| self.poll_timer(cx));
            let Some(event) = event else {
                return Poll::Pending;
            };
            let now = Instant::now();
            self.note(&event, now);
            self.exchange.on(event, now);
        }
    }

    fn act(&mut self, action: Action) -> Option<Piece> {
        match action {
            Action::Send { role, body, elsewhere } => self.send(role, body, elsewhere),
            Action::Stop(role) => {
                *self.leg(role) = None;
                self.trace.stopped(role);
            }
            Action::Detach(role, until) => {
                if let Some(leg) = self.leg(role).take() {
                    let span = self.trace.detach();
                    let running_out = async move {
                        leg.run_out().await;
                        drop(span);
                    };
                    tokio::spawn(tokio::time::timeout_at(until.into(), running_out));
                }
            }
            Action::Suspect => {
                self.suspect = self.decode.as_ref().and_then(|leg| leg.claim.pair());
            }
            Action::Misfit => {
                let now = Instant::now();
                if let Some(pair) = self.suspect.take() {
                    pair.misfits(now);
                }
                if let Some(record) = &self.record {
                    record.failure(Role::Prefill, FailureKind::Misfit, now);
                }
            }
            Action::Learn(earlier) => {
                let mut asked = self.asked.iter().rev();
                if let Some((_, url)) = asked.find(|(role, _)| *role == Role::Prefill) {
                    self.front.meetings.learn(url, earlier);
                }
            }
            Action::Release(params) => self.front.release(params),
            Action::Blame(role, kind) => {
                let now = Instant::now();
                let ended = self.ended.as_mut().filter(|(ended, _)| *ended == role).map(|(_, leg)| leg);
                let leg = match role {
                    Role::Prefill => self.prefill.as_mut(),
                    Role::Decode => self.decode.as_mut(),
                };
                if let Some(leg) = leg.or(ended) {
                    leg.blamed = true;
                    match (role, kind) {
                        (Role::Prefill, FailureKind::Timeout) => {
                            leg.claim.leave_to(self.front.upstream.clone());
                        }
                        _ => leg.claim.failed(kind, now),
                    }
                }
                if let Some(record) = &self.record {
                    record.failure(role, kind, now);
                }
                self.trace.failed(role, now);
            }
            Action::Answer(status, headers) => {
                if self.exchange.is_settled() {
                    // Path and headers share the buffer that the request was read into; replacing them frees it.
                    self.path = PathAndQuery::from_static("/");
                    self.headers = HeaderMap::new();
                }
                self.status = Some(status);
                let length = headers.get(CONTENT_LENGTH);
                self.left = length.and_then(|length| length.to_str().ok()?.parse().ok());
                if let Some(record) = &self.record {
                    record.status(status.as_u16());
                }
                let reason = self.reason.take().filter(|(of, _)| *of == status);
                let reason = reason.filter(|_| !self.exchange.refused());
                return Some(Piece::Head(status, headers, reason.map(|(_, reason)| reason)));
            }
            Action::Write(bytes) => {
                let count = bytes.len() as u64;
                self.left = self.left.map(|left| left.saturating_sub(count));
                if let Some(record) = &self.record {
                    if !std::mem::replace(&mut self.written, true) && !self.exchange.refused() {
                        let now = Instant::now();
                        record.first_byte(now);
                        self.trace.first_byte(now);
                    }
                    record.bytes(bytes.len());
                }
                return Some(Piece::Data(bytes));
            }
            Action::Finish(trailers) => {
                self.over = true;
                let outcome = match self.exchange.refused() {
                    true => Outcome::UpstreamFailed,
                    false if self.status.is_none_or(|status| status.as_u16() < 400) => Outcome::Ok,
                    false => Outcome::ErrorStatus,
                };
                self.finish(outcome);
                return trailers.map(Piece::Trailers);
            }
            Action::Cut => {
                self.over = true;
                self.finish(Outcome::UpstreamFailed);
                return Some(Piece::Cut);
            }
        }
        None
    }

    fn finish(&mut self, outcome: Outcome) {
        if let Some(record) = self.record.take() {
            record.path(self.exchange.path());
            record.tokens(self.exchange.prompt_tokens(), self.exchange.cached_tokens());
            record.finish(outcome, Instant::now());
        }
        let (path, tally) = (self.exchange.path(), self.exchange.tally());
        self.trace.finish(outcome, path, self.status, tally);
    }

    fn leg(&mut self, role: Role) -> &mut Option<Leg> {
        match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode => &mut self.decode,
        }
    }

    fn send(&mut self, role: Role, body: Bytes, elsewhere: bool) {
        let now = Instant::now();
        let avoid: Vec<ServerUrl> = match elsewhere {
            true => self.asked.iter().filter(|(asked, _)| *asked == role).map(|(_, url)| url.clone()).collect(),
            false => Vec::new(),
        };
        let taken = match role {
            Role::Prefill => self.choice.taken.take(),
            Role::Decode => None,
        };
        // A retry may use a server that has failed: whether to retry is the exchange's decision.
        self.choice.again = role == Role::Prefill && self.asked.iter().any(|(asked, _)| *asked == role);
        let mut asked = self.asked.iter().rev();
        // A decode leg after a prefill is bound to the server whose blocks it fetches.
        let fetched_from = asked
            .find(|(asked, _)| *asked == Role::Prefill)
            .filter(|_| role == Role::Decode && self.exchange.path() == Path::Disaggregated)
            .map(|(_, url)| url);
        let claim = taken.or_else(|| {
            let front = &self.front;
            front.claim(role, &self.choice, &avoid, fetched_from, now)
        });
        let Some(claim) = claim else {
            return self.exchange.on(Event::Failed(role, Failure::NoServer), now);
        };
        let url = claim.url().clone();
        let path = self.exchange.path();
        if let Some(record) = &self.record {
            record.path(path);
            match role {
                Role::Prefill => {
                    // A decode leg that ended before the prefill was only a probe.
                    if self.decode.is_none() && self.asked.iter().any(|(role, _)| *role == Role::Decode) {
                        record.decode_set_aside(now);
                    }
                    record.prefill_asked(&url, now);
                }
                Role::Decode => record.decode_asked(&url, now),
            }
        }
        let mut request = Request::new(Outgoing::whole(body));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(self.path.clone());
        *request.headers_mut() = self.headers.clone();
        let (tally, headers) = (self.exchange.tally(), request.headers_mut());
        self.trace.leg(role, &url, tally, headers, now);
        self.asked.push((role, url.clone()));
        let upstream = self.front.upstream.clone();
        let answer = Box::pin(async move { upstream.send(role, &url, request).await });
        *self.leg(role) = Some(Leg { claim, state: LegState::Asked(answer), reason: None, peer: None, blamed: false });
    }

    fn poll_leg(&mut self, role: Role, cx: &mut Context<'_>) -> Option<Event> {
        let slot = match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode => &mut self.decode,
        };
        let leg = slot.as_mut()?;
        let Poll::Ready(event) = leg.poll(role, cx) else {
            return None;
        };
        match &event {
            Event::Head(_, status, _) => {
                if !status.is_server_error() {
                    leg.claim.answered();
                }
                if role == Role::Prefill {
                    self.exchange.answered_by(Asked {
                        named: leg.claim.url().target.host.clone(),
                        peer: leg.peer.take(),
                        is_local,
                    });
                }
                let reason = leg.reason.take();
                self.reason = reason.map(|reason| (*status, reason));
            }
            Event::End(..) => self.ended = slot.take().map(|leg| (role, leg)),
            Event::Failed(_, failure) => {
                if let (Some(leg), Some(kind)) = (slot.take(), failure.kind()) {
                    leg.claim.failed(kind, Instant::now());
                }
            }
            _ => {}
        }
        Some(event)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Option<Event> {
        let Some(deadline) = self.exchange.deadline() else {
            self.timer = None;
            return None;
        };
        let deadline = tokio::time::Instant::from_std(deadline);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).is_ready().then_some(Event::Tick)
    }

    fn note(&mut self, event: &Event, now: Instant) {
        self.trace.on(event, now);
        let Some(record) = &self.record else { return };
        match event {
            Event::End(Role::Prefill, _) => record.prefill_answered(now),
            Event::Data(Role::Decode, _) => record.decode_answered(now),
            Event::Failed(role, failure) => {
                if let Some(kind) = failure.kind() {
                    record.failure(*role, kind, now);
                }
            }
            _ => {}
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(params) = self.exchange.unclaimed() {
            self.front.release(params.clone());
        }
        if self.record.is_some() {
            let drained = *self.front.phase.borrow() == Phase::Over;
            self.finish(if drained { Outcome::Drained } else { Outcome::ClientLeft });
        }
    }
}

impl Leg {
    fn poll(&mut self, role: Role, cx: &mut Context<'_>) -> Poll<Event> {
        loop {
            match &mut self.state {
                LegState::Asked(answer) => {
                    return Poll::Ready(match std::task::ready!(answer.as_mut().poll(cx)) {
                        Ok(response) => {
                            let (mut head, body) = response.into_parts();
                            self.state = LegState::Answering(body, None);
                            self.reason = head.extensions.remove();
                            self.peer = head.extensions.remove();
                            super::headers::end_hop(&mut head.headers);
                            Event::Head(role, head.status, head.headers)
                        }
                        Err(error) => {
                            tracing::debug!(role = role.name(), server = %self.claim.url(), %error, "a server failed");
                            Event::Failed(role, failure(&error))
                        }
                    });
                }
                LegState::Answering(body, trailers) => match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                    None => return Poll::Ready(Event::End(role, trailers.take())),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => return Poll::Ready(Event::Data(role, data)),
                        Err(frame) => *trailers = frame.into_trailers().ok(),
                    },
                    Some(Err(error)) => {
                        tracing::debug!(role = role.name(), server = %self.claim.url(), %error, "a server broke off");
                        return Poll::Ready(Event::Failed(role, Failure::Broken));
                    }
                },
            }
        }
    }

    /// Reads the answer to its end and discards it.
    async fn run_out(self) {
        let body = match self.state {
            LegState::Asked(answer) => answer.await.map(Response::into_body).ok(),
            LegState::Answering(body, _) => Some(body),
        };
        if let Some(mut body) = body {
            while let Some(Ok(_)) = body.frame().await {}
        }
    }
}

const fn failure(error: &SendError) -> Failure {
    match error {
        SendError::NoFiles => Failure::NoRoom,
        SendError::Unreachable(_) => Failure::Refused,
        SendError::Untrusted(_) => Failure::Untrusted,
        SendError::ConnectTimeout(_) => Failure::ConnectTimeout,
        SendError::Broken(_) | SendError::Malformed(_) | SendError::Timeout(_) | SendError::TooLong(_) => {
            Failure::Broken
        }
    }
}

/// The body of the client's answer, produced by running the exchange.
impl Body for Driver {
    type Data = Bytes;
    type Error = super::Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, super::Broken>>> {
        Poll::Ready(match std::task::ready!(self.get_mut().poll_piece(cx)) {
            Piece::Data(bytes) => Some(Ok(Frame::data(bytes))),
            Piece::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Piece::End => None,
            Piece::Head(..) | Piece::Cut => Some(Err(super::Broken)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }
}

//! The decode leg, whose answer goes to the client. For SGLang a prefill leg runs at the same time.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::prefill::refused_by_server;
use super::{Action, Event, Exchange, Failure, State, Trouble};
use crate::Role;
use crate::json::Object;
use crate::observe::{FailureKind, Path};
use crate::settings::{KvConnector, PrefillFailure};
use crate::usage::{self, CachedTokens, Rewriter};

/// The number of times that a request restarts because a decode server broke the connection before its first byte.
const MOST_RESTARTS: u32 = 1;

/// The number of other decode servers that are tried.
const MOST_MOVES: u32 = 4;

pub(super) struct Decoding {
    /// The request's body, kept to send it to another server.
    body: Bytes,
    pub(super) cached: Option<CachedTokens>,
    answer: Answer,
    /// The status was a success, so the server has fetched what the parameters name.
    succeeds: bool,
    /// The deadline of a prefill leg that runs at the same time.
    alongside: Option<Instant>,
}

enum Answer {
    Awaited,
    /// The head is held back until the first byte of the body, while another server could still answer.
    Head(Box<(StatusCode, HeaderMap)>),
    Passing(Option<Box<Rewriter>>),
}

impl Decoding {
    pub(super) fn awaited(body: Bytes, cached: Option<CachedTokens>) -> Self {
        Self { body, cached, answer: Answer::Awaited, succeeds: false, alongside: None }
    }

    pub(super) fn with_head(status: StatusCode, headers: HeaderMap) -> Self {
        Self { answer: Answer::Head(Box::new((status, headers))), ..Self::awaited(Bytes::new(), None) }
    }

    pub(super) const fn body(&self) -> &Bytes {
        &self.body
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.alongside
    }

    /// Returns whether the client has received the head, so that no other server can answer.
    pub(super) const fn is_passing(&self) -> bool {
        matches!(self.answer, Answer::Passing(_))
    }
}

impl Exchange {
    pub(super) fn decode_original(&mut self) {
        self.decode(self.request.body.text().clone(), None);
    }

    pub(super) fn decode(&mut self, body: Bytes, cached: Option<CachedTokens>) {
        if let Some(chunks) = self.divided(&body) {
            return self.decode_in_chunks(chunks, cached);
        }
        self.send_decode(body.clone(), false);
        self.state = State::Decoding(Box::new(Decoding::awaited(body, cached)));
    }

    pub(super) fn send_decode(&mut self, body: Bytes, elsewhere: bool) {
        self.moves += u32::from(elsewhere);
        self.send(Role::Decode, body, elsewhere);
    }

    /// Sends the request to both servers at once. They find each other through the bootstrap server.
    pub(super) fn decode_alongside(&mut self, now: Instant) {
        let Some(bootstrap) = &self.request.bootstrap else {
            return self.decode_original();
        };
        let body = self.request.with_bootstrap(bootstrap);
        self.send(Role::Prefill, body.clone(), false);
        self.send_decode(body.clone(), false);
        let mut decoding = Decoding::awaited(body, None);
        decoding.alongside = Some(now + self.rules.prefill_timeout);
        self.state = State::Decoding(Box::new(decoding));
    }

    pub(super) fn decoding(&mut self, mut leg: Box<Decoding>, event: Event, now: Instant) {
        match event {
            Event::Head(Role::Decode, status, headers) => {
                if self.asks_again(status) {
                    return self.decode_without(&leg);
                }
                leg.answer = Answer::Head(Box::new((status, headers)));
                self.begin_unless_held(&mut leg);
            }
            Event::Data(Role::Decode, bytes) if bytes.is_empty() => {}
            Event::Data(Role::Decode, bytes)
                if !leg.is_passing() && failure_in(&bytes).is_some_and(|status| self.asks_again(status)) =>
            {
                return self.decode_without(&leg);
            }
            Event::Data(Role::Decode, bytes) => {
                self.begin(&mut leg);
                self.claimed_by(&leg);
                let Answer::Passing(rewriter) = &mut leg.answer else {
                    return self.cut(&leg);
                };
                let passed = rewriter.as_mut().map_or(Ok(bytes.clone()), |rewriter| rewriter.feed(bytes));
                match passed {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => self.act(Action::Write(bytes)),
                    Err(_) => {
                        self.act(Action::Blame(Role::Decode, FailureKind::Invalid));
                        self.act(Action::Stop(Role::Decode));
                        return self.cut(&leg);
                    }
                }
            }
            Event::End(Role::Decode, trailers) => return self.decoded(leg, trailers),
            Event::Failed(Role::Decode, failure) => return self.decode_failed(leg, failure),
            event => return self.alongside(leg, event, now),
        }
        self.state = State::Decoding(leg);
    }

    /// Starts the client's answer if its head has arrived and no other server may answer instead.
    pub(super) fn begin_unless_held(&mut self, leg: &mut Decoding) {
        if !self.rules.elsewhere && leg.alongside.is_none() && !self.has_ticket() {
            self.begin(leg);
        }
    }

    fn begin(&mut self, leg: &mut Decoding) {
        if let Answer::Head(head) = &mut leg.answer {
            let (status, mut headers) = (head.0, std::mem::take(&mut head.1));
            leg.succeeds = status.is_success();
            let limit = self.rules.body_limit;
            let rewriter = leg.cached.clone().map(|cached| Box::new(Rewriter::new(cached, &mut headers, limit)));
            self.act(Action::Answer(status, headers));
            leg.answer = Answer::Passing(rewriter);
            // Prompts and answers are long. The body will not be sent again, so its memory is released.
            leg.body = Bytes::new();
            self.request.body = Object::default();
        }
    }

    /// Marks the blocks as fetched after a success: servers answer only once they have the blocks.
    fn claimed_by(&mut self, leg: &Decoding) {
        if leg.succeeds {
            self.unclaimed = None;
        }
    }

    /// Returns whether the decode leg depends on a prefill server's blocks.
    fn has_ticket(&self) -> bool {
        let at_bootstrap = self.rules.connector == KvConnector::Sglang;
        self.path == Path::Disaggregated && (at_bootstrap || self.unclaimed.is_some())
    }

    /// Judges a decode server's status. Returns true if the leg has to be repeated without the prefill server's blocks:
    /// a server that cannot load them, for example because the layouts do not fit, may still compute the prompt.
    pub(super) fn asks_again(&mut self, status: StatusCode) -> bool {
        if !status.is_server_error() {
            if std::mem::take(&mut self.suspects) {
                self.act(Action::Misfit);
            }
            return false;
        }
        let falls_back = self.rules.prefill_failure == PrefillFailure::Fallback;
        if !self.has_ticket() || !falls_back {
            self.suspects = false;
            self.act(Action::Blame(Role::Decode, FailureKind::Status));
            return false;
        }
        self.suspects = true;
        self.path = Path::Fallback;
        self.act(Action::Suspect);
        self.act(Action::Stop(Role::Decode));
        if let Some(params) = self.unclaimed.take() {
            self.act(Action::Release(params));
        }
        true
    }

    fn decode_without(&mut self, leg: &Decoding) {
        if leg.alongside.is_some() {
            self.act(Action::Stop(Role::Prefill));
        }
        let body = self.alone();
        self.send_decode(body.clone(), false);
        self.state = State::Decoding(Box::new(Decoding::awaited(body, None)));
    }

    fn decoded(&mut self, mut leg: Box<Decoding>, trailers: Option<HeaderMap>) {
        self.begin(&mut leg);
        self.claimed_by(&leg);
        let Answer::Passing(rewriter) = &mut leg.answer else {
            return self.decode_failed(leg, Failure::Broken);
        };
        match rewriter.as_mut().map_or(Ok(Bytes::new()), |rewriter| rewriter.finish()) {
            Ok(last) => {
                if !last.is_empty() {
                    self.act(Action::Write(last));
                }
                let trailers = trailers.map(|mut trailers| {
                    if rewriter.is_some() {
                        usage::remove_digests(&mut trailers);
                    }
                    trailers
                });
                self.act(Action::Finish(trailers));
                if let Some(until) = leg.alongside {
                    // The prefill server may still be finishing the transfer.
                    self.act(Action::Detach(Role::Prefill, until));
                }
            }
            Err(_) => {
                self.act(Action::Blame(Role::Decode, FailureKind::Invalid));
                self.cut(&leg);
            }
        }
    }

    fn cut(&mut self, leg: &Decoding) {
        if leg.alongside.is_some() {
            self.act(Action::Stop(Role::Prefill));
        }
        self.act(Action::Cut);
    }

    fn decode_failed(&mut self, leg: Box<Decoding>, failure: Failure) {
        if leg.is_passing() {
            return self.cut(&leg);
        }
        if self.may_ask_another(failure) && failure.unseen() {
            self.send_decode(leg.body.clone(), true);
            self.state = State::Decoding(leg);
            return;
        }
        if leg.alongside.is_some() {
            self.act(Action::Stop(Role::Prefill));
        }
        if self.may_ask_another(failure) && self.may_restart() {
            return self.restart();
        }
        self.decode_lost(failure);
    }

    pub(super) fn may_ask_another(&self, failure: Failure) -> bool {
        self.rules.elsewhere && failure.kind().is_some() && self.moves < MOST_MOVES
    }

    /// Returns whether the request may restart, and counts the restart if so.
    pub(super) fn may_restart(&mut self) -> bool {
        let may = self.restarts < MOST_RESTARTS;
        self.restarts += u32::from(may);
        may
    }

    pub(super) fn decode_lost(&mut self, failure: Failure) {
        self.refuse(if failure == Failure::NoRoom {
            Trouble::no_files()
        } else if failure == Failure::Untrusted {
            Trouble::untrusted("decode")
        } else if failure.unseen() && self.restarts == 0 {
            Trouble::not_ready()
        } else {
            Trouble::broken("decode")
        });
    }

    /// Lets another decode server compute everything. The broken one may have fetched the blocks, which makes the
    /// parameters void.
    fn restart(&mut self) {
        if self.path == Path::Disaggregated {
            self.path = Path::Fallback;
        }
        if let Some(params) = self.unclaimed.take() {
            self.act(Action::Release(params));
        }
        let body = self.alone();
        self.send_decode(body.clone(), true);
        self.state = State::Decoding(Box::new(Decoding::awaited(body, None)));
    }

    fn alongside(&mut self, mut leg: Box<Decoding>, event: Event, now: Instant) {
        let timed_out = matches!(event, Event::Tick) && leg.alongside.is_some_and(|until| now >= until);
        let prefill_error = match event {
            Event::Head(Role::Prefill, status, headers) if refused_by_server(status) && !leg.is_passing() => {
                self.act(Action::Stop(Role::Decode));
                return self.relay(status, headers, leg.alongside.unwrap_or(now));
            }
            Event::Head(Role::Prefill, status, _) if !status.is_success() => {
                self.act(Action::Blame(Role::Prefill, FailureKind::Status));
                self.act(Action::Stop(Role::Prefill));
                (StatusCode::BAD_GATEWAY, "The prefill server failed.")
            }
            Event::Failed(Role::Prefill, failure) if failure.unseen() => {
                (StatusCode::SERVICE_UNAVAILABLE, "The prefill server cannot be reached.")
            }
            Event::Failed(Role::Prefill, _) => (StatusCode::BAD_GATEWAY, "The prefill server broke the connection."),
            Event::Tick if timed_out => {
                self.act(Action::Blame(Role::Prefill, FailureKind::Timeout));
                self.act(Action::Stop(Role::Prefill));
                (StatusCode::GATEWAY_TIMEOUT, "The prefill server did not answer in time.")
            }
            Event::End(Role::Prefill, _) => {
                leg.alongside = None;
                self.begin_unless_held(&mut leg);
                self.state = State::Decoding(leg);
                return;
            }
            _ => {
                self.state = State::Decoding(leg);
                return;
            }
        };
        leg.alongside = None;
        if leg.is_passing() {
            // The decode server is answering, so it has what it needs.
            self.state = State::Decoding(leg);
            return;
        }
        self.act(Action::Stop(Role::Decode));
        match self.rules.prefill_failure {
            PrefillFailure::Fallback => self.fall_back(),
            PrefillFailure::Error => self.refuse(Trouble::new(prefill_error.0, prefill_error.1)),
        }
    }
}

/// Returns the status in the first event of a stream if it reports a server error: such a server has already sent a
/// head with status 200.
fn failure_in(first: &[u8]) -> Option<StatusCode> {
    let line = first.split(|byte| *byte == b'\n').next()?;
    let event = line.strip_prefix(b"data:")?;
    memchr::memmem::find(event, b"\"error\"")?;
    let event = Object::parse(event.to_vec().into()).ok()?;
    let status = StatusCode::from_u16(event.object("error")?.read("code")?).ok()?;
    status.is_server_error().then_some(status)
}

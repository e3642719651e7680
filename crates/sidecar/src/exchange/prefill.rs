//! The prefill leg. Its answer is buffered completely and decides the request to the decode server.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::held::{Held, NO_ROOM, TOO_LONG};
use super::overlap::Ahead;
use super::{Action, Event, Exchange, Failure, Route, State, Trouble};
use crate::Role;
use crate::json::Object;
use crate::observe::FailureKind;
use crate::settings::{KvConnector, PrefillFailure};
use crate::usage::CachedTokens;

/// A running prefill leg, or one that waits for its retry.
pub(super) struct Prefilling {
    /// The deadline for the whole leg, retries included.
    until: Instant,
    retries: u32,
    /// The leg was already sent to another server.
    moved: bool,
    answer: Answer,
    /// The decode leg that runs at the same time.
    pub(super) ahead: Option<Ahead>,
}

enum Answer {
    Awaited,
    Again(Instant),
    Coming(Held),
}

impl Prefilling {
    pub(super) fn deadline(&self) -> Instant {
        match self.answer {
            Answer::Again(at) => at.min(self.until),
            _ => self.until,
        }
    }

    /// Returns whether the decode server's answer has begun, and waits for the prefill server's.
    pub(super) fn holds_decode(&self) -> bool {
        self.ahead.as_ref().is_some_and(Ahead::has_head)
    }
}

/// The way a prefill leg failed. It decides whether the leg is tried again.
enum Fault {
    Unanswered(Failure),
    TimedOut,
    Status(StatusCode),
    /// The answer is not usable; the text completes "the prefill server gave an answer that …".
    Invalid(&'static str),
}

impl Exchange {
    pub(super) fn prefill(&mut self, now: Instant) {
        self.send_prefill(false);
        let ahead = self.decode_ahead();
        self.state = State::Prefilling(Prefilling {
            ahead,
            until: now + self.rules.prefill_timeout,
            retries: self.rules.prefill_retries,
            moved: false,
            answer: Answer::Awaited,
        });
    }

    fn send_prefill(&mut self, elsewhere: bool) {
        let body = match self.rules.connector {
            KvConnector::SharedStorage => self.request.prefill_for_storage(),
            KvConnector::NixlV2 | KvConnector::Sglang => self.request.prefill_for_params(),
        };
        self.send(Role::Prefill, body, elsewhere);
    }

    pub(super) fn prefilling(&mut self, mut leg: Prefilling, event: Event, now: Instant) {
        match event {
            Event::Head(Role::Prefill, status, headers) if status.is_success() => {
                // A leg to shared storage yields only a status, so its body is discarded without decoding.
                let limit = self.rules.body_limit;
                let held = match self.rules.connector {
                    KvConnector::SharedStorage => Held::new(&HeaderMap::new(), limit, &self.rules.bodies),
                    KvConnector::NixlV2 | KvConnector::Sglang => Held::new(&headers, limit, &self.rules.bodies),
                };
                let Some(held) = held else {
                    let fault = Fault::Invalid("has a Content-Encoding that was not asked for");
                    return self.prefill_failed(leg, fault, now);
                };
                leg.answer = Answer::Coming(held);
            }
            Event::Head(Role::Prefill, status, headers) if refused_by_server(status) => {
                self.stop_ahead(&mut leg);
                return self.relay(status, headers, leg.until);
            }
            Event::Head(Role::Prefill, status, _) => {
                return self.prefill_failed(leg, Fault::Status(status), now);
            }
            Event::Data(Role::Prefill, bytes) => {
                if let Answer::Coming(held) = &mut leg.answer
                    && self.rules.connector != KvConnector::SharedStorage
                    && let Err(wrong) = held.take(bytes)
                {
                    let fault = match wrong {
                        NO_ROOM => Fault::Unanswered(Failure::NoRoom),
                        wrong => Fault::Invalid(wrong),
                    };
                    return self.prefill_failed(leg, fault, now);
                }
            }
            Event::End(Role::Prefill, _) => {
                let Answer::Coming(held) = std::mem::replace(&mut leg.answer, Answer::Awaited) else {
                    return self.prefill_failed(leg, Fault::Unanswered(Failure::Broken), now);
                };
                return match held.whole().and_then(|whole| self.prefilled(&mut leg, whole, now)) {
                    Ok(()) => {}
                    Err(wrong) => self.prefill_failed(leg, Fault::Invalid(wrong), now),
                };
            }
            Event::Failed(Role::Prefill, failure) => {
                return self.prefill_failed(leg, Fault::Unanswered(failure), now);
            }
            Event::Tick if now >= leg.until => {
                return self.prefill_failed(leg, Fault::TimedOut, now);
            }
            Event::Tick => {
                if matches!(leg.answer, Answer::Again(at) if now >= at) {
                    leg.answer = Answer::Awaited;
                    self.send_prefill(false);
                }
            }
            event @ (Event::Head(Role::Decode, ..) | Event::Failed(Role::Decode, _)) => self.ahead(&mut leg, event),
            _ => {}
        }
        self.state = State::Prefilling(leg);
    }

    fn prefilled(&mut self, leg: &mut Prefilling, answer: Bytes, now: Instant) -> Result<(), &'static str> {
        if self.rules.connector == KvConnector::SharedStorage {
            let body = self.request.decode_from_storage();
            self.decode(body, None);
            return Ok(());
        }
        let answer = Object::parse(answer).map_err(|_| "is not a JSON object")?;
        let params = answer.get("kv_transfer_params").unwrap_or("null");
        let mut has_met = false;
        let body = match params {
            // Without parameters there is nothing to fetch, and the decode server computes everything.
            "null" => self.request.decode_with_params(params),
            _ => {
                let object = answer.object("kv_transfer_params");
                let object = object.ok_or("has kv_transfer_params that are not an object")?;
                let hosts = &self.rules.remote_hosts;
                if let Some(other) = hosts.other(self.asked.as_ref(), params) {
                    let server = self.asked.as_ref().map(|asked| &asked.named);
                    tracing::warn!(
                        server = server.map(tracing::field::display),
                        "a prefill server's parameters name an address that is neither its own nor allowed: {other:.200}. The decode \
                         server computes the prompt. If it is right, list it (--allow-prefill)",
                    );
                    return Err("names an address that is neither its own nor allowed");
                }
                has_met = self.has_met(&object);
                self.unclaimed = answer.slice("kv_transfer_params");
                self.request.decode_with_params(params)
            }
        };
        self.prompt_tokens =
            answer.object("usage").and_then(|usage| usage.read("prompt_tokens").or_else(|| usage.read("input_tokens")));
        // Anthropic's API counts cached tokens in another way.
        let counts = self.request.route != Route::Messages;
        let cached = counts.then(|| CachedTokens::of(&answer));
        match leg.ahead.take_if(|_| has_met) {
            Some(ahead) => self.go_on(ahead, cached, now),
            None => {
                self.stop_ahead(leg);
                self.decode(body, cached);
            }
        }
        Ok(())
    }

    fn prefill_failed(&mut self, mut leg: Prefilling, fault: Fault, now: Instant) {
        match fault {
            Fault::TimedOut => self.act(Action::Blame(Role::Prefill, FailureKind::Timeout)),
            Fault::Status(status) if status.is_client_error() => {}
            Fault::Status(_) => self.act(Action::Blame(Role::Prefill, FailureKind::Status)),
            // The length of an answer depends on the client's request, so the server is not blamed.
            Fault::Invalid(TOO_LONG) => {}
            Fault::Invalid(_) => self.act(Action::Blame(Role::Prefill, FailureKind::Invalid)),
            Fault::Unanswered(_) => {}
        }
        self.act(Action::Stop(Role::Prefill));
        self.stop_ahead(&mut leg);
        // A prefill that is repeated costs only time, which `until` bounds.
        if now < leg.until {
            if self.rules.elsewhere
                && matches!(fault, Fault::Unanswered(failure) if failure.kind().is_some())
                && !leg.moved
            {
                leg.moved = true;
                leg.answer = Answer::Awaited;
                self.send_prefill(true);
                self.state = State::Prefilling(leg);
                return;
            }
            if matches!(fault, Fault::Status(status) if may_pass(status)) && leg.retries > 0 {
                leg.retries -= 1;
                leg.answer = Answer::Again(now + self.rules.prefill_backoff);
                self.state = State::Prefilling(leg);
                return;
            }
        }
        if self.rules.prefill_failure == PrefillFailure::Fallback {
            return self.fall_back();
        }
        let (status, wrong) = match fault {
            Fault::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "did not answer in time".to_owned()),
            Fault::Status(status) => (StatusCode::BAD_GATEWAY, format!("answered with status {}", status.as_u16())),
            Fault::Invalid(wrong) => (StatusCode::BAD_GATEWAY, format!("gave an answer that {wrong}")),
            Fault::Unanswered(Failure::NoServer) => (StatusCode::SERVICE_UNAVAILABLE, "is not there".to_owned()),
            Fault::Unanswered(Failure::NoRoom) => {
                (StatusCode::SERVICE_UNAVAILABLE, "could not be asked, for want of files or memory here".to_owned())
            }
            Fault::Unanswered(Failure::Refused) => (StatusCode::SERVICE_UNAVAILABLE, "cannot be reached".to_owned()),
            Fault::Unanswered(Failure::ConnectTimeout) => (StatusCode::GATEWAY_TIMEOUT, "cannot be reached".to_owned()),
            Fault::Unanswered(Failure::Broken) => (StatusCode::BAD_GATEWAY, "broke the connection".to_owned()),
            Fault::Unanswered(Failure::Untrusted) => {
                (StatusCode::BAD_GATEWAY, "has no certificate that is trusted".to_owned())
            }
        };
        self.refuse(Trouble::new(status, format!("The prefill server {wrong}.")));
    }
}

/// Returns whether a prefill server's status is an error about the client's request, which the client should see.
pub(super) fn refused_by_server(status: StatusCode) -> bool {
    (400..=451).contains(&status.as_u16())
}

/// Returns whether a retry at the same server may succeed soon.
fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

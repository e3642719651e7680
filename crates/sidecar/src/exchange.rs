//! One request of a client as a state machine: which servers it is sent to and with what body, what of their answers the client
//! sees and when, and what happens when one of them fails.
//!
//! It has no sockets and no clock. Its driver tells it what happens ([`Exchange::on`], with the time), and does what it says
//! ([`Exchange::next`]). A *leg* is a request of its own to one server; at any time there is at most one of each role.

mod answer;
mod chunked;
mod decode;
mod held;
mod prefill;
mod probe;
mod remote;
pub(crate) mod request;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

pub(crate) use self::answer::{Trouble, error};
use self::chunked::Chunked;
pub(crate) use self::chunked::Tally;
use self::decode::Decoding;
use self::prefill::Prefilling;
use self::probe::Probing;
pub(crate) use self::remote::{Asked, RemoteHosts};
pub(crate) use self::request::{Request, Route};
use crate::Role;
use crate::budget::Budget;
use crate::json::Object;
use crate::observe::{FailureKind, Path};
use crate::settings::{KvConnector, PrefillFailure};

/// What holds for every request of a process.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) connector: KvConnector,
    pub(crate) prefill_timeout: Duration,
    pub(crate) prefill_failure: PrefillFailure,
    pub(crate) prefill_retries: u32,
    pub(crate) prefill_backoff: Duration,
    pub(crate) decode_chunk: Option<u32>,
    /// The most bytes of a server's answer that are held.
    pub(crate) body_limit: usize,
    /// Memory for bodies of requests and for such answers.
    pub(crate) bodies: Arc<Budget>,
    /// There may be other servers of a role to ask.
    pub(crate) elsewhere: bool,
    pub(crate) remote_hosts: RemoteHosts,
}

/// What has happened to a leg. After `End` or `Failed` nothing more happens to it.
#[derive(Debug)]
pub(crate) enum Event {
    /// Status and headers of the answer have come.
    Head(Role, StatusCode, HeaderMap),
    /// Bytes of its body have come.
    Data(Role, Bytes),
    /// It has ended as it should.
    End(Role, Option<HeaderMap>),
    /// It will not be answered, or no further.
    Failed(Role, Failure),
    /// [`Exchange::deadline`] has passed.
    Tick,
}

/// Why a leg failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no server to ask.
    NoServer,
    /// This process has no file to ask with, or no memory for the answer: no server has failed.
    NoRoom,
    /// The server's certificate is not trusted, or it speaks no TLS: it has not seen the request.
    Untrusted,
    /// The server was not reached: it has not seen the request.
    Refused,
    /// The server could not be connected to in time: it has not seen the request.
    ConnectTimeout,
    /// The connection broke: the server may have seen the request.
    Broken,
}

impl Failure {
    const fn unseen(self) -> bool {
        !matches!(self, Self::Broken)
    }

    /// As it is counted; a server that there is not has not failed.
    pub(crate) const fn kind(self) -> Option<FailureKind> {
        Some(match self {
            Self::NoServer | Self::NoRoom => return None,
            Self::Refused => FailureKind::Refused,
            Self::ConnectTimeout => FailureKind::Timeout,
            Self::Broken | Self::Untrusted => FailureKind::Broken,
        })
    }
}

/// What the driver has to do, in this order.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a leg.
    Send {
        role: Role,
        body: Bytes,
        /// Only to a server of that role which this request was not sent to yet.
        elsewhere: bool,
    },
    /// End a leg at once, if there is one: nothing of it is wanted any more, and nothing more is told of it.
    Stop(Role),
    /// Let a leg go on to its end, for the server's sake, but no longer than this. Nothing more is told of it.
    Detach(Role, Instant),
    /// Have a prefill server give up the blocks that these parameters of its stand for.
    Release(Bytes),
    /// The server of this role has failed in a way that only its answer shows.
    Blame(Role, FailureKind),
    /// The decode server that was asked last may have failed for what the prefill server gave it.
    Suspect,
    /// It has: it answers without that.
    Misfit,
    /// Begin the answer to the client.
    Answer(StatusCode, HeaderMap),
    /// Send these bytes to the client, as part of the body.
    Write(Bytes),
    /// End the answer as it should end, with these trailers.
    Finish(Option<HeaderMap>),
    /// Break the connection to the client, so that its answer cannot be taken for a whole one.
    Cut,
}

/// One request.
pub(crate) struct Exchange {
    rules: Arc<Rules>,
    request: Request,
    state: State,
    actions: VecDeque<Action>,
    path: Path,
    /// The prefill server that answers.
    asked: Option<Asked>,
    /// Parameters that a prefill server gave out for blocks that no decode server has been seen to take.
    unclaimed: Option<Bytes>,
    /// How often another decode server was asked.
    moves: u32,
    /// How often everything began anew since a decode server broke.
    restarts: u32,
    /// The decode server was asked again without what a prefill server gave, and has not answered yet.
    suspects: bool,
    /// The client's answer is an error of ours.
    refused: bool,
    prompt_tokens: Option<u64>,
    tally: Option<Tally>,
}

/// What is waited for.
enum State {
    /// The decode server was asked first whether it has enough of the prompt.
    Probing(Probing),
    Prefilling(Prefilling),
    Decoding(Box<Decoding>),
    Chunked(Box<Chunked>),
    /// A prefill server's answer is the client's; it has to be over by then.
    Relaying(Instant),
    Over,
}

impl Exchange {
    /// Begins a request.
    pub(crate) fn new(rules: Arc<Rules>, request: Request, now: Instant) -> Self {
        let path = if request.disaggregated { Path::Disaggregated } else { Path::DecodeOnly };
        let mut exchange = Self {
            rules,
            request,
            state: State::Over,
            actions: VecDeque::new(),
            path,
            asked: None,
            unclaimed: None,
            moves: 0,
            restarts: 0,
            suspects: false,
            refused: false,
            prompt_tokens: None,
            tally: None,
        };
        match exchange.rules.connector {
            _ if path == Path::DecodeOnly => exchange.decode_original(),
            KvConnector::NixlV2 => exchange.prefill(now),
            KvConnector::SharedStorage if exchange.request.has_threshold() => exchange.probe(),
            KvConnector::SharedStorage => exchange.prefill(now),
            KvConnector::Sglang => exchange.decode_alongside(now),
        }
        exchange
    }

    /// What has to be done next; `None` until something happens.
    pub(crate) fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When it has to be told of the time, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Prefilling(prefilling) => Some(prefilling.deadline()),
            State::Decoding(decoding) => decoding.deadline(),
            State::Relaying(until) => Some(*until),
            State::Probing(_) | State::Chunked(_) | State::Over => None,
        }
    }

    /// Takes what has happened.
    pub(crate) fn on(&mut self, event: Event, now: Instant) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Probing(probing) => self.probing(probing, event, now),
            State::Prefilling(prefilling) => self.prefilling(prefilling, event, now),
            State::Decoding(decoding) => self.decoding(decoding, event, now),
            State::Chunked(chunked) => self.chunked(chunked, event),
            State::Relaying(until) => self.relaying(until, event, now),
            State::Over => {}
        }
    }

    /// Takes note of which prefill server it is whose head has come.
    pub(crate) fn answered_by(&mut self, asked: Asked) {
        self.asked = Some(asked);
    }

    /// Whether no server will be asked any more, whatever happens.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.state {
            State::Decoding(decoding) => decoding.is_passing(),
            State::Relaying(_) | State::Over => true,
            State::Probing(_) | State::Prefilling(_) | State::Chunked(_) => false,
        }
    }

    /// How it is served, as far as is known now.
    pub(crate) const fn path(&self) -> Path {
        self.path
    }

    /// The prefill server's parameters, where blocks are held for them and this request will not fetch them any more if it
    /// ends now.
    pub(crate) fn unclaimed(&self) -> Option<&Bytes> {
        self.unclaimed.as_ref()
    }

    /// Whether the client's answer is an error of ours.
    pub(crate) const fn refused(&self) -> bool {
        self.refused
    }

    /// How many tokens the prompt has, if a prefill server has said so.
    pub(crate) const fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens
    }

    /// How far a chunked decode is, if it is one.
    pub(crate) const fn tally(&self) -> Option<Tally> {
        self.tally
    }

    /// How many tokens of the prompt were cached, if a prefill server has said so.
    pub(crate) fn cached_tokens(&self) -> Option<u64> {
        match &self.state {
            State::Decoding(decoding) => decoding.cached.as_ref()?.count(),
            State::Chunked(chunked) => chunked.cached.as_ref()?.count(),
            _ => None,
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn send(&mut self, role: Role, body: Bytes, elsewhere: bool) {
        self.act(Action::Send { role, body, elsewhere });
    }

    /// Answers the client with an error of our own, and ends.
    fn refuse(&mut self, trouble: Trouble) {
        self.refused = true;
        let (status, headers, body) = error(trouble);
        self.act(Action::Answer(status, headers));
        self.act(Action::Write(body));
        self.act(Action::Finish(None));
        self.state = State::Over;
    }

    /// Has the decode server compute everything.
    fn fall_back(&mut self) {
        self.path = Path::Fallback;
        self.decode(self.alone(), None);
    }

    /// The body with which a decode server computes everything: the client's own, but one that lacks the prompt in storage must
    /// not say so once more, in place of an answer.
    fn alone(&self) -> Bytes {
        match self.rules.connector {
            KvConnector::SharedStorage if self.request.disaggregated && self.request.has_threshold() => {
                self.request.decode_from_storage()
            }
            _ => self.request.body.text().clone(),
        }
    }

    /// Passes a prefill server's answer to the client, from what has come of it on.
    fn relay(&mut self, status: StatusCode, headers: HeaderMap, until: Instant) {
        self.path = Path::Rejected;
        self.act(Action::Answer(status, headers));
        self.request.body = Object::default();
        self.state = State::Relaying(until);
    }

    fn relaying(&mut self, until: Instant, event: Event, now: Instant) {
        match event {
            Event::Data(Role::Prefill, bytes) => self.act(Action::Write(bytes)),
            Event::End(Role::Prefill, trailers) => return self.act(Action::Finish(trailers)),
            Event::Failed(Role::Prefill, _) => return self.act(Action::Cut),
            Event::Tick if now >= until => {
                self.act(Action::Blame(Role::Prefill, FailureKind::Timeout));
                self.act(Action::Stop(Role::Prefill));
                return self.act(Action::Cut);
            }
            _ => {}
        }
        self.state = State::Relaying(until);
    }
}

#[cfg(test)]
mod tests;

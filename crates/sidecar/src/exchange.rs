//! The state machine of one client request. It decides which servers get the request and with what body, what the
//! client sees of their answers and when, and what happens when a server fails.
//!
//! It has no sockets and no clock. Its driver reports events with the time ([`Exchange::on`]) and carries out the
//! actions it returns ([`Exchange::next`]). A *leg* is a request to one server; at any time there is at most one leg of
//! each role.

mod answer;
mod chunked;
mod decode;
mod held;
mod overlap;
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
pub(crate) use self::overlap::{Earlier, Meeting};
use self::prefill::Prefilling;
use self::probe::Probing;
pub(crate) use self::remote::{Asked, RemoteHosts};
pub(crate) use self::request::{Request, Route};
use crate::Role;
use crate::budget::Budget;
use crate::json::Object;
use crate::observe::{FailureKind, Path};
use crate::settings::{KvConnector, PrefillFailure};

#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) connector: KvConnector,
    pub(crate) prefill_timeout: Duration,
    pub(crate) prefill_failure: PrefillFailure,
    pub(crate) prefill_retries: u32,
    pub(crate) prefill_backoff: Duration,
    pub(crate) decode_chunk: Option<u32>,
    /// The most bytes of a server's answer that are buffered.
    pub(crate) body_limit: usize,
    /// The memory for request bodies and for buffered answers.
    pub(crate) bodies: Arc<Budget>,
    /// A failed leg may be sent to another server of its role.
    pub(crate) elsewhere: bool,
    pub(crate) remote_hosts: RemoteHosts,
}

/// An event of a leg. `End` and `Failed` are a leg's last events.
#[derive(Debug)]
pub(crate) enum Event {
    Head(Role, StatusCode, HeaderMap),
    Data(Role, Bytes),
    End(Role, Option<HeaderMap>),
    Failed(Role, Failure),
    /// [`Exchange::deadline`] has passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    NoServer,
    /// This process has no file descriptor for the connection, or no memory for the answer. No server is at fault.
    NoRoom,
    /// The server's certificate is not trusted, or the server does not speak TLS. It has not seen the request.
    Untrusted,
    /// The connection was refused; the server has not seen the request.
    Refused,
    /// The connection was not established in time; the server has not seen the request.
    ConnectTimeout,
    /// The connection broke; the server may have seen the request.
    Broken,
}

impl Failure {
    const fn unseen(self) -> bool {
        !matches!(self, Self::Broken)
    }

    /// Returns the kind under which the failure is counted for the server, or `None` if no server is at fault.
    pub(crate) const fn kind(self) -> Option<FailureKind> {
        Some(match self {
            Self::NoServer | Self::NoRoom => return None,
            Self::Refused => FailureKind::Refused,
            Self::ConnectTimeout => FailureKind::Timeout,
            Self::Broken | Self::Untrusted => FailureKind::Broken,
        })
    }
}

/// An action of the driver. Actions are carried out in the order in which they are returned.
#[derive(Debug)]
pub(crate) enum Action {
    Send {
        role: Role,
        body: Bytes,
        /// Choose a server of that role which has not had this request yet.
        elsewhere: bool,
    },
    /// Abort a leg if it is running. It yields no more events.
    Stop(Role),
    /// Let the server finish a leg until this time, without reporting events.
    Detach(Role, Instant),
    /// Remember for further requests what the prefill server says about itself.
    Learn(Earlier),
    /// Tell a prefill server to release the blocks behind these parameters.
    Release(Bytes),
    /// Count a failure of this role's server that only its answer shows.
    Blame(Role, FailureKind),
    /// Note that the last decode server may have failed because of what the prefill server gave it.
    Suspect,
    /// Note that the suspected decode server answers without the prefill server's blocks, so the two do not fit.
    Misfit,
    Answer(StatusCode, HeaderMap),
    Write(Bytes),
    Finish(Option<HeaderMap>),
    /// Break the client's connection, so that the incomplete answer cannot be taken for a complete one.
    Cut,
}

pub(crate) struct Exchange {
    rules: Arc<Rules>,
    request: Request,
    state: State,
    actions: VecDeque<Action>,
    path: Path,
    /// The prefill server whose answer has begun.
    asked: Option<Asked>,
    /// A prefill server's parameters, while no decode server is known to have fetched their blocks.
    unclaimed: Option<Bytes>,
    /// The number of times that another decode server was tried.
    moves: u32,
    /// The number of restarts after a decode server broke the connection.
    restarts: u32,
    /// The decode server was asked again without the prefill server's blocks, and has not answered yet.
    suspects: bool,
    /// The answer to the client is an error of our own.
    refused: bool,
    prompt_tokens: Option<u64>,
    tally: Option<Tally>,
}

enum State {
    /// The decode server was asked whether its cache has enough of the prompt.
    Probing(Probing),
    Prefilling(Prefilling),
    Decoding(Box<Decoding>),
    Chunked(Box<Chunked>),
    /// The prefill server's answer is passed to the client, and has to end by this time.
    Relaying(Instant),
    Over,
}

impl Exchange {
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

    pub(crate) fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time at which the driver has to report [`Event::Tick`] if no other event comes first.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Prefilling(prefilling) => Some(prefilling.deadline()),
            State::Decoding(decoding) => decoding.deadline(),
            State::Relaying(until) => Some(*until),
            State::Probing(_) | State::Chunked(_) | State::Over => None,
        }
    }

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

    /// Returns whether the decode server's answer has to wait for events of the prefill server.
    pub(crate) fn holds_decode(&self) -> bool {
        matches!(&self.state, State::Prefilling(prefilling) if prefilling.holds_decode())
    }

    pub(crate) fn answered_by(&mut self, asked: Asked) {
        self.asked = Some(asked);
    }

    /// Returns true once no further server can be asked, whatever happens.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.state {
            State::Decoding(decoding) => decoding.is_passing(),
            State::Relaying(_) | State::Over => true,
            State::Probing(_) | State::Prefilling(_) | State::Chunked(_) => false,
        }
    }

    pub(crate) const fn path(&self) -> Path {
        self.path
    }

    /// Returns the prefill server's parameters if it holds blocks that this request would leave unfetched if it ended
    /// now.
    pub(crate) fn unclaimed(&self) -> Option<&Bytes> {
        self.unclaimed.as_ref()
    }

    pub(crate) const fn refused(&self) -> bool {
        self.refused
    }

    pub(crate) const fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens
    }

    pub(crate) const fn tally(&self) -> Option<Tally> {
        self.tally
    }

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

    fn refuse(&mut self, trouble: Trouble) {
        self.refused = true;
        let (status, headers, body) = error(trouble);
        self.act(Action::Answer(status, headers));
        self.act(Action::Write(body));
        self.act(Action::Finish(None));
        self.state = State::Over;
    }

    fn fall_back(&mut self) {
        self.path = Path::Fallback;
        self.decode(self.alone(), None);
    }

    /// Returns the body with which a decode server computes everything: the client's own, except that the cache
    /// threshold is 0 for shared storage. Otherwise a server that lacks the prompt would report that again instead of
    /// answering.
    fn alone(&self) -> Bytes {
        match self.rules.connector {
            KvConnector::SharedStorage if self.request.disaggregated && self.request.has_threshold() => {
                self.request.decode_from_storage()
            }
            _ => self.request.body.text().clone(),
        }
    }

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

//! A decode leg that begins together with the prefill leg: the decode server loads the prompt while it is computed.
//!
//! Both servers get the same random id. The decode server also gets a ticket of an earlier request, which tells it where
//! the prefill server's agents are. So the first request to a prefill server is an ordinary one. If the answer of the
//! prefill server is of another life, or of another engine behind the same URL, the decode server has asked in vain:
//! its leg is stopped before anything of it reaches the client, and the request continues as an ordinary one.

use std::sync::Arc;
use std::time::Instant;

use super::decode::Decoding;
use super::prefill::Prefilling;
use super::{Action, Event, Exchange, State};
use crate::Role;
use crate::json::Object;
use crate::usage::CachedTokens;

/// The members of a prefill server's answer with which a decode server finds it for a later request, as JSON texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// The engine that computed the prompt, and which start of it.
    life: String,
    ticket: String,
}

impl Earlier {
    /// Reads the parameters of an answer. Returns `None` if the server cannot be met.
    fn of(params: &Object) -> Option<Self> {
        let text = |name| params.get(name).filter(|value| value.starts_with('"')).map(str::to_owned);
        Some(Self { life: text("transload_life")?, ticket: text("transload_ticket")? })
    }
}

/// Lets the two servers of a request find each other.
#[derive(Debug, Clone)]
pub(crate) struct Meeting {
    /// 128 random bits.
    pub(crate) id: u128,
    /// `None` if the prefill server has not answered a request that could be met.
    pub(crate) earlier: Option<Arc<Earlier>>,
}

impl Meeting {
    /// Returns the member that tells either server.
    pub(super) fn member(&self) -> String {
        format!(r#""transload_overlap":"{:032x}""#, self.id)
    }

    /// Returns the parameters for a decode server that is asked at once.
    pub(super) fn params(&self) -> Option<String> {
        let Earlier { ticket, .. } = self.earlier.as_deref()?;
        let member = self.member();
        Some(format!(r#"{{"do_remote_prefill":true,"do_remote_decode":false,"transload_ticket":{ticket},{member}}}"#))
    }
}

/// A decode leg that runs while the prefill server computes.
pub(super) struct Ahead {
    leg: Box<Decoding>,
    /// The head of its answer, which is judged when the prefill server has answered.
    head: Option<Event>,
}

impl Ahead {
    pub(super) const fn has_head(&self) -> bool {
        self.head.is_some()
    }
}

impl Exchange {
    /// Sends the decode leg, if its server can meet the prefill server.
    pub(super) fn decode_ahead(&mut self) -> Option<Ahead> {
        let params = self.request.meeting.as_ref()?.params()?;
        // The legs of a chunked decode follow each other, and the first one is shorter.
        if self.rules.decode_chunk.is_some() {
            return None;
        }
        let body = self.request.decode_with_params(&params);
        self.send_decode(body.clone(), false);
        Some(Ahead { leg: Box::new(Decoding::awaited(body, None)), head: None })
    }

    /// Handles the decode leg's events until the prefill server has answered.
    pub(super) fn ahead(&mut self, prefill: &mut Prefilling, event: Event) {
        let Some(mut ahead) = prefill.ahead.take() else {
            return;
        };
        match event {
            Event::Failed(_, failure) if failure.unseen() && self.may_ask_another(failure) => {
                self.send_decode(ahead.leg.body().clone(), true);
                prefill.ahead = Some(ahead);
            }
            // A decode server is asked again, with the prefill server's answer.
            Event::Failed(..) => {}
            head => {
                ahead.head = Some(head);
                prefill.ahead = Some(ahead);
            }
        }
    }

    pub(super) fn stop_ahead(&mut self, prefill: &mut Prefilling) {
        if prefill.ahead.take().is_some() {
            self.act(Action::Stop(Role::Decode));
        }
    }

    /// Takes note of what a prefill server's parameters say about it. Returns whether the decode server has asked the
    /// engine that has answered.
    pub(super) fn has_met(&mut self, params: &Object) -> bool {
        let (Some(meeting), Some(now)) = (&self.request.meeting, Earlier::of(params)) else {
            return false;
        };
        let met = meeting.earlier.as_ref().is_some_and(|earlier| earlier.life == now.life);
        self.act(Action::Learn(now));
        met
    }

    /// Continues with the decode leg, which now has everything that it needs.
    pub(super) fn go_on(&mut self, mut ahead: Ahead, cached: Option<CachedTokens>, now: Instant) {
        ahead.leg.cached = cached;
        self.state = State::Decoding(ahead.leg);
        if let Some(head) = ahead.head {
            self.on(head, now);
        }
    }
}

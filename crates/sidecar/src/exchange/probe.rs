//! The probe of shared storage: the decode server is asked whether its cache has enough of the prompt. Its answer is
//! held back until it shows which.

use std::time::Instant;

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};

use super::decode::Decoding;
use super::{Action, Event, Exchange, State};
use crate::Role;
use crate::json::Object;
use crate::observe::Path;

/// The number of events after which a server counts as having enough of the prompt.
const EVENTS: usize = 2;

/// A decode leg whose answer may only report that the prompt is missing.
pub(super) struct Probing {
    head: Option<(StatusCode, HeaderMap)>,
    held: BytesMut,
}

impl Exchange {
    pub(super) fn probe(&mut self) {
        self.send_decode(self.request.body.text().clone(), false);
        self.state = State::Probing(Probing { head: None, held: BytesMut::new() });
    }

    pub(super) fn probing(&mut self, mut probing: Probing, event: Event, now: Instant) {
        match event {
            Event::Head(Role::Decode, status, headers) if status.is_success() => {
                probing.head = Some((status, headers));
            }
            Event::Data(Role::Decode, bytes) => {
                probing.held.extend_from_slice(&bytes);
                match verdict(&probing.held) {
                    Some(true) => {
                        self.act(Action::Stop(Role::Decode));
                        return self.prefill(now);
                    }
                    None if probing.held.len() <= self.rules.body_limit => {}
                    _ => return self.has_enough(probing, now),
                }
            }
            Event::End(Role::Decode, _) if lacks(&probing.held) => return self.prefill(now),
            // Everything else is the answer, or the failure, of an ordinary decode leg.
            event @ (Event::Head(..) | Event::End(..) | Event::Failed(..)) => {
                if matches!(event, Event::Failed(..)) {
                    // The client has received nothing yet, so another server may be asked.
                    probing.head = None;
                }
                self.has_enough(probing, now);
                return self.on(event, now);
            }
            Event::Data(Role::Prefill, _) | Event::Tick => {}
        }
        self.state = State::Probing(probing);
    }

    /// Uses the held bytes as the beginning of the client's answer.
    fn has_enough(&mut self, probing: Probing, now: Instant) {
        self.path = Path::DecodeOnly;
        // If another server is asked instead, it is not probed.
        let body = self.alone();
        self.state = State::Decoding(Box::new(Decoding::awaited(body, None)));
        if let Some((status, headers)) = probing.head {
            self.on(Event::Head(Role::Decode, status, headers), now);
            self.on(Event::Data(Role::Decode, probing.held.freeze()), now);
        }
    }
}

/// Judges the beginning of an answer: `Some(true)` if the server lacks the prompt, `Some(false)` if it has enough of
/// it, `None` if neither shows yet.
fn verdict(held: &[u8]) -> Option<bool> {
    if held.trim_ascii_start().first().is_none_or(|first| *first == b'{') {
        return None;
    }
    let mut events = 0;
    let mut data = false;
    for line in held.split_inclusive(|byte| *byte == b'\n') {
        if !line.ends_with(b"\n") {
            return None;
        }
        if line.trim_ascii().is_empty() {
            events += usize::from(std::mem::take(&mut data));
            if events >= EVENTS {
                return Some(false);
            }
        } else {
            data |= line.starts_with(b"data:");
            if line.strip_prefix(b"data:").is_some_and(stopped_at_threshold) {
                return Some(true);
            }
        }
    }
    None
}

/// Returns whether a complete answer reports that the server lacks the prompt.
fn lacks(whole: &[u8]) -> bool {
    let event = |line: &[u8]| line.strip_prefix(b"data:").is_some_and(stopped_at_threshold);
    stopped_at_threshold(whole) || whole.split(|byte| *byte == b'\n').take(2 * EVENTS).any(event)
}

fn stopped_at_threshold(text: &[u8]) -> bool {
    if memchr::memmem::find(text, b"cache_threshold").is_none() {
        return false;
    }
    let first_choice = || {
        let answer = Object::parse(text.to_vec().into()).ok()?;
        let choices: Vec<&serde_json::value::RawValue> = answer.read("choices")?;
        let choice = Object::parse(choices.first()?.get().to_owned().into()).ok()?;
        choice.read::<String>("finish_reason")
    };
    first_choice().is_some_and(|reason| reason == "cache_threshold")
}

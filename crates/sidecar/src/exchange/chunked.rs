//! Chunked decode: a chat completion is generated in legs of a few tokens each, so that the decode server can admit
//! other requests between them.

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::value::RawValue;

use super::decode::Decoding;
use super::held::Held;
use super::{Action, Event, Exchange, Failure, Route, State, Trouble};
use crate::Role;
use crate::json::Object;
use crate::observe::{FailureKind, Path};
use crate::usage::{self, CachedTokens};

/// The division of a decode into legs.
pub(super) struct Chunks {
    /// The body of the first leg: the client's, perhaps with parameters.
    first: Object,
    tokens: u64,
    /// The client's limit for all legs together.
    budget: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// The most tokens of one leg.
    pub(crate) size: u64,
    pub(crate) legs: u64,
    pub(crate) tokens: u64,
}

pub(super) struct Chunked {
    chunks: Chunks,
    pub(super) cached: Option<CachedTokens>,
    streams: bool,
    head: Option<(StatusCode, HeaderMap)>,
    held: Option<Held>,
    legs: u64,
    /// The number of tokens generated, followed by that of the prompt.
    generated: u64,
    prompt: u64,
    /// The generated text, as the content of a JSON string without quotes.
    text: String,
    /// The first leg's `id` and `created`, which all events of a stream share.
    id: Option<String>,
    created: Option<String>,
    /// The client has received the first byte.
    begun: bool,
}

struct Generated {
    answer: Object,
    choices: Vec<Object>,
    tokens: u64,
    /// The content of a JSON string, without quotes.
    text: String,
    finish_reason: Option<String>,
}

impl Exchange {
    /// Returns how a decode of this body is divided, or `None` if it is not.
    pub(super) fn divided(&self, body: &Bytes) -> Option<Chunks> {
        let tokens = u64::from(self.rules.decode_chunk?);
        if self.request.route != Route::ChatCompletions {
            return None;
        }
        let first = Object::parse(body.clone()).ok()?;
        // Only a single choice can be continued in the next leg.
        if first.get("n").is_some_and(|n| n != "1" && n != "null") {
            return None;
        }
        let limit = ["max_completion_tokens", "max_tokens"]
            .into_iter()
            .filter_map(|limit| first.get(limit))
            .find(|limit| *limit != "null");
        let budget = match limit {
            None => None,
            // The server judges a limit that is not a count.
            Some(limit) => Some(count_of(limit)?),
        };
        if budget.is_some_and(|budget| budget <= tokens) {
            return None;
        }
        Some(Chunks { first, tokens, budget })
    }

    pub(super) fn decode_in_chunks(&mut self, chunks: Chunks, cached: Option<CachedTokens>) {
        let chunked = Chunked {
            chunks,
            cached,
            streams: self.request.streams(),
            head: None,
            held: None,
            legs: 0,
            generated: 0,
            prompt: 0,
            text: String::new(),
            id: None,
            created: None,
            begun: false,
        };
        self.send_decode(chunked.leg(), false);
        self.tally = Some(chunked.tally());
        self.state = State::Chunked(Box::new(chunked));
    }

    pub(super) fn chunked(&mut self, mut chunked: Box<Chunked>, event: Event) {
        match event {
            Event::Head(Role::Decode, status, headers) => {
                if self.asks_again(status) {
                    if let Ok(alone) = Object::parse(self.alone()) {
                        chunked.chunks.first = alone;
                    }
                    chunked.cached = None;
                    self.send_decode(chunked.leg(), false);
                    self.state = State::Chunked(chunked);
                    return;
                }
                if !status.is_success() {
                    return self.leg_refused(&chunked, status, headers);
                }
                self.unclaimed = None;
                chunked.held = Held::new(&headers, self.rules.body_limit, &self.rules.bodies);
                chunked.head = Some((status, headers));
            }
            Event::Data(Role::Decode, bytes) => {
                let taken = chunked.held.as_mut().map(|held| held.take(bytes));
                if !matches!(taken, Some(Ok(()))) {
                    return self.leg_invalid(&chunked);
                }
            }
            Event::End(Role::Decode, _) => {
                let whole = chunked.held.take().and_then(|held| held.whole().ok());
                return match whole.and_then(Generated::read) {
                    Some(generated) => self.generated(chunked, generated),
                    None => self.leg_invalid(&chunked),
                };
            }
            Event::Failed(Role::Decode, failure) => return self.leg_failed(chunked, failure),
            _ => {}
        }
        self.state = State::Chunked(chunked);
    }

    /// Processes a leg's answer: sends the next leg, or completes the client's answer.
    fn generated(&mut self, mut chunked: Box<Chunked>, generated: Generated) {
        if chunked.legs == 0 {
            chunked.prompt = count(&generated.answer, "prompt_tokens");
            chunked.id = generated.answer.get("id").map(str::to_owned);
            chunked.created = generated.answer.get("created").map(str::to_owned);
        }
        chunked.legs += 1;
        chunked.generated += generated.tokens;
        chunked.text.push_str(&generated.text);
        self.tally = Some(chunked.tally());
        let stopped = generated.finish_reason.as_deref().is_some_and(|reason| reason != "length");
        let empty = generated.tokens == 0 && generated.text.is_empty();
        let spent = chunked.chunks.budget.is_some_and(|budget| chunked.generated >= budget);
        let over = stopped || empty || spent;
        if chunked.streams {
            if !std::mem::replace(&mut chunked.begun, true) {
                self.act(Action::Answer(StatusCode::OK, stream_headers()));
            }
            self.act(Action::Write(chunked.event(&generated, over)));
        }
        if !over {
            self.send_decode(chunked.leg(), false);
            self.state = State::Chunked(chunked);
            return;
        }
        if chunked.streams {
            self.act(Action::Write(format!("data: {{\"usage\":{},\"choices\":[]}}\n\n", chunked.usage()).into()));
            self.act(Action::Write(Bytes::from_static(b"data: [DONE]\n\n")));
        } else {
            let body = chunked.whole(&generated);
            let (status, mut headers) = chunked.head.take().unwrap_or_default();
            headers.insert(CONTENT_LENGTH, body.len().into());
            headers.remove(CONTENT_ENCODING);
            usage::remove_digests(&mut headers);
            self.act(Action::Answer(status, headers));
            self.act(Action::Write(body));
        }
        self.act(Action::Finish(None));
    }

    /// Passes a leg's error to the client, or breaks the connection if the client's answer has begun.
    fn leg_refused(&mut self, chunked: &Chunked, status: StatusCode, headers: HeaderMap) {
        if chunked.begun {
            self.act(Action::Stop(Role::Decode));
            return self.act(Action::Cut);
        }
        let mut leg = Box::new(Decoding::with_head(status, headers));
        self.begin_unless_held(&mut leg);
        self.state = State::Decoding(leg);
    }

    fn leg_invalid(&mut self, chunked: &Chunked) {
        self.act(Action::Blame(Role::Decode, FailureKind::Invalid));
        self.act(Action::Stop(Role::Decode));
        if chunked.begun {
            return self.act(Action::Cut);
        }
        let message = "The decode server gave an answer that is not a chat completion.";
        self.refuse(Trouble::new(StatusCode::BAD_GATEWAY, message));
    }

    fn leg_failed(&mut self, mut chunked: Box<Chunked>, failure: Failure) {
        let another = self.may_ask_another(failure);
        if another && (failure.unseen() || self.may_restart()) {
            if !failure.unseen() && chunked.legs == 0 {
                // The server may have fetched the blocks, which makes the parameters void.
                if let Ok(alone) = Object::parse(self.alone()) {
                    chunked.chunks.first = alone;
                }
                if self.path == Path::Disaggregated {
                    self.path = Path::Fallback;
                }
            }
            chunked.head = None;
            chunked.held = None;
            self.send_decode(chunked.leg(), true);
            self.state = State::Chunked(chunked);
        } else if chunked.begun {
            self.act(Action::Cut);
        } else {
            self.decode_lost(failure);
        }
    }
}

impl Chunked {
    const fn tally(&self) -> Tally {
        Tally { size: self.chunks.tokens, legs: self.legs, tokens: self.generated }
    }

    fn leg(&self) -> Bytes {
        let left = self.chunks.budget.map_or(self.chunks.tokens, |budget| budget - self.generated);
        let tokens = left.min(self.chunks.tokens);
        let limit = tokens.to_string();
        let first = &self.chunks.first;
        let mut edit = first.edit().set("max_tokens", &*limit).set("max_completion_tokens", &*limit);
        edit = edit.set("stream", "false").remove("stream_options");
        if let Some(least) = first.get("min_tokens").and_then(count_of) {
            edit = edit.set("min_tokens", tokens.min(least.saturating_sub(self.generated)).to_string());
        }
        if self.legs > 0 {
            edit = edit.remove("kv_transfer_params");
            edit = edit.set("continue_final_message", "true").set("add_generation_prompt", "false");
            if !self.text.is_empty() {
                edit = edit.set("messages", self.messages());
            }
        }
        edit.finish()
    }

    /// Returns the client's messages, followed by the generated text as the assistant's.
    fn messages(&self) -> String {
        let messages = self.chunks.first.get("messages").unwrap_or("[]");
        let open = messages.strip_suffix(']').unwrap_or("[").trim_end();
        let comma = if open.ends_with('[') { "" } else { "," };
        format!("{open}{comma}{{\"role\":\"assistant\",\"content\":\"{}\"}}]", self.text)
    }

    /// Returns the event for one leg, without usage.
    fn event(&self, generated: &Generated, last: bool) -> Bytes {
        let choices: Vec<String> = generated.choices.iter().map(|choice| delta(choice, last)).collect();
        let choices = format!("[{}]", choices.join(","));
        let mut edit = generated.answer.edit().set("choices", choices).remove("usage");
        edit = edit.set("object", "\"chat.completion.chunk\"");
        if let Some(id) = &self.id {
            edit = edit.set("id", &**id);
        }
        if let Some(created) = &self.created {
            edit = edit.set("created", &**created);
        }
        let mut event = BytesMut::from(&b"data: "[..]);
        // Line ends are white space in JSON, but would end the event's line.
        event.extend(edit.finish().iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
        event.extend_from_slice(b"\n\n");
        event.freeze()
    }

    /// Returns the answer that a single leg would have given.
    fn whole(&self, last: &Generated) -> Bytes {
        let mut edit = last.answer.edit().set("usage", self.usage());
        let choice = last.choices.first().map(|choice| {
            let message = choice.object("message").map(|message| {
                let mut edit = message.edit();
                // With tool calls there may be no text at all, which differs from an empty text.
                if !self.text.is_empty() {
                    edit = edit.set("content", format!("\"{}\"", self.text));
                }
                String::from_utf8_lossy(&edit.finish()).into_owned()
            });
            let choice = match message {
                Some(message) => choice.edit().set("message", message).finish(),
                None => choice.text().clone(),
            };
            format!("[{}]", String::from_utf8_lossy(&choice))
        });
        if let Some(choices) = choice {
            edit = edit.set("choices", choices);
        }
        edit.finish()
    }

    fn usage(&self) -> String {
        let Self { prompt, generated, .. } = self;
        let cached = self.cached.as_ref().map_or_else(String::new, |cached| {
            format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{}}}", cached.text())
        });
        let total = prompt + generated;
        format!("{{\"prompt_tokens\":{prompt},\"completion_tokens\":{generated},\"total_tokens\":{total}{cached}}}")
    }
}

impl Generated {
    fn read(answer: Bytes) -> Option<Self> {
        let answer = Object::parse(answer).ok()?;
        let choices: Vec<&RawValue> = answer.read("choices").unwrap_or_default();
        let choices: Vec<Object> =
            choices.iter().filter_map(|choice| Object::parse(choice.get().to_owned().into()).ok()).collect();
        let first = choices.first();
        let text = first.map(content).unwrap_or_default();
        let finish_reason = first.and_then(|choice| choice.read::<Option<String>>("finish_reason")).flatten();
        let tokens = count(&answer, "completion_tokens");
        Some(Self { choices, tokens, text, finish_reason, answer })
    }
}

/// Returns a choice's text as the content of a JSON string, without quotes.
fn content(choice: &Object) -> String {
    let message = choice.object("message");
    let text = message.as_ref().and_then(|message| message.get("content"));
    let inside = text.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    inside.unwrap_or_default().to_owned()
}

/// Returns a choice in the form of an event. Only the last event of a stream has a reason why it ends.
fn delta(choice: &Object, last: bool) -> String {
    let index = choice.get("index").unwrap_or("0");
    let reason = choice.get("finish_reason").filter(|_| last).unwrap_or("null");
    let message = choice.object("message");
    let delta = message.as_ref().map(as_delta);
    let delta = delta.as_deref().unwrap_or(b"{}");
    let delta = String::from_utf8_lossy(delta);
    format!("{{\"index\":{index},\"delta\":{delta},\"finish_reason\":{reason}}}")
}

/// Returns a message in the form of a delta, in which tool calls are numbered.
fn as_delta(message: &Object) -> Bytes {
    let calls: Vec<&RawValue> = message.read("tool_calls").unwrap_or_default();
    if calls.is_empty() {
        return message.edit().remove("tool_calls").finish();
    }
    let numbered = calls.iter().enumerate().filter_map(|(index, call)| {
        let call = Object::parse(call.get().to_owned().into()).ok()?;
        let call = call.edit().set("index", index.to_string()).finish();
        Some(String::from_utf8_lossy(&call).into_owned())
    });
    let calls = numbered.collect::<Vec<_>>().join(",");
    message.edit().set("tool_calls", format!("[{calls}]")).finish()
}

/// Parses a count in any notation of JSON: servers read `1e1` and `10.0` as 10.
fn count_of(number: &str) -> Option<u64> {
    let as_float = || {
        let number: f64 = number.parse().ok()?;
        (number.fract() == 0.0).then(|| format!("{number:.0}"))?.parse().ok()
    };
    number.parse().ok().or_else(as_float)
}

fn count(answer: &Object, key: &str) -> u64 {
    answer.object("usage").and_then(|usage| usage.read(key)).unwrap_or(0)
}

fn stream_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers
}

//! Servers of both roles, which do what each request's plan says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use transload_test_servers::{End, Fake, Message, Script};
use transload_tests::process::{Chance, mix};

use super::plan::{Asked, Connector, Fault, Plan, Setting, tokens};
use super::script::{Answer, script};

/// The number of cached tokens that decode servers report. A prefill server reports another one.
pub(crate) const CACHED_AT_DECODE: u64 = 7;

pub(crate) const fn cached_at_prefill(number: u64) -> u64 {
    1000 + number % 1000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Prefill,
    Decode,
}

/// The facts that all servers of a world share.
pub(crate) struct Known {
    setting: Setting,
    seed: u64,
    /// The longest delay of a server, in milliseconds.
    pub(crate) busy: u64,
    requests: Mutex<HashMap<u64, Seen>>,
    /// The faults that were found.
    faults: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Seen {
    prefills: usize,
    decodes: usize,
    /// The request's id, equal on all legs.
    id: Option<String>,
}

impl Known {
    pub(crate) fn new(setting: Setting, seed: u64, busy: u64) -> Arc<Self> {
        Arc::new(Self { setting, seed, busy, requests: Mutex::default(), faults: Mutex::default() })
    }

    /// Records that a client will send this request.
    pub(crate) fn expect(&self, number: u64) {
        self.requests.lock().unwrap().insert(number, Seen::default());
    }

    /// Forgets a request whose client has its answer, or has left.
    pub(crate) fn forget(&self, number: u64) {
        self.requests.lock().unwrap().remove(&number);
    }

    pub(crate) fn fault(&self, fault: String) {
        let mut faults = self.faults.lock().unwrap();
        // More would be more of the same.
        if faults.len() < 20 {
            faults.push(fault);
        }
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap().clone()
    }
}

pub(crate) fn start(role: Role, known: &Arc<Known>) -> Fake {
    let known = known.clone();
    Fake::of_a_crowd(move |_, request| answer(request, role, &known))
}

/// Decides what happens to a request.
fn answer(request: &Message, role: Role, known: &Known) -> Script {
    let head = &*request.first;
    let whole = format!("{head}{:?}{}", request.headers, request.text());
    if whole.contains("evil") {
        known.fault(format!("{role:?} got what only the client may say: {whole}"));
    }
    let Some(asked) = Plan::find(&whole) else {
        // A probe, of health or metrics.
        return Script::json(200, "{}");
    };
    let number = asked.number;
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let turn = {
        let mut requests = known.requests.lock().unwrap();
        let Some(seen) = requests.get_mut(&number) else {
            // Its client has left meanwhile.
            return Script { end: End::Reset, ..Script::default() };
        };
        if let Some(wrong) = seen.id_differs(&request.all("x-request-id").join(",")) {
            known.fault(wrong);
        }
        let turn = match role {
            Role::Prefill => &mut seen.prefills,
            Role::Decode => &mut seen.decodes,
        };
        *turn += 1;
        *turn - 1
    };
    // The same whenever it is drawn again.
    let mut chance = Chance(mix(known.seed ^ mix(number)) ^ (turn as u64) << 1 ^ role as u64);
    let faults = match role {
        Role::Prefill => &asked.prefill,
        Role::Decode => &asked.decode,
    };
    let fault = faults.get(turn).copied().unwrap_or(Fault::Fine);
    // A probe's answer that is too long to be held counts as the answer.
    let fault = match fault {
        Fault::Gigantic if asked.misses => Fault::Fine,
        fault => fault,
    };
    let answer = match fault.status() {
        Some(200) => plain(200, format!("not json {number}")),
        Some(status) => plain(status, own(number, role, status)),
        None => match role {
            Role::Prefill => prefilled(&asked, &body, head, known),
            Role::Decode => decoded(&asked, &body, head, known),
        },
    };
    let script = script(fault, answer, &mut chance);
    Script { delay: Duration::from_millis(chance.below(known.busy.max(1))), ..script }
}

impl Seen {
    /// Returns a fault if a leg of the request has another id.
    fn id_differs(&mut self, id: &str) -> Option<String> {
        let known = self.id.get_or_insert_with(|| id.to_owned());
        (known != id).then(|| format!("{id} is not {known}, of the other leg"))
    }
}

fn plain(status: u16, body: String) -> Answer {
    Answer { status, content_type: "application/json", body }
}

/// Returns the answer of a server with its own error status.
pub(crate) fn own(number: u64, role: Role, status: u16) -> String {
    let role = match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    };
    json!({"error": {"message": format!("{role} {number}"), "code": status}}).to_string()
}

fn prefilled(asked: &Asked, body: &Value, head: &str, known: &Known) -> Answer {
    let number = asked.number;
    match known.setting.connector {
        Connector::NixlV2 => {
            let wanted = body["kv_transfer_params"]["do_remote_decode"] == true
                && body["stream"] == false
                && limit(head, body) == 1;
            if !wanted {
                known.fault(format!("a prefill leg asks for other things: {body}"));
            }
        }
        Connector::SharedStorage => {}
        Connector::Sglang => rooms(body, known),
    }
    let usage = json!({"prompt_tokens": 20, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached_at_prefill(number)}});
    let params = json!({"do_remote_prefill": true, "remote_engine_id": format!("e{number}"), "remote_block_ids": [[1, 2, number]],
        "remote_host": "127.0.0.1", "remote_port": 7600});
    let answer = json!({"id": "p", "choices": [], "usage": usage, "kv_transfer_params": params});
    plain(200, answer.to_string())
}

fn rooms(body: &Value, known: &Known) {
    if body["bootstrap_room"].as_u64().is_none() || body["bootstrap_host"] != "127.0.0.1" {
        known.fault(format!("a leg has no room to meet in: {body}"));
    }
}

fn limit(head: &str, body: &Value) -> u64 {
    let name = match head.starts_with("POST /v1/responses") {
        true => "max_output_tokens",
        false => "max_tokens",
    };
    body[name].as_u64().unwrap_or(u64::MAX)
}

/// Returns a decode server's tokens, with a mark that says whether it was given parameters.
fn decoded(asked: &Asked, body: &Value, head: &str, known: &Known) -> Answer {
    let number = asked.number;
    let params = &body["kv_transfer_params"];
    let given = !params.is_null();
    if given && params["remote_engine_id"] != format!("e{number}") {
        known.fault(format!("{number} was given another one's parameters: {body}"));
    }
    if known.setting.connector == Connector::Sglang && !body["bootstrap_room"].is_null() {
        rooms(body, known);
    }
    let mut reason = "stop";
    let (mut from, mut to) = (0, asked.tokens);
    if known.setting.chunk.is_some() && head.starts_with("POST /v1/chat") {
        // What was generated before stands behind the client's own message.
        let before = body["messages"][1]["content"].as_str().unwrap_or_default();
        from = before.matches(' ').count();
        if before != tokens(number, 0, from) {
            known.fault(format!("{number} goes on from other tokens: {body}"));
        }
        let limit = usize::try_from(limit(head, body)).unwrap_or(usize::MAX);
        to = to.min(from.saturating_add(limit));
        if to < asked.tokens {
            reason = "length";
        }
    }
    let threshold = body["cache_hit_threshold"].as_f64().unwrap_or(0.0);
    let mark = if given { "given" } else { "alone" };
    let text = if asked.misses && threshold > 0.0 && known.setting.connector == Connector::SharedStorage {
        reason = "cache_threshold";
        String::new()
    } else {
        tokens(number, from, to)
    };
    let usage = json!({"prompt_tokens": 20, "completion_tokens": to - from,
        "prompt_tokens_details": {"cached_tokens": CACHED_AT_DECODE}});
    let chat = head.starts_with("POST /v1/chat");
    if body["stream"] != true {
        let choice = match chat {
            true => {
                json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason})
            }
            false => json!({"index": 0, "text": text, "finish_reason": reason}),
        };
        let answer = json!({"id": mark, "created": 1, "choices": [choice], "usage": usage});
        return plain(200, answer.to_string());
    }
    let mut events = String::from(": comment\n\n");
    for token in text.split_inclusive(' ') {
        let choice = match chat {
            true => json!({"index": 0, "delta": {"content": token}}),
            false => json!({"index": 0, "text": token}),
        };
        events += &format!("data: {}\n\n", json!({"id": mark, "choices": [choice]}));
    }
    let last = json!({"index": 0, "finish_reason": reason});
    events += &format!("data: {}\n\n", json!({"id": mark, "choices": [last], "usage": usage}));
    events += "data: [DONE]\n\n";
    Answer { status: 200, content_type: "text/event-stream", body: events }
}

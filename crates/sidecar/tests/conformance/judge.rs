//! Compares every run with its case and with the rules that hold for all cases.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::time::Duration;

use flate2::read::GzDecoder;
use tokio::time::{Instant, sleep};
use transload_test_servers::{Fake, Message};

use crate::case::{Bytes, Case, Leg, Seen};
use crate::members;
use crate::play::{Played, sent_body};
use crate::rig::{Rig, name};

/// Headers that no server ever sees.
const NEVER: [&str; 5] =
    ["x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port", "keep-alive", "proxy-connection"];

const DISAGGREGATED: [&str; 6] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /inference/v1/generate",
    "POST /generate",
];

pub(crate) async fn judge(rig: &Rig, case: &Case, played: &Played) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for (role, fakes, legs) in [("prefill", &rig.prefill, &case.prefill), ("decode", &rig.decode, &case.decode)] {
        for (index, fake) in fakes.iter().enumerate() {
            let legs: Vec<&Leg> = legs.iter().filter(|leg| leg.at == index).collect();
            let messages = settled(fake, legs.len()).await;
            let name = name(role, index);
            if messages.len() != legs.len() {
                let lines: Vec<_> = messages.iter().map(|message| &message.first).collect();
                let count = legs.len();
                wrong.push(format!("{name} saw {lines:?} instead of {count} requests"));
            }
            seen.extend(messages.into_iter().zip(legs).map(|(message, leg)| (name.clone(), message, leg)));
        }
    }
    let mut rooms = BTreeSet::new();
    for (name, message, leg) in &seen {
        let complaints = judge_leg(rig, case, message, leg, &mut rooms);
        wrong.extend(complaints.into_iter().map(|why| format!("{name}: {why}")));
    }
    if rooms.len() > 1 {
        wrong.push(format!("the legs have different rooms: {rooms:?}"));
    }
    let messages: Vec<&Message> = seen.iter().map(|(_, message, _)| message).collect();
    wrong.extend(judge_ids(case, &messages));
    wrong.extend(judge_left(rig, case).await);
    let complaints = judge_client(rig, case, played);
    wrong.extend(complaints.into_iter().map(|why| format!("client: {why}")));
    wrong
}

/// Returns the requests that a fake has seen, after waiting for the expected number.
async fn settled(fake: &Fake, expected: usize) -> Vec<Message> {
    let until = Instant::now() + Duration::from_secs(3);
    loop {
        let seen = fake.seen();
        if seen.len() >= expected || Instant::now() >= until {
            return seen;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

fn judge_leg(rig: &Rig, case: &Case, message: &Message, leg: &Leg, rooms: &mut BTreeSet<u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    let line = format!("{} HTTP/1.1", leg.line.as_ref().unwrap_or(&case.request));
    if message.first != line {
        wrong.push(format!("saw {:?} instead of {line:?}", message.first));
    }
    if !message.whole {
        wrong.push("its request breaks off".to_owned());
    }
    if message.all("host").len() != 1 {
        wrong.push(format!("its hosts are {:?}", message.all("host")));
    }
    for name in NEVER {
        if !message.all(name).is_empty() {
            wrong.push(format!("it sees {name}"));
        }
    }
    wrong.extend(judge_headers(rig, &message.headers, &leg.has, &leg.lacks));
    wrong.extend(judge_headers(rig, &message.trailers, &leg.sees_trailers, &[]));
    let sent = sent_body(rig, case);
    match (&leg.sees, &leg.sees_bytes) {
        (Some(json), _) => match members::compare(&rig.fill(json), &message.body, &sent) {
            Ok(room) => rooms.extend(room),
            Err(why) => wrong.push(why),
        },
        (None, bytes) => {
            let expected = bytes.as_ref().map_or(sent, |bytes| filled(rig, bytes));
            wrong.extend(judge_bytes(&expected, &message.body));
        }
    }
    wrong
}

/// Checks ids: on disaggregated routes both legs have one id that is not the client's; on others it is the client's.
fn judge_ids(case: &Case, messages: &[&Message]) -> Vec<String> {
    let theirs = case.headers.iter().find_map(|line| line.strip_prefix("x-request-id: "));
    let ids: BTreeSet<_> = messages.iter().map(|message| message.all("x-request-id")).collect();
    let path = case.request.split('?').next().unwrap_or_default();
    if case.passed || !DISAGGREGATED.contains(&path) {
        let expected: Vec<_> = theirs.into_iter().collect();
        let passed = ids.iter().all(|id: &Vec<_>| *id == expected);
        return if passed { Vec::new() } else { vec![format!("the ids are {ids:?}")] };
    }
    let good =
        |id: &Vec<&str>| matches!(id[..], [id] if id.len() >= 16 && theirs.is_none_or(|theirs| !id.contains(theirs)));
    match ids.len() <= 1 && ids.iter().all(good) {
        true => Vec::new(),
        false => vec![format!("the ids are {ids:?}")],
    }
}

async fn judge_left(rig: &Rig, case: &Case) -> Vec<String> {
    let mut wrong = Vec::new();
    let until = Instant::now() + Duration::from_secs(2);
    for (name, fake) in rig.fakes().filter(|(name, _)| case.left.contains(name)) {
        while fake.left() == 0 && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
        if fake.left() == 0 {
            wrong.push(format!("{name} is still asked"));
        }
    }
    wrong
}

fn judge_client(rig: &Rig, case: &Case, played: &Played) -> Vec<String> {
    let expected = &case.client;
    let mut wrong = Vec::new();
    let Some(answer) = &played.answer else {
        if !expected.nothing && !breaks_anywhere(expected) {
            wrong.push("it got no answer".to_owned());
        }
        return wrong;
    };
    if expected.nothing {
        return vec![format!("it got {:?}", answer.first)];
    }
    if answer.status() != expected.status {
        let body = String::from_utf8_lossy(&answer.body);
        return vec![format!("status {} instead of {}: {body}", answer.status(), expected.status)];
    }
    let reason = answer.first.splitn(3, ' ').nth(2);
    if expected.reason.is_some() && reason != expected.reason.as_deref() {
        wrong.push(format!("its reason is {reason:?}"));
    }
    if answer.whole == expected.cut {
        wrong.push(match expected.cut {
            true => format!("its answer seems whole, by {:?}", answer.framing),
            false => "its answer breaks off".to_owned(),
        });
    }
    if played.continued != expected.continued {
        wrong.push(format!("100 Continue: {}", played.continued));
    }
    let lacks: Vec<_> = NEVER.iter().map(|name| (*name).to_owned()).collect();
    wrong.extend(judge_headers(rig, &answer.headers, &expected.has, &lacks));
    wrong.extend(judge_headers(rig, &answer.headers, &[], &expected.lacks));
    wrong.extend(judge_headers(rig, &answer.trailers, &expected.trailers, &[]));
    let echo = rig.fill(case.echo.as_deref().unwrap_or_default());
    if answer.status() == 101 && played.echo != echo.as_bytes() {
        wrong.push(format!("echoed {:?}", String::from_utf8_lossy(&played.echo)));
    }
    let mut body = answer.body.clone();
    if answer.one("content-encoding") == Some("gzip") && !case.request.starts_with("HEAD ") {
        body.clear();
        if GzDecoder::new(&answer.body[..]).read_to_end(&mut body).is_err() {
            wrong.push("its gzip is broken".to_owned());
        }
    }
    wrong.extend(judge_body(rig, case, expected, &body));
    wrong
}

/// Returns whether an answer may break off at any byte, even the first one.
fn breaks_anywhere(expected: &Seen) -> bool {
    expected.cut && expected.body.is_none()
}

fn judge_body(rig: &Rig, case: &Case, expected: &Seen, body: &[u8]) -> Vec<String> {
    if expected.any_body {
        return Vec::new();
    }
    if let Some(kind) = &expected.error {
        return judge_error(expected.status, kind, body);
    }
    if let Some(json) = &expected.json {
        return members::same(&rig.fill(json), body).err().into_iter().collect();
    }
    if !expected.holds.is_empty() {
        return judge_holds(&expected.holds, &String::from_utf8_lossy(body));
    }
    if !expected.events.is_empty() {
        return judge_events(&expected.events, &String::from_utf8_lossy(body));
    }
    let bytes = match (&expected.body, case.decode.last()) {
        (Some(bytes), _) => filled(rig, bytes),
        (None, _) if case.request.starts_with("HEAD ") => Vec::new(),
        (None, Some(leg)) if leg.pieces.is_empty() => filled(rig, &leg.answers),
        (None, Some(leg)) => {
            let pieces = leg.pieces.iter().map(|piece| filled(rig, piece));
            pieces.collect::<Vec<_>>().concat()
        }
        (None, None) => Vec::new(),
    };
    let end = match breaks_anywhere(expected) {
        true => body.len().min(bytes.len().saturating_sub(1)),
        false => bytes.len(),
    };
    judge_bytes(&bytes[..end], body).into_iter().collect()
}

fn judge_events(expected: &[Vec<String>], body: &str) -> Vec<String> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    let events: Vec<_> = events.map(|event| event.strip_prefix("data: ")).collect();
    if events.len() != expected.len() {
        return vec![format!("{} events: {body}", events.len())];
    }
    let pairs = events.iter().zip(expected);
    let judged = pairs.map(|(event, expected)| match event {
        Some(event) if expected == &[*event] => Vec::new(),
        Some(event) => judge_holds(expected, event),
        None => vec![format!("an event without data: {body}")],
    });
    judged.flatten().collect()
}

fn judge_holds(expected: &[String], body: &str) -> Vec<String> {
    let got: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let holds = |rule: &&String| {
        let (pointer, value) = rule.split_once(" = ").expect("a rule");
        let value = serde_json::from_str(value).ok();
        got.is_object() && got.pointer(pointer) == value.as_ref()
    };
    let broken = expected.iter().filter(|rule| !holds(rule));
    broken.map(|rule| format!("not {rule}: {body}")).collect()
}

/// Checks an error in the form that vLLM and llm-d use.
fn judge_error(status: u16, kind: &str, body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let good = serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|error| {
        error["object"] == "error"
            && error["message"].as_str().is_some_and(|message| !message.is_empty())
            && error["type"] == kind
            && error["param"] == ""
            && error["code"] == status
    });
    if good { Vec::new() } else { vec![format!("no error of type {kind}: {text}")] }
}

fn judge_headers(rig: &Rig, headers: &[(String, String)], has: &[String], lacks: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    let all = |name: &str| -> Vec<&str> {
        let same = headers.iter().filter(|(have, _)| have.eq_ignore_ascii_case(name));
        same.map(|(_, value)| &**value).collect()
    };
    let names: BTreeSet<&str> = has.iter().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    for name in names {
        let of_name = has.iter().filter_map(|line| line.split_once(':'));
        let of_name = of_name.filter(|(have, _)| *have == name);
        let expected: Vec<String> = of_name.map(|(_, value)| rig.fill(value.trim())).collect();
        let any = expected == ["*"] && all(name).len() == 1;
        if !any && all(name) != expected {
            wrong.push(format!("{name} is {:?} instead of {expected:?}", all(name)));
        }
    }
    for name in lacks.iter().filter(|name| !all(name).is_empty()) {
        wrong.push(format!("{name} is {:?}", all(name)));
    }
    wrong
}

fn judge_bytes(expected: &[u8], got: &[u8]) -> Option<String> {
    let at = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
    let show = |bytes: &[u8]| {
        let from = at.saturating_sub(40).min(bytes.len());
        let text = &bytes[from..bytes.len().min(from + 400)];
        String::from_utf8_lossy(text).into_owned()
    };
    (expected != got).then(|| {
        let (expected, got) = (show(expected), show(got));
        format!("bytes differ from {at} on\n  expected …{expected:?}\n  got      …{got:?}")
    })
}

fn filled(rig: &Rig, bytes: &Bytes) -> Vec<u8> {
    match std::str::from_utf8(&bytes.0) {
        Ok(text) => rig.fill(text).into_bytes(),
        Err(_) => bytes.0.clone(),
    }
}

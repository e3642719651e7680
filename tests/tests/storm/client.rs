//! Clients, and their verdicts on the answers they get.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use transload_test_servers::wire::chunked;
use transload_tests::process::Chance;

use super::answer::{Connection, Got};
use super::fakes::{CACHED_AT_DECODE, cached_at_prefill, own};
use super::malformed;
use super::plan::{Connector, Fault, Mode, Named, Plan, Route, Setting, tokens};
use super::world::{Counts, Place};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It waits for each answer.
    Polite,
    SlowReader,
    SlowWriter,
    /// It sends several requests at once.
    Pipelines,
    /// It leaves before it has its answer.
    Leaves,
    /// It sends something that is not HTTP, or not valid.
    Malformed,
}

impl Manner {
    fn draw(chance: &mut Chance) -> Self {
        match chance.below(16) {
            0 | 1 => Self::Leaves,
            2 => Self::SlowReader,
            3 => Self::SlowWriter,
            4 => Self::Pipelines,
            5 => Self::Malformed,
            _ => Self::Polite,
        }
    }
}

/// Connects, sends some requests and judges the answers.
pub(crate) async fn visit(place: &Place, mut chance: Chance, first: u64) -> Counts {
    let mut counts = Counts::default();
    let manner = Manner::draw(&mut chance);
    let told = match Connection::new(place.address).await {
        Ok(connection) if manner == Manner::Malformed => {
            counts.malformed += 1;
            malformed::send(connection, &mut chance).await
        }
        Ok(connection) if manner == Manner::Leaves => {
            counts.left += 1;
            leave(place, connection, &mut chance, first).await
        }
        Ok(connection) => ask(place, connection, manner, &mut chance, first, &mut counts).await,
        Err(error) => Err(format!("it cannot be connected to: {error}")),
    };
    if let Err(wrong) = told {
        place.known.fault(format!("{manner:?}: {wrong}"));
    }
    counts
}

/// The most requests of a visit.
pub(crate) const MOST: u64 = 4;

async fn ask(
    place: &Place,
    mut connection: Connection,
    manner: Manner,
    chance: &mut Chance,
    first: u64,
    counts: &mut Counts,
) -> Result<(), String> {
    let plans: Vec<_> = (0..=chance.below(MOST)).map(|index| Plan::draw(first + index, false, chance)).collect();
    let at_once = manner == Manner::Pipelines;
    if manner == Manner::SlowReader {
        connection.sip(1 + chance.below(100) as usize);
    }
    let requests: Vec<_> = plans.iter().map(|plan| request(plan, place, chance)).collect();
    if at_once {
        plans.iter().for_each(|plan| place.known.expect(plan.number));
        // Where an answer breaks off, the rest of this cannot be written.
        let _ = connection.stream().write_all(&requests.concat()).await;
    }
    let mut over = Ok(());
    for (plan, request) in plans.iter().zip(&requests) {
        if !at_once {
            place.known.expect(plan.number);
            let _ = match manner {
                Manner::SlowWriter => write_slowly(connection.stream(), request, chance).await,
                _ => connection.stream().write_all(request).await,
            };
        }
        let got = connection.answer().await;
        place.known.forget(plan.number);
        let judged = got.and_then(|got| {
            let last = !matches!(&got, Got::Whole(whole) if whole.one("connection").is_none_or(|word| !word.eq_ignore_ascii_case("close")));
            counts.judge(judge(plan, place.setting, &got)?);
            match connection.has_more().filter(|_| !at_once && !last) {
                Some(more) => Err(format!("more than an answer: {more}")),
                None => Ok(last),
            }
        });
        match judged {
            Ok(false) => {}
            Ok(true) => break,
            Err(wrong) => {
                over = Err(format!("{wrong}\nof {plan:?}"));
                break;
            }
        }
    }
    plans.iter().for_each(|plan| place.known.forget(plan.number));
    over
}

async fn write_slowly(stream: &mut TcpStream, mut bytes: &[u8], chance: &mut Chance) -> std::io::Result<()> {
    for _ in 0..8 {
        let (piece, rest) = bytes.split_at((chance.below(100) as usize).min(bytes.len()));
        stream.write_all(piece).await?;
        tokio::time::sleep(Duration::from_millis(chance.below(4))).await;
        bytes = rest;
    }
    stream.write_all(bytes).await
}

/// Sends a request, or a part of it, and leaves, perhaps in the middle of the answer.
async fn leave(place: &Place, mut connection: Connection, chance: &mut Chance, number: u64) -> Result<(), String> {
    let plan = Plan::draw(number, true, chance);
    let request = request(&plan, place, chance);
    let part = match chance.below(4) {
        0 => chance.below(request.len() as u64) as usize,
        _ => request.len(),
    };
    place.known.expect(plan.number);
    // It may be refused meanwhile.
    let _ = connection.stream().write_all(&request[..part]).await;
    let patience = Duration::from_millis(chance.below(120));
    let got = tokio::time::timeout(patience, connection.answer()).await;
    if chance.below(2) == 0 {
        let _ = connection.stream().set_zero_linger();
    }
    drop(connection);
    place.known.forget(plan.number);
    match got {
        Ok(Err(wrong)) => Err(format!("{wrong}\nof {plan:?}")),
        _ => Ok(()),
    }
}

/// Returns the request of a plan, as a client writes it.
pub(crate) fn request(plan: &Plan, place: &Place, chance: &mut Chance) -> Vec<u8> {
    let path = plan.route.path();
    let mut head = String::new();
    if let (Mode::Sidecar, true) = (place.setting.mode, plan.route.is_disaggregated()) {
        let target = match plan.named {
            Named::Nothing => None,
            Named::Closed => Some(place.closed),
            Named::One(index) => place.prefill.get(index).copied(),
        };
        if let Some(target) = target {
            head = format!("x-prefiller-host-port: {target}\r\n");
        }
    }
    if plan.route == Route::Models {
        return format!("GET {path}?{} HTTP/1.1\r\nhost: a\r\n{head}\r\n", plan.word()).into();
    }
    if plan.steers && plan.route.is_disaggregated() {
        head += "X-Request-Id: evil\r\n";
    }
    let body = body(plan, place.setting);
    let mut request =
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{head}").into_bytes();
    if chance.below(4) > 0 {
        request.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes());
        return request;
    }
    request.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    request.extend(chunked(body.as_bytes().chunks(1 + chance.below(200) as usize), &[]));
    request
}

fn body(plan: &Plan, setting: Setting) -> String {
    let mut body = json!({"model": "m", "user": plan.word(), "stream": plan.stream});
    match plan.route {
        Route::Chat => {
            body["messages"] = json!([{"role": "user", "content": "say it"}]);
            body["max_completion_tokens"] = json!(plan.tokens);
        }
        Route::Responses => body["input"] = json!("say it"),
        _ => body["prompt"] = json!("say it"),
    }
    // Without a prefill server a decode server's refusal would be the answer.
    let disaggregated = plan.route.is_disaggregated() && (setting.mode == Mode::Proxy || plan.named != Named::Nothing);
    if setting.connector == Connector::SharedStorage && disaggregated && plan.number.is_multiple_of(2) {
        body["cache_hit_threshold"] = json!(0.8);
    }
    if plan.steers {
        body["kv_transfer_params"] = json!({"remote_host": "evil"});
        body["bootstrap_host"] = json!("evil");
        body["bootstrap_room"] = json!("evil");
    }
    body.to_string()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Answer,
    Error,
    Broken,
}

/// Decides whether a client may get this answer, or returns what is wrong with it.
pub(crate) fn judge(plan: &Plan, setting: Setting, got: &Got) -> Result<Verdict, String> {
    let may = plan.outcomes(setting);
    let whole = match got {
        Got::Broken(bytes) if may.broken && *bytes > 0 => return Ok(Verdict::Broken),
        Got::Broken(bytes) => return Err(format!("it broke after {bytes} bytes")),
        Got::Whole(whole) => whole,
    };
    let (status, body) = (whole.status(), whole.text());
    let content_type = whole.one("content-type").unwrap_or_default();
    for (role, own_status) in &may.own {
        let text = match own_status {
            200 => format!("not json {}", plan.number),
            _ => own(plan.number, *role, *own_status),
        };
        if status == *own_status && body == text {
            return Ok(Verdict::Error);
        }
    }
    if status == 200 && may.answer {
        return is_answer(plan, setting, content_type, body)
            .map(|()| Verdict::Answer)
            .map_err(|wrong| format!("{wrong}: {whole:?}"));
    }
    let error: Value = serde_json::from_str(body).unwrap_or_default();
    let told = error["message"].as_str().is_some_and(|message| !message.is_empty());
    if may.error && matches!(status, 502..=504) && told && content_type == "application/json" {
        return Ok(Verdict::Error);
    }
    Err(format!("it may not get {whole:?}, but {may:?}"))
}

/// Returns whether these are the tokens of this request and of no other one.
fn is_answer(plan: &Plan, setting: Setting, content_type: &str, body: &str) -> Result<(), String> {
    let mut answers = Vec::new();
    if plan.stream {
        if !content_type.starts_with("text/event-stream") {
            return Err("it is no stream".to_owned());
        }
        if !body.ends_with("data: [DONE]\n\n") {
            return Err("the stream has no end".to_owned());
        }
        let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
        answers.extend(events.filter(|event| *event != "[DONE]"));
    } else {
        answers.push(body);
    }
    let mut text = String::new();
    let mut usage = Value::Null;
    let mut mark = Value::Null;
    for answer in answers {
        let answer: Value = serde_json::from_str(answer).map_err(|wrong| wrong.to_string())?;
        let choice = &answer["choices"][0];
        let parts = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        parts.iter().for_each(|part| text += part.as_str().unwrap_or_default());
        if !answer["usage"].is_null() {
            usage = answer["usage"].clone();
        }
        if !answer["id"].is_null() {
            mark = answer["id"].clone();
        }
    }
    if text != tokens(plan.number, 0, plan.tokens) {
        return Err(format!("these are not the tokens: {text:?}"));
    }
    if usage["completion_tokens"] != plan.tokens {
        return Err("it counts other tokens".to_owned());
    }
    let cached = match setting.connector {
        Connector::NixlV2 if mark == "given" => cached_at_prefill(plan.number),
        _ => CACHED_AT_DECODE,
    };
    // What is too long to be held is passed as it is; and legs of a chunked decode are counted together.
    let exempt = plan.decode.contains(&Fault::Gigantic) || setting.chunk.is_some();
    if !exempt && usage["prompt_tokens_details"]["cached_tokens"] != cached {
        return Err(format!("{cached} tokens were cached"));
    }
    Ok(())
}

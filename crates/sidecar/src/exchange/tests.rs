//! Exchanges with servers that answer, fail, stall and break off in every way, in virtual time. What each leg asks for, and the plain
//! failures, are cases of the conformance tests.

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::request::Bootstrap;
use super::*;
use crate::json::Object;

fn rules(connector: KvConnector) -> Rules {
    Rules {
        connector,
        prefill_timeout: Duration::from_secs(10),
        prefill_failure: PrefillFailure::Fallback,
        prefill_retries: 0,
        prefill_backoff: Duration::from_secs(1),
        decode_chunk: None,
        body_limit: 1_000,
        bodies: Budget::new(1 << 20),
        elsewhere: false,
        remote_hosts: RemoteHosts::Any,
    }
}

fn request(body: &Value, disaggregated: bool) -> Request {
    let body = Object::parse(body.to_string().into()).expect("an object");
    let bootstrap = Some(Bootstrap { host: "\"p\"".into(), port: 8998, room: 7 });
    Request { route: Route::ChatCompletions, body, disaggregated, bootstrap, meeting: None }
}

#[derive(Debug, Clone)]
enum Script {
    Fails(Failure),
    Silent,
    Answers { status: u16, events: bool, pieces: Vec<String>, then: End },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Breaks,
    Stalls,
}

struct Running {
    role: Role,
    body: Value,
    coming: VecDeque<Event>,
}

#[derive(Debug, Default)]
struct Seen {
    status: Option<u16>,
    body: String,
    ended: Option<bool>,
    sent: Vec<(Role, Value, bool)>,
    stopped: Vec<Role>,
    /// Parameters whose blocks were released, including those released at the end.
    released: Vec<Value>,
}

/// Runs an exchange to its end. Scripts are used in the order in which legs of a role are sent; when they are used up
/// there is no further server. `order` decides which leg's next event comes first.
fn run(rules: Rules, request: Request, prefill: &[Script], decode: &[Script], order: &[bool]) -> (Seen, Path) {
    let mut now = Instant::now();
    let mut exchange = Exchange::new(Arc::new(rules), request, now);
    let mut seen = Seen::default();
    let mut scripts = (prefill.iter(), decode.iter());
    let mut legs: Vec<Running> = Vec::new();
    for turn in 0..10_000 {
        while let Some(action) = exchange.next() {
            match action {
                Action::Send { role, body, elsewhere } => {
                    assert!(legs.iter().all(|leg| leg.role != role), "two legs of one role");
                    assert_eq!(seen.ended, None, "a leg after the end");
                    let body: Value = serde_json::from_slice(&body).expect("bodies are JSON");
                    seen.sent.push((role, body.clone(), elsewhere));
                    let script = match role {
                        Role::Prefill => scripts.0.next(),
                        Role::Decode => scripts.1.next(),
                    };
                    let coming = script
                        .map_or_else(|| [Event::Failed(role, Failure::NoServer)].into(), |script| script.events(role));
                    legs.push(Running { role, body, coming });
                }
                Action::Stop(role) => {
                    seen.stopped.push(role);
                    legs.retain(|leg| leg.role != role);
                }
                Action::Detach(role, _) => legs.retain(|leg| leg.role != role),
                Action::Blame(..) | Action::Suspect | Action::Misfit | Action::Learn(_) => {}
                Action::Release(params) => seen.released.push(value(&params)),
                Action::Answer(status, _) => {
                    assert_eq!(seen.status.replace(status.as_u16()), None, "two answers");
                    assert_eq!(seen.ended, None);
                }
                Action::Write(bytes) => {
                    assert!(seen.status.is_some() && seen.ended.is_none(), "a body without an answer");
                    seen.body.push_str(std::str::from_utf8(&bytes).expect("text"));
                }
                Action::Finish(_) => {
                    assert!(seen.status.is_some() && seen.ended.is_none());
                    seen.ended = Some(true);
                }
                Action::Cut => {
                    assert!(seen.status.is_some() && seen.ended.is_none());
                    seen.ended = Some(false);
                }
            }
        }
        if seen.ended.is_some() {
            assert!(legs.is_empty(), "a leg is left: {:?} {:?}", legs[0].role, legs[0].body);
            seen.released.extend(exchange.unclaimed().map(value));
            return (seen, exchange.path());
        }
        let waits = |leg: &Running| leg.role == Role::Decode && exchange.holds_decode();
        let ready: Vec<usize> =
            (0..legs.len()).filter(|leg| !legs[*leg].coming.is_empty() && !waits(&legs[*leg])).collect();
        if let Some(first) = ready.first() {
            let last = ready.last().unwrap_or(first);
            let leg = if order.get(turn % order.len().max(1)).copied().unwrap_or_default() { *last } else { *first };
            let event = legs[leg].coming.pop_front().expect("it is ready");
            if matches!(event, Event::End(..) | Event::Failed(..)) {
                legs.remove(leg);
            }
            exchange.on(event, now);
        } else if let Some(deadline) = exchange.deadline() {
            now = now.max(deadline);
            exchange.on(Event::Tick, now);
        } else {
            // Only a decode leg has no time limit: the client decides how long it waits.
            assert!(legs.iter().any(|leg| leg.role == Role::Decode), "nothing is waited for: {seen:?}");
            let leg = legs.iter().position(|leg| leg.role == Role::Decode).expect("there is one");
            legs.remove(leg);
            exchange.on(Event::Failed(Role::Decode, Failure::Broken), now);
        }
    }
    panic!("it does not end");
}

fn value(json: &Bytes) -> Value {
    serde_json::from_slice(json).expect("it is JSON")
}

impl Script {
    fn events(&self, role: Role) -> VecDeque<Event> {
        match self {
            Self::Fails(failure) => [Event::Failed(role, *failure)].into(),
            Self::Silent => VecDeque::new(),
            Self::Answers { status, events, pieces, then } => {
                let mut headers = HeaderMap::new();
                let kind = if *events { "text/event-stream" } else { "application/json" };
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                let status = StatusCode::from_u16(*status).expect("a status");
                let mut out = VecDeque::from([Event::Head(role, status, headers)]);
                out.extend(pieces.iter().map(|piece| Event::Data(role, piece.clone().into())));
                match then {
                    End::Whole => out.push_back(Event::End(role, None)),
                    End::Breaks => out.push_back(Event::Failed(role, Failure::Broken)),
                    End::Stalls => {}
                }
                out
            }
        }
    }
}

fn answers(status: u16, body: &Value) -> Script {
    Script::Answers { status, events: false, pieces: vec![body.to_string()], then: End::Whole }
}

fn params() -> Value {
    json!({"kv_transfer_params": {"ticket": "T", "n": 1}, "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}})
}

fn decoded() -> Value {
    json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
}

fn asked() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9})
}

#[test]
fn blocks_are_given_up_unless_a_decode_server_computes() {
    for (decode, given_up) in [
        (answers(200, &decoded()), false),
        (answers(400, &json!({"e": 1})), true),
        (answers(500, &json!({"e": 1})), true),
        (Script::Fails(Failure::Refused), true),
    ] {
        for chunk in [None, Some(1)] {
            let mut chunked = rules(KvConnector::NixlV2);
            chunked.decode_chunk = chunk;
            let (seen, _) =
                run(chunked, request(&asked(), true), &[answers(200, &params())], std::slice::from_ref(&decode), &[]);
            let released = vec![params()["kv_transfer_params"].clone(); given_up.into()];
            assert_eq!(seen.released, released, "{decode:?} {chunk:?}");
        }
    }
}

#[test]
fn parameters_go_elsewhere_only_unseen() {
    let mut proxy = rules(KvConnector::NixlV2);
    proxy.elsewhere = true;
    let decode = [Script::Fails(Failure::Refused), answers(200, &decoded())];
    let (seen, path) = run(proxy.clone(), request(&asked(), true), &[answers(200, &params())], &decode, &[]);
    assert_eq!(
        (path, &seen.sent[2].1["kv_transfer_params"]["ticket"], seen.sent[2].2),
        (Path::Disaggregated, &json!("T"), true)
    );
    let head_only = Script::Answers { status: 200, events: true, pieces: vec![], then: End::Breaks };
    for seen_by_server in [Script::Fails(Failure::Broken), head_only] {
        let decode = [seen_by_server, answers(200, &decoded())];
        let (seen, path) = run(proxy.clone(), request(&asked(), true), &[answers(200, &params())], &decode, &[]);
        assert_eq!((path, &seen.sent[2].1, seen.status), (Path::Fallback, &asked(), Some(200)));
        assert_eq!(seen.released, [params()["kv_transfer_params"].clone()]);
    }
    let (seen, _) = run(
        rules(KvConnector::NixlV2),
        request(&asked(), true),
        &[answers(200, &params())],
        &[Script::Fails(Failure::Refused)],
        &[],
    );
    assert_eq!(seen.status, Some(503));
    let (seen, _) = run(
        rules(KvConnector::NixlV2),
        request(&asked(), true),
        &[answers(200, &params())],
        &[Script::Fails(Failure::Broken)],
        &[],
    );
    assert_eq!(seen.status, Some(502));
}

fn overlapped(life: &str) -> Request {
    let earlier = json!({"kv_transfer_params": {"transload_ticket": "E", "transload_life": life}});
    let mut learned = Exchange::new(Arc::new(rules(KvConnector::NixlV2)), meeting(None), Instant::now());
    learned.on(Event::Head(Role::Prefill, StatusCode::OK, HeaderMap::new()), Instant::now());
    learned.on(Event::Data(Role::Prefill, earlier.to_string().into()), Instant::now());
    learned.on(Event::End(Role::Prefill, None), Instant::now());
    let actions = std::iter::from_fn(|| learned.next());
    let mut learned =
        actions.filter_map(|action| if let Action::Learn(earlier) = action { Some(earlier) } else { None });
    meeting(learned.next().map(Arc::new))
}

fn meeting(earlier: Option<Arc<Earlier>>) -> Request {
    Request { meeting: Some(Meeting { id: 0xAB, earlier }), ..request(&asked(), true) }
}

/// Returns a prefill server's answer, of this life of it.
fn lent(life: &str) -> Script {
    let mut answer = params();
    answer["kv_transfer_params"]["transload_ticket"] = json!("N");
    answer["kv_transfer_params"]["transload_life"] = json!(life);
    answers(200, &answer)
}

#[test]
fn a_server_that_nothing_is_known_of_is_asked_first() {
    let (seen, path) = run(rules(KvConnector::NixlV2), meeting(None), &[lent("1")], &[answers(200, &decoded())], &[]);
    let [(Role::Prefill, prefill, _), (Role::Decode, decode, _)] = &seen.sent[..] else { panic!("{seen:?}") };
    assert_eq!(prefill["kv_transfer_params"]["transload_overlap"], json!("000000000000000000000000000000ab"));
    assert_eq!(decode["kv_transfer_params"]["transload_overlap"], Value::Null);
    assert_eq!((decode["kv_transfer_params"]["transload_ticket"].as_str(), path), (Some("N"), Path::Disaggregated));
}

/// Each row has the answers of both servers, and the ticket that each decode leg is to be sent with.
#[test]
fn both_are_asked_at_once() {
    let ok = || answers(200, &decoded());
    let refused = || Script::Fails(Failure::Refused);
    let broken = || Script::Fails(Failure::Broken);
    let failing = || answers(500, &json!({"e": 1}));
    let event = json!({"error": {"code": 500}});
    let failing_later =
        Script::Answers { status: 200, events: true, pieces: vec![format!("data: {event}\n\n")], then: End::Whole };
    let stalls = Script::Answers { status: 200, events: false, pieces: vec!["{".into()], then: End::Stalls };
    type Row<'a> = (&'a str, Vec<Script>, Vec<Script>, &'a [Option<&'a str>], Path);
    let rows: [Row<'_>; 12] = [
        ("all is well", vec![lent("1")], vec![ok()], &[Some("E")], Path::Disaggregated),
        ("another life", vec![lent("2")], vec![ok(), ok()], &[Some("E"), Some("N")], Path::Disaggregated),
        ("no life", vec![answers(200, &params())], vec![ok(), ok()], &[Some("E"), None], Path::Disaggregated),
        ("nothing is lent", vec![answers(200, &json!({}))], vec![ok(), ok()], &[Some("E"), None], Path::Disaggregated),
        ("prefill fails", vec![failing()], vec![Script::Silent, ok()], &[Some("E"), None], Path::Fallback),
        ("prefill breaks", vec![broken()], vec![ok(), ok()], &[Some("E"), None], Path::Fallback),
        ("prefill stalls", vec![stalls], vec![ok(), ok()], &[Some("E"), None], Path::Fallback),
        ("decode fails", vec![lent("1")], vec![failing(), ok()], &[Some("E"), None], Path::Fallback),
        ("decode fails later", vec![lent("1")], vec![failing_later, ok()], &[Some("E"), None], Path::Fallback),
        ("decode refuses", vec![lent("1")], vec![refused(), ok()], &[Some("E"), Some("E")], Path::Disaggregated),
        ("decode breaks first", vec![lent("1")], vec![broken(), ok()], &[Some("E"), Some("N")], Path::Disaggregated),
        ("decode breaks behind it", vec![lent("1")], vec![broken(), ok()], &[Some("E"), None], Path::Fallback),
    ];
    for (what, prefill, decode, tickets, path) in rows {
        for decode_first in [false, true] {
            if what.starts_with("decode breaks") && what.ends_with("first") != decode_first {
                continue;
            }
            let mut proxy = rules(KvConnector::NixlV2);
            proxy.elsewhere = true;
            // A prefill server that breaks is not asked elsewhere: there is no other one.
            let prefill = if what == "prefill breaks" { vec![broken(), broken()] } else { prefill.clone() };
            let (seen, taken) = run(proxy, overlapped("1"), &prefill, &decode, &[decode_first]);
            let legs = seen.sent.iter().filter(|(role, ..)| *role == Role::Decode);
            let sent: Vec<_> =
                legs.map(|(_, body, _)| body["kv_transfer_params"]["transload_ticket"].as_str()).collect();
            assert_eq!((&sent[..], taken), (tickets, path), "{what} {decode_first}");
            assert_eq!((seen.status, seen.ended), (Some(200), Some(true)), "{what} {decode_first}");
            let body: Value = serde_json::from_str(&seen.body).expect("JSON");
            assert_eq!(body["choices"], decoded()["choices"], "{what} {decode_first}");
        }
    }
}

/// A decode server that has reported a missing prompt must not report it again instead of answering.
#[test]
fn storage_that_lacks_the_prompt_is_not_asked_for_it_twice() {
    let mut body = asked();
    body["cache_hit_threshold"] = json!(0.5);
    let lacks = || answers(200, &json!({"choices": [{"finish_reason": "cache_threshold"}]}));
    let breaks = || Script::Answers { status: 200, events: false, pieces: vec!["{".into()], then: End::Breaks };
    let refuses = || Script::Fails(Failure::Refused);
    for (prefill, decode) in [
        (vec![answers(500, &json!({}))], vec![lacks()]),
        (vec![refuses(), refuses()], vec![lacks()]),
        (vec![answers(200, &json!({}))], vec![lacks(), Script::Fails(Failure::Broken)]),
        (vec![], vec![refuses()]),
        (vec![], vec![breaks()]),
    ] {
        let mut rules = rules(KvConnector::SharedStorage);
        rules.elsewhere = true;
        let decode = [decode, vec![answers(200, &decoded())]].concat();
        let (seen, _) = run(rules, request(&body, true), &prefill, &decode, &[]);
        assert_eq!((seen.status, seen.ended), (Some(200), Some(true)), "{seen:?}");
        assert_eq!(seen.body, decoded().to_string());
        let last = seen.sent.last().expect("a leg");
        assert_eq!((last.0, &last.1["cache_hit_threshold"]), (Role::Decode, &json!(0)));
    }
}

fn scripts() -> impl Strategy<Value = Script> {
    let failure = prop::sample::select(vec![Failure::Refused, Failure::Broken, Failure::ConnectTimeout]);
    let piece = prop::sample::select(vec![
        params().to_string(),
        decoded().to_string(),
        "data: {\"choices\":[{\"finish_reason\":null}],\"usage\":{}}\n\n".to_owned(),
        "data: {\"choices\":[{\"finish_reason\":\"cache_threshold\"}]}\n\n".to_owned(),
        "{\"choices\":[{\"finish_reason\":\"cache_threshold\"}]}".to_owned(),
        "{".to_owned(),
        String::new(),
        "x".repeat(600),
    ]);
    let end = prop::sample::select(vec![End::Whole, End::Whole, End::Breaks, End::Stalls]);
    let status = prop::sample::select(vec![200, 200, 200, 204, 302, 400, 429, 499, 500, 503]);
    prop_oneof![
        2 => failure.prop_map(Script::Fails),
        1 => Just(Script::Silent),
        6 => (status, any::<bool>(), prop::collection::vec(piece, 0..4), end)
            .prop_map(|(status, events, pieces, then)| Script::Answers { status, events, pieces, then }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever servers do, the client gets one answer that is complete or recognisably incomplete, and no leg is left
    /// running.
    #[test]
    fn every_client_gets_one_answer(
        prefill in prop::collection::vec(scripts(), 0..4),
        decode in prop::collection::vec(scripts(), 0..6),
        order in prop::collection::vec(any::<bool>(), 1..20),
        connector in prop::sample::select(vec![KvConnector::NixlV2, KvConnector::SharedStorage, KvConnector::Sglang]),
        (disaggregated, elsewhere, strict, threshold, stream) in any::<(bool, bool, bool, bool, bool)>(),
        chunk in prop::option::of(1..5u32),
        retries in 0..3u32,
    ) {
        let mut rules = rules(connector);
        (rules.elsewhere, rules.decode_chunk, rules.prefill_retries) = (elsewhere, chunk, retries);
        if strict {
            rules.prefill_failure = PrefillFailure::Error;
        }
        let mut body = asked();
        if threshold {
            body["cache_hit_threshold"] = json!(0.5);
        }
        body["stream"] = json!(stream);
        let (seen, _) = run(rules, request(&body, disaggregated), &prefill, &decode, &order);
        for (role, body, _) in &seen.sent {
            prop_assert!(*role == Role::Decode || body["max_tokens"] == 1 || connector == KvConnector::Sglang);
        }
        // The client's own error codes are of a server or of ours; a success is a server's.
        if seen.status == Some(200) && seen.ended == Some(true) {
            prop_assert!(seen.sent.iter().any(|(role, ..)| *role == Role::Decode));
        }
    }
}

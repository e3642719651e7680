use std::time::{Duration, Instant};

use super::*;
use crate::target::{ServerUrl, Target};

fn server(target: &str) -> ServerUrl {
    ServerUrl { tls: false, target: Target::parse(target).expect("a target") }
}

struct Clock(Instant);

impl Clock {
    fn after(&mut self, millis: u64) -> Instant {
        self.0 += Duration::from_millis(millis);
        self.0
    }
}

fn world() -> (Observer, Clock) {
    let clock = Clock(Instant::now());
    (Observer::new("sidecar", "1.2.3", clock.0), clock)
}

fn sample(observer: &Observer, name: &str) -> f64 {
    let text = observer.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().expect("a number")
}

fn disaggregated(observer: &Observer, clock: &mut Clock) -> Record {
    let record = observer.begin("id", clock.0);
    record.received(clock.after(4));
    record.path(Path::Disaggregated);
    record.prefill_asked(&server("p:1"), clock.after(1));
    record.prefill_answered(clock.after(100));
    record.decode_asked(&server("d:2"), clock.after(2));
    record.decode_answered(clock.after(30));
    record.status(200);
    record.first_byte(clock.after(3));
    record
}

#[test]
fn stages_of_a_disaggregated_request_are_told_apart() {
    let (observer, mut clock) = world();
    let record = disaggregated(&observer, &mut clock);
    record.bytes(40);
    record.bytes(2);
    record.tokens(Some(512), None);
    record.tokens(None, Some(256));
    record.finish(Outcome::Ok, clock.after(1000));
    let status = observer.status(Vec::new(), None, clock.after(60));
    let row = &status.recent[0];
    assert_eq!(row.path, Some(Path::Disaggregated));
    assert_eq!(row.outcome, Some(Outcome::Ok));
    assert_eq!(row.queue_ms, Some(5.0));
    assert_eq!(row.prefill_at_ms, Some(5.0));
    assert_eq!(row.prefill_ms, Some(100.0));
    assert_eq!(row.transfer_ms, Some(30.0));
    assert_eq!(row.first_token_ms, Some(140.0));
    assert_eq!(row.total_ms, 1140.0);
    assert_eq!(row.age_ms, 1200.0);
    assert_eq!(row.prefill.as_deref(), Some("http://p:1"));
    assert_eq!(row.decode.as_deref(), Some("http://d:2"));
    assert_eq!(row.answer_bytes, 42);
    assert_eq!((row.prompt_tokens, row.cached_tokens), (Some(512), Some(256)));
    // The overhead was 1 + 2 + 3 ms, without the 4 ms of the client's body and both legs.
    assert_eq!(sample(&observer, "transload_pd_overhead_seconds_sum"), 0.006);
    assert_eq!(sample(&observer, "transload_pd_prefill_seconds_sum"), 0.1);
    assert_eq!(sample(&observer, "transload_pd_first_token_seconds_sum"), 0.14);
}

#[test]
fn a_prefill_that_fails_leaves_no_transfer_and_its_wait_is_a_stage() {
    let (observer, mut clock) = world();
    let record = observer.begin("id", clock.0);
    record.received(clock.0);
    record.path(Path::Disaggregated);
    record.prefill_asked(&server("p:1"), clock.after(1));
    record.failure(Role::Prefill, FailureKind::Timeout, clock.after(50));
    record.path(Path::Fallback);
    record.decode_asked(&server("d:2"), clock.after(1));
    record.decode_answered(clock.after(200));
    record.first_byte(clock.0);
    record.finish(Outcome::Ok, clock.after(10));
    let status = observer.status(Vec::new(), None, clock.0);
    let row = &status.recent[0];
    assert_eq!(row.path, Some(Path::Fallback));
    assert_eq!((row.prefill_ms, row.transfer_ms), (Some(50.0), None));
    assert_eq!(row.first_token_ms, Some(252.0));
    let failure = row.failure.as_ref().expect("the failure");
    assert_eq!((failure.role, failure.kind), (Role::Prefill, FailureKind::Timeout));
    assert_eq!(status.failures.len(), 1);
    assert_eq!(status.requests.fallback, 1);
    assert!(status.latency.prefill_ms.is_none());
    assert_eq!(sample(&observer, "transload_pd_prefill_seconds_count"), 0.0);
    let failures = r#"transload_pd_upstream_failures_total{kind="timeout",role="prefill"}"#;
    assert_eq!(sample(&observer, failures), 1.0);
}

#[test]
fn an_answer_of_failure_is_no_answered_prefill() {
    let (observer, mut clock) = world();
    let count = || sample(&observer, "transload_pd_prefill_seconds_count");
    let record = observer.begin("id", clock.0);
    record.prefill_asked(&server("p:1"), clock.0);
    record.prefill_answered(clock.after(10));
    record.failure(Role::Prefill, FailureKind::Status, clock.0);
    record.decode_asked(&server("d:1"), clock.0);
    record.finish(Outcome::Ok, clock.after(10));
    assert_eq!(count(), 0.0);
    let record = observer.begin("id", clock.0);
    record.prefill_asked(&server("p:1"), clock.0);
    record.failure(Role::Prefill, FailureKind::Broken, clock.after(10));
    record.prefill_asked(&server("p:2"), clock.0);
    record.prefill_answered(clock.after(10));
    record.finish(Outcome::Ok, clock.after(10));
    assert_eq!(count(), 1.0);
    assert_eq!(sample(&observer, "transload_pd_prefill_seconds_sum"), 0.02);
}

#[test]
fn a_transfer_ends_with_the_answer_that_the_client_gets() {
    let (observer, mut clock) = world();
    let record = observer.begin("id", clock.0);
    record.path(Path::Disaggregated);
    record.prefill_asked(&server("p:1"), clock.0);
    record.prefill_answered(clock.after(10));
    record.decode_asked(&server("d:1"), clock.0);
    record.decode_answered(clock.after(3));
    record.failure(Role::Decode, FailureKind::Broken, clock.after(1));
    record.decode_asked(&server("d:2"), clock.0);
    record.decode_answered(clock.after(7));
    record.first_byte(clock.0);
    record.failure(Role::Decode, FailureKind::Broken, clock.after(1));
    record.finish(Outcome::UpstreamFailed, clock.0);
    let row = &observer.status(Vec::new(), None, clock.0).recent[0];
    assert_eq!((row.transfer_ms, row.first_token_ms), (Some(7.0), Some(21.0)));
    assert_eq!(row.decode.as_deref(), Some("http://d:2"));
}

#[test]
fn legs_are_in_flight_from_being_asked_to_their_end() {
    let (observer, mut clock) = world();
    let of = |role: &str| sample(&observer, &format!("transload_pd_in_flight{{role=\"{role}\"}}"));
    let record = observer.begin("id", clock.0);
    assert_eq!((of("prefill"), of("decode")), (0.0, 0.0));
    record.prefill_asked(&server("p:1"), clock.after(1));
    record.failure(Role::Prefill, FailureKind::Refused, clock.after(1));
    record.prefill_asked(&server("p:2"), clock.after(1));
    assert_eq!((of("prefill"), of("decode")), (1.0, 0.0));
    record.decode_asked(&server("d:1"), clock.after(1));
    record.decode_asked(&server("d:1"), clock.after(1));
    assert_eq!((of("prefill"), of("decode")), (1.0, 1.0));
    record.prefill_answered(clock.after(1));
    assert_eq!((of("prefill"), of("decode")), (0.0, 1.0));
    drop(record);
    assert_eq!((of("prefill"), of("decode")), (0.0, 0.0));
}

#[test]
fn a_record_that_is_dropped_is_of_a_client_that_left() {
    let (observer, clock) = world();
    let record = observer.begin("id", clock.0);
    let status = observer.status(Vec::new(), None, clock.0);
    assert_eq!((status.in_flight.len(), status.recent.len()), (1, 0));
    assert_eq!((status.in_flight[0].path, status.in_flight[0].outcome), (None, None));
    drop(record);
    let status = observer.status(Vec::new(), None, Instant::now());
    assert_eq!((status.in_flight_total, status.in_flight.len()), (0, 0));
    assert_eq!(status.recent[0].outcome, Some(Outcome::ClientLeft));
    assert_eq!(status.requests.rejected, 1);
}

#[test]
fn as_many_requests_are_kept_as_there_is_room_for_and_no_more() {
    let (observer, mut clock) = world();
    let records: Vec<_> = (0..LIVE + 3).map(|number| observer.begin(&number.to_string(), clock.0)).collect();
    let status = observer.status(Vec::new(), None, clock.0);
    assert_eq!((status.in_flight_total, status.in_flight.len()), (LIVE + 3, LIVE));
    assert_eq!(status.in_flight[0].id, (LIVE - 1).to_string());
    for record in records {
        record.finish(Outcome::Rejected, clock.after(1));
    }
    let status = observer.status(Vec::new(), None, clock.0);
    assert_eq!((status.in_flight_total, status.in_flight.len()), (0, 0));
    let ids: Vec<_> = status.recent.into_iter().map(|row| row.id).collect();
    let expected: Vec<_> = (0..LIVE + 3).rev().take(RECENT).map(|number| number.to_string()).collect();
    assert_eq!(ids, expected);
    assert_eq!(status.requests.rejected, (LIVE + 3) as u64);
}

#[test]
fn a_decode_server_asked_first_does_not_count_as_prefill() {
    let (observer, mut clock) = world();
    let record = observer.begin("id", clock.0);
    record.received(clock.0);
    record.decode_asked(&server("d:1"), clock.after(1));
    record.decode_answered(clock.after(18));
    record.decode_set_aside(clock.after(2));
    record.path(Path::Disaggregated);
    record.prefill_asked(&server("p:1"), clock.after(1));
    record.prefill_answered(clock.after(50));
    record.decode_asked(&server("d:1"), clock.after(1));
    record.decode_answered(clock.after(5));
    record.first_byte(clock.0);
    // Further legs of the same answer change nothing that has been measured.
    record.decode_asked(&server("d:1"), clock.after(100));
    record.decode_answered(clock.after(5));
    record.first_byte(clock.0);
    record.finish(Outcome::Ok, clock.0);
    let row = &observer.status(Vec::new(), None, clock.0).recent[0];
    assert_eq!((row.queue_ms, row.prefill_at_ms), (Some(1.0), Some(22.0)));
    assert_eq!((row.prefill_ms, row.transfer_ms), (Some(50.0), Some(5.0)));
    assert_eq!(row.first_token_ms, Some(78.0));
    assert_eq!(sample(&observer, "transload_pd_overhead_seconds_sum"), 0.003);
    assert_eq!(sample(&observer, "transload_pd_first_token_seconds_count"), 1.0);
}

#[test]
fn the_document_has_the_fields_that_people_rely_on() {
    let (observer, mut clock) = world();
    disaggregated(&observer, &mut clock).finish(Outcome::Ok, clock.after(9));
    let servers = vec![ServerStatus {
        url: server("[::1]:8100"),
        role: Role::Prefill,
        state: ServerState::Open,
        in_flight: 1,
        requests: 2,
        failures: 3,
        misfits: vec![server("127.0.0.1:8200")],
    }];
    let status = serde_json::to_value(observer.status(servers, None, clock.0)).expect("JSON");
    assert_eq!(status["schema"], "transload.status/1");
    assert_eq!(status["mode"], "sidecar");
    assert_eq!(
        status["servers"],
        serde_json::json!([{"url": "http://[::1]:8100", "role": "prefill", "state": "open",
            "in_flight": 1, "requests": 2, "failures": 3, "misfits": ["http://127.0.0.1:8200"]}])
    );
    assert_eq!(
        status["requests"],
        serde_json::json!({"disaggregated": 1, "decode_only": 0, "fallback": 0, "rejected": 0})
    );
    let row = status["recent"][0].as_object().expect("a row");
    for field in [
        "id",
        "path",
        "prefill",
        "decode",
        "outcome",
        "queue_ms",
        "prefill_ms",
        "first_token_ms",
        "total_ms",
        "prompt_tokens",
        "cached_tokens",
    ] {
        assert!(row.contains_key(field), "no {field} in {row:?}");
    }
    assert_eq!((&row["path"], &row["outcome"]), (&"disaggregated".into(), &"ok".into()));
}

proptest::proptest! {
    /// By the definition of nearest rank, a percentile is the least measurement with at least this share of
    /// measurements not above it.
    #[test]
    fn percentiles_are_those_of_the_definition(mut all in proptest::collection::vec(0u32..50, 1..300)) {
        let quantiles = super::status::Quantiles::of(all.iter().map(|one| f64::from(*one)).collect()).expect("some");
        all.sort_unstable();
        for (percent, said) in [(50, quantiles.p50), (90, quantiles.p90), (99, quantiles.p99)] {
            let least = all.iter().find(|one| {
                all.iter().filter(|other| other <= one).count() * 100 >= percent * all.len()
            });
            assert_eq!(least.map(|one| f64::from(*one)), Some(said));
        }
        assert_eq!(quantiles.count, all.len());
    }

    /// Whatever a server says, counts stay bounded and only plain names are kept.
    #[test]
    fn any_text_of_a_server_is_read(lines in proptest::collection::vec(
        r#"vllm:transload_(bytes|failures)_total(\{[a-z=",\\ }]{0,12}(path|kind)="[a-z\\"]{0,6}"?[,}]{0,2})? ?([0-9.e+-]{0,6}|NaN)"#, 0..60)) {
        let mut transfers = Transfers::default();
        transfers.add(&lines.join("\n"));
        for counts in [&transfers.bytes, &transfers.failures] {
            let names = serde_json::to_value(counts).expect("JSON");
            let names = names.as_object().expect("an object");
            assert!(names.len() <= 17);
            assert!(names.keys().all(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric())));
        }
    }
}

#[test]
fn what_connectors_say_is_added_up() {
    let one = r#"# HELP vllm:transload_bytes_total Bytes loaded, by the path they took.
# TYPE vllm:transload_bytes_total counter
vllm:transload_bytes_total{engine="0",model_name="a \"b\", {c}=\\",path="quic"} 1.5e+03
vllm:transload_bytes_total{engine="1",model_name="m",path="quic"} 500.0 1712000000000
vllm:transload_bytes_total{path="local",engine="0"} 7
vllm:transload_bytes_created{engine="0",path="quic"} 1.7e+09
vllm:transload_bytes_total{path="<b>x</b>"} 3
vllm:transload_failures_total{kind="expired"} 2
vllm:transload_failures_total{kind="expired"} NaN
vllm:transload_failures_total{kind="expired"} -1
vllm:transload_failures_total{kind="expired" 4
vllm:transload_leases_ended_total{end="released"} 9
vllm:transload_load_seconds_count{engine="0"} 4
vllm:transload_load_seconds_sum{engine="0"} 0.25
vllm:transload_store_bytes_total{what="saved"} 11
vllm:num_requests_running{engine="0"} 3
"#;
    let mut transfers = Transfers::default();
    transfers.add(one);
    transfers.add("vllm:transload_bytes_total{path=\"quic\"} 1e300\n");
    transfers.add("vllm:num_requests_running 3\n");
    assert_eq!(transfers.servers, 2);
    assert_eq!(transfers.bytes.get("quic"), Some(u64::MAX));
    assert_eq!(transfers.bytes.get("local"), Some(7));
    assert_eq!(transfers.bytes.get("other"), Some(3));
    assert_eq!(transfers.failures.get("expired"), Some(2));
    assert_eq!(transfers.leases.get("released"), Some(9));
    assert_eq!((transfers.loads, transfers.load_seconds), (4, 0.25));
    assert_eq!(transfers.store_bytes.get("saved"), Some(11));
    let mut first = Transfers::default();
    first.add(one);
    assert_eq!(first.bytes.get("quic"), Some(2000));
}

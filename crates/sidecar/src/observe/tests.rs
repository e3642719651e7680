use std::time::{Duration, Instant};

use super::*;
use crate::target::{ServerUrl, Target};

fn server(target: &str) -> ServerUrl {
    ServerUrl {
        tls: false,
        target: Target::parse(target).expect("a target"),
    }
}

/// A clock that a test moves.
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

/// A sample of the text format, by its name and labels.
fn sample(observer: &Observer, name: &str) -> f64 {
    let text = observer.metrics();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .parse()
        .expect("a number")
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
    let status = observer.status(Vec::new(), clock.after(60));
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
    assert_eq!(
        (row.prompt_tokens, row.cached_tokens),
        (Some(512), Some(256))
    );
    // Ours were 1 + 2 + 3 ms; the 4 ms of the client's body and both legs were not.
    assert_eq!(
        sample(&observer, "transload_pd_overhead_seconds_sum"),
        0.006
    );
    assert_eq!(sample(&observer, "transload_pd_prefill_seconds_sum"), 0.1);
    assert_eq!(
        sample(&observer, "transload_pd_first_token_seconds_sum"),
        0.14
    );
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
    let status = observer.status(Vec::new(), clock.0);
    let row = &status.recent[0];
    assert_eq!(row.path, Some(Path::Fallback));
    assert_eq!((row.prefill_ms, row.transfer_ms), (Some(50.0), None));
    assert_eq!(row.first_token_ms, Some(252.0));
    let failure = row.failure.as_ref().expect("the failure");
    assert_eq!(
        (failure.role, failure.kind),
        (Role::Prefill, FailureKind::Timeout)
    );
    assert_eq!(status.failures.len(), 1);
    assert_eq!(status.requests.fallback, 1);
    assert!(status.latency.prefill_ms.is_none());
    assert_eq!(sample(&observer, "transload_pd_prefill_seconds_count"), 0.0);
    let failures = r#"transload_pd_upstream_failures_total{kind="timeout",role="prefill"}"#;
    assert_eq!(sample(&observer, failures), 1.0);
}

#[test]
fn legs_are_in_flight_from_being_asked_to_their_end() {
    let (observer, mut clock) = world();
    let of = |role: &str| {
        sample(
            &observer,
            &format!("transload_pd_in_flight{{role=\"{role}\"}}"),
        )
    };
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
    let status = observer.status(Vec::new(), clock.0);
    assert_eq!((status.in_flight.len(), status.recent.len()), (1, 0));
    assert_eq!(
        (status.in_flight[0].path, status.in_flight[0].outcome),
        (None, None)
    );
    drop(record);
    let status = observer.status(Vec::new(), Instant::now());
    assert_eq!((status.in_flight_total, status.in_flight.len()), (0, 0));
    assert_eq!(status.recent[0].outcome, Some(Outcome::ClientLeft));
    assert_eq!(status.requests.rejected, 1);
}

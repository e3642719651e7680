//! Tests of sampling: which traces are recorded, and which context servers get for the others.

use crate::fakes::{Scene, decodes, prefills};
use crate::spans::ALWAYS;

const NEVER: (&str, &str) = ("OTEL_TRACES_SAMPLER_ARG", "0");
const RECORDED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_RECORDED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Sends a request. Returns the names of its spans and the trace contexts that both servers got.
async fn one(environment: &[(&str, &str)], headers: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let scene = Scene::start(environment, (prefills, decodes), |_| {}).await;
    assert_eq!(scene.disaggregated(headers).await, 200);
    let (collector, prefill, decode) = scene.end().await;
    let asked = [prefill.seen(), decode.seen()].concat();
    let told = asked.iter().map(|request| request.one("traceparent").unwrap_or_default().to_owned());
    (collector.names(), told.collect())
}

#[tokio::test]
async fn a_root_is_recorded_by_the_ratio() {
    let (names, told) = one(&[ALWAYS], &[]).await;
    assert_eq!(names, ["request", "prefill", "decode"]);
    assert!(told.iter().all(|told| told.ends_with("-01")), "{told:?}");

    let (names, told) = one(&[NEVER], &[]).await;
    assert_eq!(names, [""; 0]);
    assert!(told.iter().all(|told| told.ends_with("-00")), "{told:?}");
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn a_parent_decides() {
    let (names, told) = one(&[NEVER], &[("traceparent", RECORDED)]).await;
    assert_eq!(names, ["request", "prefill", "decode"]);
    assert!(told.iter().all(|told| told.starts_with(&RECORDED[..36]) && told.ends_with("-01")));

    let (names, told) = one(&[ALWAYS], &[("traceparent", NOT_RECORDED)]).await;
    assert_eq!(names, [""; 0]);
    assert!(told.iter().all(|told| told.starts_with(&RECORDED[..36]) && told.ends_with("-00")));
}

#[tokio::test]
async fn a_sampler_may_ignore_parents() {
    let ratio = ("OTEL_TRACES_SAMPLER", "traceidratio");
    let (names, _) = one(&[ratio, NEVER], &[("traceparent", RECORDED)]).await;
    assert_eq!(names, [""; 0]);
    let all = ("OTEL_TRACES_SAMPLER", "always_on");
    let (names, _) = one(&[all], &[("traceparent", NOT_RECORDED)]).await;
    assert_eq!(names, ["request", "prefill", "decode"]);
}

#[tokio::test]
async fn a_parent_that_is_malformed_is_none() {
    let headers = [("traceparent", "00-zz-01"), ("tracestate", "vendor=7")];
    let (names, told) = one(&[ALWAYS], &headers).await;
    assert_eq!(names, ["request", "prefill", "decode"]);
    assert!(told.iter().all(|told| told.len() == 55 && told.ends_with("-01")), "{told:?}");
}

#[tokio::test]
async fn without_export_headers_pass_as_they_came() {
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        for line in [RECORDED, NOT_RECORDED, "00-zz-01", "what is this"] {
            let (names, told) = one(&[off, ALWAYS], &[("traceparent", line)]).await;
            assert_eq!(names, [""; 0]);
            assert_eq!(told, [line, line]);
        }
        let (_, told) = one(&[off], &[]).await;
        assert_eq!(told, ["", ""]);
    }
}

//! Tests of a request's spans and their attributes.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use transload_sidecar::AllowList;
use transload_sidecar::settings::{KvConnector, Mode, Settings};
use transload_test_servers::{Fake, Message, soon};

use crate::collector::{Collector, Span, text};
use crate::fakes::{SECRET, Scene, decodes, prefills};

pub(crate) const ALWAYS: (&str, &str) = ("OTEL_TRACES_SAMPLER_ARG", "1");

fn as_it_is(_: &mut Settings) {}

fn header(request: &Message, name: &str) -> String {
    request.all(name).join("|")
}

/// Checks that no span contains text of clients, that all belong to the trace of the request's span, and that none
/// begins before it.
fn check(collector: &Collector) {
    let spans = collector.spans();
    assert!(!format!("{spans:?}").contains(SECRET), "{spans:?}");
    let request = collector.span("request");
    for span in &spans {
        assert!(span.times.0 <= span.times.1, "{span:?}");
        assert_eq!(span.trace, request.trace);
        assert_eq!(span.scope, "llm-d-inference-scheduler");
        if span.name != request.name {
            assert_eq!(span.kind, 1, "internal: {span:?}");
            assert!(span.times.0 >= request.times.0, "{span:?} {request:?}");
        }
    }
    assert_eq!(request.kind, 2, "server: {request:?}");
}

fn keys(span: &Span) -> Vec<String> {
    let keys = span.attributes.iter().map(|(key, value)| {
        let kind = format!("{value:?}");
        let kind = kind.split("Value").next().unwrap_or_default().to_lowercase();
        format!("{} {kind}", key.replace("llm_d.pd_proxy.", "~"))
    });
    keys.collect()
}

/// Checks the spans of a disaggregated request, for any protocol of the collector.
pub(crate) async fn see_a_disaggregated_request(scene: Scene) -> Collector {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("traceparent", PARENT),
        ("tracestate", "vendor=7"),
        ("tracestate", "other=8"),
        ("baggage", "user=9"),
        ("x-request-id", SECRET),
    ];
    let status = scene.disaggregated(&headers).await;
    assert_eq!(status, 200);
    let (collector, prefill, decode) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request", "prefill", "decode"]);
    let request = collector.span("request");
    let (prefilled, decoded) = (collector.span("prefill"), collector.span("decode"));
    assert_eq!(request.trace, &PARENT[3..35]);
    assert_eq!(request.parent, &PARENT[36..52]);
    assert_eq!(prefilled.parent, request.id);
    assert_eq!(decoded.parent, request.id);

    let id = request.pd("request_id").expect("an id");
    for (asked, span) in [(&prefill.seen()[0], &prefilled), (&decode.seen()[0], &decoded)] {
        assert_eq!(header(asked, "traceparent"), span.context());
        assert_eq!(header(asked, "tracestate"), "vendor=7,other=8");
        assert_eq!(header(asked, "baggage"), "user=9");
        assert_eq!(header(asked, "x-request-id"), id);
        assert_eq!(span.pd("request_id").as_ref(), Some(&id));
        assert_eq!(span.pd("connector").as_deref(), Some("nixlv2"));
        assert_eq!(span.status, 0, "{span:?}");
    }
    assert_eq!(
        keys(&request),
        [
            "http.response.status_code int",
            "llm_d.openai.api string",
            "~connector string",
            "~disaggregation_used bool",
            "~kv_connector string",
            "~prefill_candidates int",
            "~prefill_target string",
            "~request_id string",
            "~request_path string",
            "transload.outcome string",
            "transload.path string",
        ]
    );
    assert_eq!(request.get("http.response.status_code").as_deref(), Some("200"));
    assert_eq!(request.get("llm_d.openai.api").as_deref(), Some("chat_completions"));
    assert_eq!(request.pd("request_path").as_deref(), Some("/v1/chat/completions"));
    assert_eq!(request.pd("disaggregation_used").as_deref(), Some("true"));
    assert_eq!(request.pd("prefill_candidates").as_deref(), Some("1"));
    assert_eq!(request.pd("prefill_target"), Some(prefill.address.to_string()));
    assert_eq!(request.get("transload.path").as_deref(), Some("disaggregated"));
    assert_eq!(request.get("transload.outcome").as_deref(), Some("ok"));
    assert_eq!(
        keys(&prefilled),
        [
            "~connector string",
            "~prefill.duration_ms double",
            "~prefill.status_code int",
            "~prefill_target string",
            "~request_id string",
        ]
    );
    assert_eq!(prefilled.pd("prefill.status_code").as_deref(), Some("200"));
    assert_eq!(prefilled.pd("prefill_target"), Some(prefill.address.to_string()));
    assert_eq!(
        keys(&decoded),
        [
            "~connector string",
            "~coordinator_overhead_ms double",
            "~decode.data_parallel bool",
            "~decode.duration_ms double",
            "~decode.streaming bool",
            "~decode.target string",
            "~decode_duration_ms double",
            "~prefill_duration_ms double",
            "~request_id string",
            "~total_duration_ms double",
            "~true_ttft_ms double",
        ]
    );
    assert_eq!(decoded.pd("decode.target"), Some(decode.address.to_string()));
    assert_eq!(decoded.pd("decode.streaming").as_deref(), Some("false"));
    assert!(prefilled.times.1 <= decoded.times.0, "{prefilled:?} {decoded:?}");
    let service = request.resource.get("service.name").map(text);
    assert_eq!(service.as_deref(), Some("llm-d-inference-scheduler"));
    collector
}

#[tokio::test]
async fn a_disaggregated_request_has_a_span_and_one_for_each_leg() {
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), as_it_is).await;
    let collector = see_a_disaggregated_request(scene).await;
    assert_eq!(collector.asked()[0].0, "/v1/traces");
}

#[tokio::test]
async fn a_request_without_a_prefill_server_says_why() {
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), as_it_is).await;
    let body = json!({"input": SECRET, "stream": true});
    scene.ask("/v1/responses", &[], &body).await;
    let (collector, _, decode) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request", "decode"]);
    let (request, decoded) = (collector.span("request"), collector.span("decode"));
    assert_eq!(request.parent, "");
    assert_eq!(request.pd("disaggregation_used").as_deref(), Some("false"));
    assert_eq!(request.pd("reason").as_deref(), Some("no_prefill_header"));
    assert_eq!(request.pd("prefill_target"), None);
    assert_eq!(request.pd("request_path").as_deref(), Some("/v1/responses"));
    assert_eq!(request.get("llm_d.openai.api").as_deref(), Some("responses"));
    assert_eq!(request.get("transload.path").as_deref(), Some("decode_only"));
    assert_eq!(request.get("transload.outcome").as_deref(), Some("ok"));
    assert_eq!(decoded.pd("decode.streaming").as_deref(), Some("true"));
    assert_eq!(header(&decode.seen()[0], "traceparent"), decoded.context());
}

#[tokio::test]
async fn a_body_that_is_no_object_has_the_span_of_its_request() {
    let scene = Scene::start(&[ALWAYS], (prefills, |_, _| (400, Value::Null)), as_it_is).await;
    let status = scene.ask("/v1/completions", &[], &json!(7)).await;
    assert_eq!(status, 400);
    let (collector, _, decode) = scene.end().await;
    check(&collector);
    let request = collector.span("request");
    assert_eq!(collector.names(), ["request"]);
    assert_eq!(header(&decode.seen()[0], "traceparent"), request.context());
    assert_eq!(request.get("http.response.status_code").as_deref(), Some("400"));
    assert_eq!(request.status, 0);
}

#[tokio::test]
async fn a_prefill_that_fails_is_an_error_and_the_request_is_none() {
    let fails = |_: usize, _: &Value| (500, json!({}));
    let scene = Scene::start(&[ALWAYS], (fails, decodes), as_it_is).await;
    assert_eq!(scene.disaggregated(&[]).await, 200);
    let (collector, ..) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request", "prefill", "decode"]);
    let (request, prefilled) = (collector.span("request"), collector.span("prefill"));
    assert_eq!((request.status, prefilled.status), (0, 2));
    assert_eq!(collector.span("decode").status, 0);
    assert_eq!(prefilled.pd("prefill.status_code").as_deref(), Some("500"));
    assert_eq!(collector.span("decode").pd("prefill_duration_ms"), None);
    assert_eq!(request.pd("disaggregation_used").as_deref(), Some("true"));
    assert_eq!(request.get("transload.path").as_deref(), Some("fallback"));
}

#[tokio::test]
async fn a_prefill_that_answers_nonsense_is_an_error_too() {
    let nonsense = |_: usize, _: &Value| (200, json!("nonsense"));
    let scene = Scene::start(&[ALWAYS], (nonsense, decodes), as_it_is).await;
    assert_eq!(scene.disaggregated(&[]).await, 200);
    let (collector, ..) = scene.end().await;
    assert_eq!(collector.names(), ["request", "prefill", "decode"]);
    assert_eq!(collector.span("prefill").status, 2);
    assert_eq!(collector.span("decode").status, 0);
}

#[tokio::test]
async fn a_request_that_no_server_answers_is_an_error() {
    let gone = Fake::refusing(0).expect("a port");
    let port = gone.address.port();
    let settle = |settings: &mut Settings| {
        if let Mode::Sidecar(beside) = &mut settings.mode {
            beside.decode.target.port = port;
        }
    };
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), settle).await;
    assert_eq!(scene.disaggregated(&[]).await, 503);
    let (collector, ..) = scene.end().await;
    check(&collector);
    let request = collector.span("request");
    assert_eq!((request.status, collector.span("decode").status), (2, 2));
    assert_eq!(collector.span("prefill").status, 0);
    assert_eq!(request.get("transload.outcome").as_deref(), Some("upstream_failed"));
    assert_eq!(request.get("http.response.status_code").as_deref(), Some("503"));
}

#[tokio::test]
async fn a_target_that_is_not_allowed_is_named() {
    let settle = |settings: &mut Settings| {
        if let Mode::Sidecar(beside) = &mut settings.mode {
            beside.allow = Some(AllowList::parse(["elsewhere:1"]).expect("a list"));
        }
    };
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), settle).await;
    assert_eq!(scene.disaggregated(&[]).await, 403);
    let (collector, prefill, _) = scene.end().await;
    check(&collector);
    assert!(prefill.seen().is_empty());
    let request = collector.span("request");
    assert_eq!(request.pd("error").as_deref(), Some("ssrf_protection_denied"));
    assert_eq!(request.pd("denied_target"), Some(prefill.address.to_string()));
    assert_eq!(request.get("transload.outcome").as_deref(), Some("rejected"));
    assert_eq!(request.status, 2);
}

#[tokio::test]
async fn a_header_that_is_no_target_is_not_repeated() {
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), as_it_is).await;
    let named = format!("http://{SECRET}@p:1");
    let status = scene.chat(&[("x-prefiller-host-port", &named)]).await;
    assert_eq!(status, 400);
    let (collector, ..) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request"]);
    assert_eq!(collector.span("request").status, 0);
}

#[tokio::test]
async fn the_legs_of_a_chunked_decode_share_a_span() {
    let goes_on = |number: usize, _: &Value| {
        let reason = if number < 2 { "length" } else { "stop" };
        let choice = json!({"index": 0, "finish_reason": reason, "message": {"content": SECRET}});
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
        (200, json!({"choices": [choice], "usage": usage}))
    };
    let chunked = |settings: &mut Settings| settings.decode_chunk = Some(2);
    let scene = Scene::start(&[ALWAYS], (prefills, goes_on), chunked).await;
    let prefill = scene.prefill.address.to_string();
    let body = json!({"messages": [], "max_tokens": 100});
    let path = "/v1/chat/completions";
    scene.ask(path, &[("x-prefiller-host-port", &prefill)], &body).await;
    let (collector, _, decode) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request", "prefill", "decode", "chunked_decode"]);
    let (decoded, chunked) = (collector.span("decode"), collector.span("chunked_decode"));
    assert_eq!(chunked.parent, decoded.id);
    assert_eq!(decode.seen().len(), 3);
    for asked in decode.seen() {
        assert_eq!(header(&asked, "traceparent"), chunked.context());
    }
    assert_eq!(
        keys(&chunked),
        [
            "~chunked_decode.chunk_size int",
            "~chunked_decode.chunks int",
            "~chunked_decode.duration_ms double",
            "~chunked_decode.streaming bool",
            "~chunked_decode.total_tokens int",
        ]
    );
    assert_eq!(chunked.pd("chunked_decode.chunk_size").as_deref(), Some("2"));
    assert_eq!(chunked.pd("chunked_decode.chunks").as_deref(), Some("3"));
    assert_eq!(chunked.pd("chunked_decode.total_tokens").as_deref(), Some("6"));
}

#[tokio::test]
async fn legs_of_sglang_run_at_once() {
    let sglang = |settings: &mut Settings| settings.connector = KvConnector::Sglang;
    let scene = Scene::start(&[ALWAYS], (prefills, decodes), sglang).await;
    scene.prefill.hold(true);
    assert_eq!(scene.disaggregated(&[]).await, 200);
    // The client has got its whole answer while the prefill still runs.
    scene.prefill.hold(false);
    soon("the prefill is answered", async || scene.prefill.answered() > 0).await;
    let (collector, ..) = scene.end().await;
    let (request, decoded) = (collector.span("request"), collector.span("decode"));
    assert_eq!(decoded.parent, request.id);
    assert_eq!(decoded.pd("concurrent_pd").as_deref(), Some("true"));
    assert_eq!(decoded.pd("decode.concurrent_with_prefill").as_deref(), Some("true"));
    assert_eq!(decoded.pd("coordinator_overhead_ms"), None);
}

#[tokio::test]
async fn a_decode_that_was_asked_first_has_a_span_of_its_own() {
    let asks_for_prefill = |number: usize, body: &Value| {
        let reason = if number == 0 { "cache_threshold" } else { "stop" };
        assert_eq!(body["cache_hit_threshold"], json!(if number == 0 { 1 } else { 0 }));
        (200, json!({"choices": [{"finish_reason": reason}]}))
    };
    let shared = |settings: &mut Settings| settings.connector = KvConnector::SharedStorage;
    let scene = Scene::start(&[ALWAYS], (prefills, asks_for_prefill), shared).await;
    let prefill = scene.prefill.address.to_string();
    let body = json!({"messages": [], "cache_hit_threshold": 1});
    let path = "/v1/chat/completions";
    scene.ask(path, &[("x-prefiller-host-port", &prefill)], &body).await;
    let (collector, _, decode) = scene.end().await;
    check(&collector);
    assert_eq!(collector.names(), ["request", "decode", "prefill", "decode"]);
    let spans = collector.spans();
    assert!(spans[1].times.1 <= spans[2].times.0, "{spans:?}");
    let asked: Vec<_> = decode.seen().iter().map(|asked| header(asked, "traceparent")).collect();
    assert_eq!(asked, [spans[1].context(), spans[3].context()]);
}

#[tokio::test]
async fn a_client_that_leaves_is_told_of() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    let slow = |_: usize, _: &Value| {
        SEEN.store(true, Ordering::SeqCst);
        // This is more than the client waits for and more than the socket's buffers hold.
        (200, json!({"choices": ["x".repeat(64 << 20)]}))
    };
    let scene = Scene::start(&[ALWAYS], (prefills, slow), as_it_is).await;
    let body = json!({"messages": []});
    let mut client = scene.begin("/v1/chat/completions", &[], &body).await;
    client.head().await;
    assert!(SEEN.load(Ordering::SeqCst));
    drop(client);
    let (collector, ..) = scene.end().await;
    check(&collector);
    let request = collector.span("request");
    assert_eq!(request.get("transload.outcome").as_deref(), Some("client_left"));
    assert_eq!(request.status, 0);
}

//! Tests of exporting spans: to a collector, without one, and to a slow one.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use transload_sidecar::Otlp;
use transload_test_servers::Fake;

use crate::collector::{Collector, text};
use crate::fakes::{Scene, decodes, prefills};
use crate::spans::{ALWAYS, see_a_disaggregated_request};

const GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
const HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

async fn beside(collector: Collector, environment: &[(&str, &str)]) -> Scene {
    Scene::beside(collector, environment, (prefills, decodes), |_| {}).await
}

#[tokio::test]
async fn spans_go_over_grpc_unless_somebody_says_otherwise() {
    let collector = Collector::grpc().await;
    let endpoint = format!("http://{}", collector.address);
    let scene = beside(collector, &[(ENDPOINT, &endpoint), ALWAYS]).await;
    let collector = see_a_disaggregated_request(scene).await;
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    assert_eq!(collector.asked()[0].0, path);
}

fn certificate() -> (rustls::ServerConfig, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let certificate = params.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (config, certificate.pem())
}

#[tokio::test]
async fn a_collector_is_known_by_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    for (protocol, grpc) in [(GRPC, true), (HTTP, false)] {
        let (server, authority) = certificate();
        let collector = Collector::with_tls(grpc, server).await;
        let endpoint = format!("https://{}", collector.address);
        let ca = folder.path().join("ca.pem");
        fs::write(&ca, authority).expect("written");
        let ca = ca.to_str().expect("a path");
        let known = ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca);
        let environment = [(ENDPOINT, endpoint.as_str()), protocol, known, ALWAYS];
        let scene = beside(collector, &environment).await;
        see_a_disaggregated_request(scene).await;

        // The certificate of another authority is not trusted.
        let (server, _) = certificate();
        let collector = Collector::with_tls(grpc, server).await;
        let endpoint = format!("https://{}", collector.address);
        let environment = [(ENDPOINT, endpoint.as_str()), protocol, known, ALWAYS];
        let scene = beside(collector, &environment).await;
        assert_eq!(scene.disaggregated(&[]).await, 200);
        let (collector, ..) = scene.end().await;
        assert_eq!(collector.names(), [""; 0]);
    }
}

#[tokio::test]
async fn certificates_that_cannot_be_read_stop_no_request() {
    let collector = Collector::http().await;
    let endpoint = format!("https://{}", collector.address);
    let missing = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem");
    let scene = beside(collector, &[(ENDPOINT, &endpoint), missing, ALWAYS]).await;
    assert_eq!(scene.disaggregated(&[]).await, 200);
    scene.end().await;
}

#[tokio::test]
async fn a_collector_that_is_down_is_of_no_consequence() {
    for protocol in [GRPC, HTTP] {
        let collector = Collector::http().await;
        let gone = Fake::refusing(0).expect("a port");
        let scene = beside(collector, &[(ENDPOINT, &gone.url()), protocol, ALWAYS]).await;
        for _ in 0..20 {
            assert_eq!(scene.disaggregated(&[]).await, 200);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn spans_that_a_slow_collector_does_not_take_are_dropped() {
    // The capacity of the SDK's queue, plus the batch that the collector has not yet answered.
    const MOST: usize = 2_048 + 512;
    let collector = Collector::closed().await;
    let endpoint = format!("http://{}", collector.address);
    let scene = beside(collector, &[(ENDPOINT, &endpoint), HTTP, ALWAYS]).await;
    for _ in 0..=MOST / 3 {
        assert_eq!(scene.disaggregated(&[]).await, 200);
    }
    for _ in 0..100 {
        assert_eq!(scene.disaggregated(&[]).await, 200);
    }
    scene.collector.open();
    let (collector, ..) = scene.end().await;
    let spans = collector.spans().len();
    assert!((512..=MOST).contains(&spans), "{spans}");
}

#[test]
fn the_process_s_environment_is_heeded() {
    let program = std::env::current_exe().expect("a program");
    let name = "exporting::other_process";
    let child = Command::new(program)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("OTEL_SERVICE_NAME", "a-name")
        .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=pod-7,service.version=8")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key")
        .env("OTEL_TRACES_SAMPLER", "always_on")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&child.stdout);
    let all = format!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains("1 passed"), "{all}");
}

#[tokio::test]
#[ignore = "another test runs it, with an environment"]
async fn other_process() {
    assert!(Otlp::from_environment(&|name| std::env::var(name).ok()).is_none());
    for protocol in [GRPC, HTTP] {
        let collector = match protocol {
            GRPC => Collector::grpc().await,
            _ => Collector::http().await,
        };
        let endpoint = format!("http://{}", collector.address);
        let scene = beside(collector, &[(ENDPOINT, &endpoint), protocol, ALWAYS]).await;
        assert_eq!(scene.disaggregated(&[]).await, 200);
        let (collector, ..) = scene.end().await;
        let (_, headers) = &collector.asked()[0];
        assert_eq!(headers.get("api-key").expect("a header"), "a key");
        let resource = collector.span("request").resource;
        let get = |key: &str| resource.get(key).map(text);
        assert_eq!(get("service.name").as_deref(), Some("a-name"));
        assert_eq!(get("service.version").as_deref(), Some("8"));
        assert_eq!(get("k8s.pod.name").as_deref(), Some("pod-7"));
    }
}

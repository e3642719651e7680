//! Reads OpenTelemetry's environment variables, with the defaults of llm-d's sidecar.
//!
//! An unusable variable is logged and then treated as absent, as the specification requires: no request is refused for
//! it. One default differs from llm-d's: without a variable that asks for it, nothing is exported.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use http::uri::{PathAndQuery, Scheme};
use opentelemetry::Key;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::Sampler;

/// The default share of traces that are recorded where the client has made no decision, the same as llm-d's.
const RATIO: f64 = 0.1;

const SERVICE: &str = "llm-d-inference-scheduler";

/// The export of spans: destination, protocol and sampling, as set by `OTEL_…` variables.
///
/// Headers to send (`OTEL_EXPORTER_OTLP_HEADERS`), the queue's length (`OTEL_BSP_…`) and attributes of the process
/// (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`) are read from the process's environment when exporting begins.
#[derive(Debug, Clone)]
pub struct Otlp {
    /// The collector's URL, for HTTP with the path to which spans are posted.
    pub(super) endpoint: Uri,
    pub(super) protocol: Protocol,
    pub(super) timeout: Duration,
    /// The authorities that sign the collector's certificate, in PEM; `None` uses the system's.
    pub(super) ca: Option<PathBuf>,
    /// The client certificate's chain and key, in PEM.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    pub(super) sampler: Sampler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

impl Otlp {
    /// Reads the variables through a function. Returns `None` if nothing is to be exported.
    #[must_use]
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let traces_or_all = |name: &str| {
            get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}")).or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        if get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let wanted = match get("OTEL_TRACES_EXPORTER") {
            Some(names) if names.split(',').any(|name| name.trim() == "otlp") => true,
            Some(names) => {
                if names != "none" {
                    unusable("OTEL_TRACES_EXPORTER", &names, "give otlp or none");
                }
                return None;
            }
            None => false,
        };
        let traces_endpoint = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let endpoint_url = traces_or_all("ENDPOINT");
        if endpoint_url.is_none() && !wanted {
            return None;
        }
        let endpoint_url = match endpoint_url {
            None => None,
            Some(text) => {
                let scheme = match traces_or_all("INSECURE").as_deref() {
                    Some("false") => Scheme::HTTPS,
                    _ => Scheme::HTTP,
                };
                let Some(url) = url(&text, &scheme) else {
                    let right = "give http://HOST:PORT or https://HOST:PORT; no spans are exported";
                    unusable("OTEL_EXPORTER_OTLP_ENDPOINT", &text, right);
                    return None;
                };
                Some(url)
            }
        };
        let protocol = match traces_or_all("PROTOCOL").as_deref() {
            Some("grpc") => Protocol::Grpc,
            Some("http/protobuf") => Protocol::Http,
            Some("http/json") => {
                let right = "collectors take http/protobuf at the same place, which is used";
                unusable("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", right);
                Protocol::Http
            }
            other => {
                if let Some(other) = other {
                    let right = "give grpc or http/protobuf";
                    unusable("OTEL_EXPORTER_OTLP_PROTOCOL", other, right);
                }
                // Port 4318 is that of OTLP over HTTP; no collector speaks gRPC there.
                match endpoint_url.as_ref().and_then(Uri::port_u16) {
                    Some(4318) => Protocol::Http,
                    _ => Protocol::Grpc,
                }
            }
        };
        let endpoint = match (endpoint_url, protocol) {
            (Some(url), Protocol::Http) if traces_endpoint.is_none() => {
                let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
                at(url, PathAndQuery::try_from(path).ok()?)?
            }
            (Some(url), Protocol::Http) => url,
            // gRPC sets the path itself.
            (Some(url), Protocol::Grpc) => at(url, PathAndQuery::from_static("/"))?,
            (None, Protocol::Http) => Uri::from_static("http://localhost:4318/v1/traces"),
            (None, Protocol::Grpc) => Uri::from_static("http://localhost:4317/"),
        };
        Some(Self {
            endpoint,
            protocol,
            timeout: timeout(traces_or_all("TIMEOUT")),
            ca: traces_or_all("CERTIFICATE").map(PathBuf::from),
            client: traces_or_all("CLIENT_CERTIFICATE")
                .zip(traces_or_all("CLIENT_KEY"))
                .map(|(chain, key)| (chain.into(), key.into())),
            sampler: sampler(get("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG")),
        })
    }

    /// Returns the protocol and the collector's authority for logs.
    pub(super) fn collector(&self) -> String {
        let authority = self.endpoint.authority().map_or("", |authority| authority.as_str());
        format!("{:?} {authority}", self.protocol)
    }
}

fn unusable(variable: &str, value: &str, right: &str) {
    let value = shown(value);
    tracing::warn!("the environment has {variable}={value:?}, which cannot be used: {right}");
}

/// Returns a value for logs, but hides it if it may contain a password.
fn shown(value: &str) -> &str {
    match value.contains('@') {
        true => "(with an @, so it is not shown)",
        false => value,
    }
}

/// Parses a URL, or one without its scheme.
fn url(text: &str, scheme: &Scheme) -> Option<Uri> {
    let url: Uri = match text.contains("://") {
        true => text.parse().ok()?,
        false => format!("{scheme}://{text}").parse().ok()?,
    };
    let spoken = matches!(url.scheme_str(), Some("http" | "https"));
    // Credentials belong into headers, which are not logged.
    let anonymous = !url.authority()?.as_str().contains('@');
    (spoken && anonymous).then_some(url)
}

fn at(url: Uri, path: PathAndQuery) -> Option<Uri> {
    let mut parts = url.into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).ok()
}

fn timeout(milliseconds: Option<String>) -> Duration {
    let default = Duration::from_secs(10);
    let Some(text) = milliseconds else {
        return default;
    };
    match text.parse() {
        Ok(count @ 1..) => Duration::from_millis(count),
        _ => {
            let right = "give milliseconds from 1 on";
            unusable("OTEL_EXPORTER_OTLP_TIMEOUT", &text, right);
            default
        }
    }
}

fn sampler(name: Option<String>, argument: Option<String>) -> Sampler {
    let ratio = match argument.as_deref().map(str::parse::<f64>) {
        None => RATIO,
        Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => ratio,
        Some(_) => {
            let given = argument.as_deref().unwrap_or_default();
            unusable("OTEL_TRACES_SAMPLER_ARG", given, "give a number from 0 to 1");
            RATIO
        }
    };
    let by_parent = |root| Sampler::ParentBased(Box::new(root));
    match name.as_deref() {
        Some("always_on") => Sampler::AlwaysOn,
        Some("always_off") => Sampler::AlwaysOff,
        Some("traceidratio") => Sampler::TraceIdRatioBased(ratio),
        Some("parentbased_always_on") => by_parent(Sampler::AlwaysOn),
        Some("parentbased_always_off") => by_parent(Sampler::AlwaysOff),
        other => {
            if let Some(other) = other.filter(|name| *name != "parentbased_traceidratio") {
                let right = "parentbased_traceidratio is used";
                unusable("OTEL_TRACES_SAMPLER", other, right);
            }
            by_parent(Sampler::TraceIdRatioBased(ratio))
        }
    }
}

/// Builds the attributes of the process from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.
pub(super) fn resource() -> Resource {
    let is_named = |resource: &Resource| {
        let name = resource.get(&Key::from_static_str("service.name"));
        name.is_some_and(|name| !name.as_str().starts_with("unknown_service"))
    };
    let from_environment = Resource::builder().build();
    let mut builder = Resource::builder();
    if !is_named(&from_environment) {
        builder = builder.with_service_name(SERVICE);
    }
    if from_environment.get(&Key::from_static_str("service.version")).is_none() {
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        builder = builder.with_attribute(version);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &[(&str, &str)]) -> Option<Otlp> {
        Otlp::from_environment(&|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_unless_somebody_wants_it() {
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        for off in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[("OTEL_SERVICE_NAME", "x"), ("OTEL_TRACES_SAMPLER_ARG", "1")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "True")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "console")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://c:4317")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:word@c:4317")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "what is this")],
        ] {
            assert!(read(off).is_none(), "{off:?}");
        }
        for on in [
            &[ENDPOINT][..],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "false")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "otlp")],
            &[("OTEL_TRACES_EXPORTER", "console, otlp")],
        ] {
            assert!(read(on).is_some(), "{on:?}");
        }
    }

    #[test]
    fn endpoints_are_where_the_specification_has_them() {
        const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let rows: &[(&[(&str, &str)], &str)] = &[
            (&[("OTEL_TRACES_EXPORTER", "otlp")], "Grpc http://localhost:4317/"),
            (&[("OTEL_TRACES_EXPORTER", "otlp"), HTTP], "Http http://localhost:4318/v1/traces"),
            (&[(ALL, "http://c:4317")], "Grpc http://c:4317/"),
            (&[(ALL, "http://c:4317/some/path")], "Grpc http://c:4317/"),
            (&[(ALL, "https://c:4317")], "Grpc https://c:4317/"),
            (&[(ALL, "c:4317")], "Grpc http://c:4317/"),
            (&[(ALL, "[::1]:4317")], "Grpc http://[::1]:4317/"),
            (&[(ALL, "c:4317"), ("OTEL_EXPORTER_OTLP_INSECURE", "false")], "Grpc https://c:4317/"),
            (&[(ALL, "http://c:4318")], "Http http://c:4318/v1/traces"),
            (&[(ALL, "http://c:4318/"), HTTP], "Http http://c:4318/v1/traces"),
            (&[(ALL, "http://c/otlp/"), HTTP], "Http http://c/otlp/v1/traces"),
            (&[(ALL, "http://a:1"), (TRACES, "http://c:2/exactly"), HTTP], "Http http://c:2/exactly"),
            (&[(TRACES, "http://c:2"), HTTP], "Http http://c:2/"),
            (&[(ALL, "http://c:1"), HTTP, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")], "Grpc http://c:1/"),
            (&[(ALL, "http://c:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")], "Http http://c:1/v1/traces"),
            (&[(ALL, "http://c:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")], "Grpc http://c:1/"),
        ];
        for (environment, expected) in rows {
            let otlp = read(environment).expect(expected);
            let said = format!("{:?} {}", otlp.protocol, otlp.endpoint);
            assert_eq!(said, *expected, "{environment:?}");
        }
    }

    #[test]
    fn a_tenth_of_the_traces_is_recorded_and_parents_decide() {
        let rows: &[(&[(&str, &str)], &str)] = &[
            (&[], "ParentBased(TraceIdRatioBased(0.1))"),
            (&[("ARG", "0.5")], "ParentBased(TraceIdRatioBased(0.5))"),
            (&[("ARG", "0")], "ParentBased(TraceIdRatioBased(0.0))"),
            (&[("ARG", "1.5")], "ParentBased(TraceIdRatioBased(0.1))"),
            (&[("ARG", "NaN")], "ParentBased(TraceIdRatioBased(0.1))"),
            (&[("ARG", "half")], "ParentBased(TraceIdRatioBased(0.1))"),
            (&[("", "parentbased_traceidratio"), ("ARG", "1")], "ParentBased(TraceIdRatioBased(1.0))"),
            (&[("", "traceidratio"), ("ARG", "0.2")], "TraceIdRatioBased(0.2)"),
            (&[("", "always_on")], "AlwaysOn"),
            (&[("", "always_off")], "AlwaysOff"),
            (&[("", "parentbased_always_on")], "ParentBased(AlwaysOn)"),
            (&[("", "parentbased_always_off")], "ParentBased(AlwaysOff)"),
            (&[("", "jaeger_remote")], "ParentBased(TraceIdRatioBased(0.1))"),
        ];
        for (given, expected) in rows {
            let get = |wanted| {
                let found = given.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(format!("{:?}", sampler(get(""), get("ARG"))), *expected);
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert!(!shown("http://user:word@c:4317").contains("word"));
        assert_eq!(shown("ftp://c:4317"), "ftp://c:4317");
    }

    #[test]
    fn timeouts_are_milliseconds() {
        let read = |text: &str| timeout(Some(text.to_owned()));
        assert_eq!(timeout(None), Duration::from_secs(10));
        assert_eq!(read("250"), Duration::from_millis(250));
        assert_eq!(read("0"), Duration::from_secs(10));
        assert_eq!(read("-1"), Duration::from_secs(10));
        assert_eq!(read("2s"), Duration::from_secs(10));
    }
}

//! Answers one request to the admin address.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;

use super::scrape::Scraper;
use super::source::Source;

const PAGE: &str = include_str!("page.html");
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

const READY_TIME: Duration = Duration::from_secs(2);

pub(super) struct Routes<S> {
    source: Arc<S>,
    scraper: Scraper,
    /// Answer only requests whose `Host` names this host.
    loopback: bool,
}

impl<S: Source> Routes<S> {
    pub(super) fn new(source: Arc<S>, loopback: bool) -> Self {
        Self { source, scraper: Scraper::default(), loopback }
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let host = request.headers().get(HOST);
        let mut response = if self.loopback && !host.is_none_or(names_this_host) {
            let hint = "this address answers to IP addresses and localhost only";
            error(StatusCode::MISDIRECTED_REQUEST, hint)
        } else {
            self.route(request.method(), request.uri().path()).await
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }

    async fn route(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let known = ["/", "/healthz", "/readyz", "/metrics", "/status"];
        if !known.contains(&path) {
            let hint = "there are /, /healthz, /readyz, /metrics and /status";
            return error(StatusCode::NOT_FOUND, hint);
        }
        if method != Method::GET && method != Method::HEAD {
            let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "use GET");
            let allow = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
        match path {
            "/" => page(),
            "/healthz" => json(StatusCode::OK, &json!({ "ok": true })),
            "/readyz" => self.ready().await,
            "/metrics" => text(StatusCode::OK, METRICS, self.source.observer().metrics()),
            _ => self.status().await,
        }
    }

    async fn ready(&self) -> Response<Full<Bytes>> {
        let ready = tokio::time::timeout(READY_TIME, self.source.ready()).await;
        let ready = ready.unwrap_or(false);
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json(status, &json!({ "ready": ready }))
    }

    async fn status(&self) -> Response<Full<Bytes>> {
        let servers = self.source.servers();
        let transfers = self.scraper.transfers(&self.source, &servers).await;
        let observer = self.source.observer();
        let status = observer.status(servers, transfers, Instant::now());
        json(StatusCode::OK, &status)
    }
}

/// Returns whether a `Host` header is an IP address or `localhost`, which a web page cannot claim through DNS.
fn names_this_host(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else {
        return false;
    };
    let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, digits)) if port(digits) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

/// Returns the page. Its policy allows its one style and one script by a nonce.
fn page() -> Response<Full<Bytes>> {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = text(StatusCode::OK, HTML, PAGE.replace("{nonce}", &nonce));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn json(status: StatusCode, document: &impl serde::Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(document) {
        Ok(body) => text(status, JSON, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, METRICS, error.to_string()),
    }
}

fn error(status: StatusCode, hint: &str) -> Response<Full<Bytes>> {
    json(status, &json!({ "error": hint }))
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_localhost() {
        for good in ["127.0.0.1:9400", "127.0.0.1", "[::1]:9400", "[::1]", "::1", "localhost", "LocalHost:1"] {
            assert!(names_this_host(&HeaderValue::from_static(good)), "{good}");
        }
        for bad in [
            "",
            ":9400",
            "evil.example:9400",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:80:80",
            "0x7f.1",
            "[localhost]",
            "localhost:8o",
            "é",
        ] {
            let bad = HeaderValue::from_bytes(bad.as_bytes()).expect("a value");
            assert!(!names_this_host(&bad), "{bad:?}");
        }
    }
}

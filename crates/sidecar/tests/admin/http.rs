//! The admin address over plain HTTP.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use transload_test_servers::{Message, ask, get};

use crate::made_up::{busy, nothing, start};

/// Returns the body as JSON, which it says it is.
fn json_of(answer: &Message) -> Value {
    assert_eq!(answer.one("content-type"), Some("application/json"));
    answer.json()
}

async fn ask_as(address: SocketAddr, method: &str, path: &str, host: &str) -> Message {
    ask(address, method, path, &[("Host", host)], "").await
}

#[tokio::test]
async fn probes_tell_whether_requests_can_be_served() {
    let (address, world, _task) = start(nothing()).await;
    assert_eq!(get(address, "/healthz").await.status(), 200);
    assert_eq!(get(address, "/readyz").await.status(), 200);
    world.ready.store(false, Ordering::Relaxed);
    let answer = get(address, "/readyz").await;
    assert_eq!((answer.status(), json_of(&answer)), (503, json!({"ready": false})));
    assert_eq!(get(address, "/healthz").await.status(), 200);
}

#[tokio::test]
async fn what_there_is_not_is_refused_in_json() {
    let (address, _world, _task) = start(nothing()).await;
    for path in ["/nothing", "/status/", "//", "/favicon.ico", "/../status"] {
        let answer = get(address, path).await;
        assert_eq!(answer.status(), 404, "{path}");
        assert!(json_of(&answer)["error"].is_string());
    }
    for method in ["POST", "DELETE", "OPTIONS"] {
        let answer = ask_as(address, method, "/status", "localhost").await;
        assert_eq!((answer.status(), answer.one("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let answer = ask_as(address, "HEAD", "/status", "localhost").await;
    assert_eq!((answer.status(), answer.text()), (200, ""));
}

#[tokio::test]
async fn names_of_others_do_not_lead_here() {
    let (address, _world, _task) = start(nothing()).await;
    for (host, status) in [("evil.example", 421), ("127.0.0.1:9400", 200), ("[::1]:9400", 200)] {
        assert_eq!(ask_as(address, "GET", "/status", host).await.status(), status, "{host}");
    }
}

#[tokio::test]
async fn the_page_may_run_its_own_script_and_nothing_else() {
    let (address, _world, _task) = start(nothing()).await;
    let nonce = |page: &Message| {
        let policy = page.one("content-security-policy").expect("a policy").to_owned();
        let nonce = policy.split_once("script-src 'nonce-").expect("a nonce").1;
        let nonce = nonce.split_once('\'').expect("its end").0.to_owned();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert_eq!(page.text().matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        nonce
    };
    let pages = [get(address, "/").await, get(address, "/").await];
    assert_ne!(nonce(&pages[0]), nonce(&pages[1]));
    assert_eq!(pages[0].one("x-content-type-options"), Some("nosniff"));
    assert_eq!(pages[0].one("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn metrics_are_in_prometheus_text_format() {
    let (address, _world, _task) = start(busy(30)).await;
    let answer = get(address, "/metrics").await;
    let kind = answer.one("content-type");
    assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(answer.text().contains("\ntransload_pd_requests_total{path=\"rejected\"} 1\n"), "{}", answer.text());
}

#[tokio::test]
async fn servers_are_asked_for_their_metrics_only_while_somebody_looks() {
    let (address, world, _task) = start(busy(3)).await;
    get(address, "/metrics").await;
    get(address, "/").await;
    assert_eq!(world.scrapes.load(Ordering::Relaxed), 0);
    let servers = world.servers.len();
    let began = Instant::now();
    let mut looks = 0;
    let transfers = loop {
        let status = json_of(&get(address, "/status").await);
        looks += 1;
        if looks > 10 && !status["transfers"].is_null() {
            break status["transfers"].clone();
        }
    };
    assert_eq!(transfers["servers"], json!(servers));
    let bytes = 84_934_600_000 * servers as u64;
    assert_eq!(transfers["bytes"]["quic"], json!(bytes));
    // Each server was asked once in 5 s, no matter how often the page was read.
    let rounds = 1 + began.elapsed().as_secs() as usize / 5;
    assert!(world.scrapes.load(Ordering::Relaxed) <= rounds * servers);
}

#[tokio::test]
async fn more_connections_than_there_is_room_for_wait() {
    let (address, _world, _task) = start(nothing()).await;
    let mut idle = Vec::new();
    for _ in 0..80 {
        idle.push(TcpStream::connect(address).await.expect("a connection"));
    }
    let (first, rest) = idle.split_first_mut().expect("some");
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = rest.last_mut().expect("some");
    last.write_all(request).await.expect("it is sent");
    // The first ones are served again and again. The last one is served once there is room.
    let mut answer = vec![0; 12];
    for _ in 0..5 {
        first.write_all(request).await.expect("it is sent");
        first.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(answer, b"HTTP/1.1 200");
        while !answer.ends_with(b"\r\n\r\n{\"ok\":true}") {
            answer.push(first.read_u8().await.expect("the rest"));
        }
        answer.truncate(12);
    }
    let none = last.try_read(&mut answer).expect_err("nothing yet");
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
    let mut last = idle.pop().expect("some");
    drop(idle);
    last.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 200");
}

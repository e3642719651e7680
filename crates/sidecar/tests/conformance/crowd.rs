//! Tests with more clients than the sidecar admits, and with slow clients.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};
use transload_test_servers::{Client, PATIENCE};

use crate::case::{Case, Knobs, Leg};
use crate::play;
use crate::rig::Rig;

fn case(settings: Knobs) -> Case {
    Case { settings, ..Case::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_client_takes_the_place_of_one_that_is_idle() {
    let rig = Rig::start(&case(Knobs { connections: Some(2), ..Knobs::default() })).await;
    let delayed = Leg { delay_ms: 1_000, ..Leg::default() };
    play::legs(&rig, &rig.decode[0], &[delayed]);
    let mut busy = Client::connect(rig.running.addresses()[0]).await;
    let mut idle = Client::connect(rig.running.addresses()[0]).await;
    assert_eq!(idle.get("/health").await.status(), 200);
    // The busy client was idle for longer, but now has a request in flight.
    let asked = busy.send("GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    asked.await.expect("it takes a request");
    while rig.decode[0].seen().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let mut third = Client::connect(rig.running.addresses()[0]).await;
    assert_eq!(third.get("/health").await.status(), 200);
    assert!(idle.is_closed().await);
    assert_eq!(busy.answer().await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_trickles_is_given_up() {
    let rig = Rig::start(&case(Knobs { head_timeout_ms: Some(300), ..Knobs::default() })).await;
    let mut client = Client::connect(rig.running.addresses()[0]).await;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{";
    client.send(head).await.expect("it takes a head");
    let trickling = async {
        // The client is never silent for as long as the limit.
        while client.send(" ").await.is_ok() {
            let answered = timeout(Duration::from_millis(20), client.0.read_u8()).await;
            if answered.is_ok() {
                break;
            }
        }
        client.answer().await
    };
    let answer = timeout(PATIENCE, trickling).await.expect("it is given up");
    // The loop above has read its first letter.
    assert!(answer.first.starts_with("TTP/1.1 408"), "{answer:?}");
}

/// Runs in a separate process, so that no other test opens files.
#[test]
fn no_file_left_is_no_servers_failure() {
    const ALONE: &str = "TRANSLOAD_TEST_ALONE";
    const NAME: &str = "crowd::no_file_left_is_no_servers_failure";
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().expect("this test");
        let mut child = Command::new(this);
        let ran = child.args([NAME, "--exact", "--nocapture"]).env(ALONE, "1");
        let ran = ran.output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{ran:?}");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::start(&case(Knobs { proxy: true, ..Knobs::default() })).await;
        play::legs(&rig, &rig.decode[0], &[Leg::default()]);
        let mut client = Client::connect(rig.running.addresses()[0]).await;
        assert_eq!(client.get("/health").await.status(), 200);
        // Idle connections of probes end, which frees file descriptors.
        sleep(Duration::from_secs(5)).await;
        let whole = getrlimit(Resource::Nofile);
        let none = Rlimit { current: Some(1), ..whole };
        setrlimit(Resource::Nofile, none).expect("a lower limit");
        for _ in 0..4 {
            let answer = client.get("/v1/models").await;
            let body = String::from_utf8_lossy(&answer.body);
            assert!(answer.status() == 503 && body.contains("No file is left"), "{body}");
            assert_eq!(answer.one("retry-after"), Some("1"));
        }
        setrlimit(Resource::Nofile, whole).expect("the limit of before");
        assert_eq!(client.get("/v1/models").await.status(), 200);
    });
}

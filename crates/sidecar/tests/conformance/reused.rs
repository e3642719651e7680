//! Tests of connections that are reused or that end at unusual moments.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::sleep;
use transload_test_servers::{Client, End};

use crate::case::{Bytes, Case, Ends, Knobs, Leg};
use crate::play;
use crate::rig::Rig;

/// Returns a leg that closes the connection instead of answering.
fn closing() -> Leg {
    Leg { mute: true, end: End::Close, ..Leg::default() }
}

/// Returns a client that keeps its connection, so that one thread serves it and uses connections to servers again.
async fn connect(rig: &Rig) -> Client {
    Client::connect(rig.running.addresses()[0]).await
}

async fn ask(client: &mut Client, rig: &Rig, case: &Case) -> u16 {
    let (head, body) = play::request(rig, case);
    client.send([head, body].concat()).await.expect("the request is taken");
    let answer = play::answer(&mut client.0, case, None).await;
    answer.expect("an answer").answer.map_or(0, |answer| answer.status())
}

/// A request line, and the status of the answer if the decode server closes the connection.
const PASSED: [(&str, u16); 6] = [
    ("GET /v1/models", 200),
    ("HEAD /v1/models", 200),
    ("OPTIONS /v1/models", 200),
    ("DELETE /v1/files/1", 502),
    ("POST /v1/embeddings", 502),
    ("POST /v1/chat/completions", 502),
];

#[tokio::test]
async fn only_what_may_be_repeated_is_sent_again() {
    for (line, status) in PASSED {
        let body = if line.starts_with("POST ") { "{}" } else { "" };
        let case = Case {
            request: line.to_owned(),
            prefiller: String::new(),
            body: Bytes(body.as_bytes().to_vec()),
            ..Case::default()
        };
        let rig = Rig::start(&case).await;
        let decode = &rig.decode[0];
        let answer = Leg { head_only: line.starts_with("HEAD "), ..Leg::good() };
        play::legs(&rig, decode, &[answer.clone(), closing(), answer]);
        let mut client = connect(&rig).await;
        assert_eq!(ask(&mut client, &rig, &case).await, 200, "{line}");
        assert_eq!(ask(&mut client, &rig, &case).await, status, "{line}");
        let expected = if status == 200 { (3, 2) } else { (2, 1) };
        assert_eq!((decode.seen().len(), decode.dialled()), expected, "{line}");
    }
}

#[tokio::test]
async fn what_is_sent_again_is_sent_once_more_only() {
    let case = Case { request: "GET /v1/models".to_owned(), ..Case::default() };
    let rig = Rig::start(&case).await;
    let mut client = connect(&rig).await;
    let decode = &rig.decode[0];
    play::legs(&rig, decode, &[Leg::good(), closing(), closing(), Leg::good()]);
    assert_eq!(ask(&mut client, &rig, &case).await, 200);
    assert_eq!(ask(&mut client, &rig, &case).await, 502);
    assert_eq!(decode.seen().len(), 3);
}

#[tokio::test]
async fn a_new_connection_that_ends_is_not_tried_again() {
    let case = Case { request: "GET /v1/models".to_owned(), ..Case::default() };
    let rig = Rig::start(&case).await;
    let mut client = connect(&rig).await;
    play::legs(&rig, &rig.decode[0], &[closing(), Leg::good()]);
    assert_eq!(ask(&mut client, &rig, &case).await, 502);
    assert_eq!(rig.decode[0].seen().len(), 1);
}

#[tokio::test]
async fn a_connection_whose_answer_was_refused_is_not_used_again() {
    let case = Case { request: "GET /v1/models".to_owned(), ..Case::default() };
    let refused = [
        Leg {
            headers: vec!["Transfer-Encoding: chunked".to_owned()],
            answers: Bytes(b"2\r\n{}\r\n0\r\n\r\n".to_vec()),
            ..Leg::default()
        },
        Leg { status: 101, headers: vec!["Upgrade: websocket".to_owned()], ..Leg::default() },
    ];
    for refused in refused {
        let rig = Rig::start(&case).await;
        let mut client = connect(&rig).await;
        let decode = &rig.decode[0];
        play::legs(&rig, decode, &[refused, Leg::good(), Leg::good()]);
        for status in [502, 200, 200] {
            assert_eq!(ask(&mut client, &rig, &case).await, status);
        }
        assert_eq!((decode.seen().len(), decode.dialled()), (3, 2));
    }
}

#[tokio::test]
async fn a_prefill_is_sent_again_and_a_decode_is_not() {
    let case = Case { body: Bytes(b"{}".to_vec()), ..Case::default() };
    let rig = Rig::start(&case).await;
    let mut client = connect(&rig).await;
    let (prefill, decode) = (&rig.prefill[0], &rig.decode[0]);
    play::legs(&rig, prefill, &[Leg::good(), closing(), Leg::good(), Leg::good()]);
    play::legs(&rig, decode, &[Leg::good(), Leg::good(), closing()]);
    assert_eq!(ask(&mut client, &rig, &case).await, 200);
    assert_eq!(ask(&mut client, &rig, &case).await, 200);
    assert_eq!((prefill.seen().len(), prefill.dialled()), (3, 2));
    let bodies: Vec<_> = prefill.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies[1], bodies[2]);
    assert_eq!(ask(&mut client, &rig, &case).await, 502);
    assert_eq!(decode.seen().len(), 3);
}

/// The rest of the first request is still unread, and would be taken for the next one.
#[tokio::test]
async fn a_connection_that_was_answered_early_is_not_used_again() {
    let case = Case { request: "GET /v1/models".to_owned(), ..Case::default() };
    let rig = Rig::start(&case).await;
    let early = Leg { early: true, ..Leg::good() };
    // There is at least one client per thread, and all stay connected.
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(connect(&rig).await);
    }
    let legs: Vec<_> = clients.iter().flat_map(|_| [early.clone(), Leg::good()]).collect();
    play::legs(&rig, &rig.decode[0], &legs);
    for client in &mut clients {
        let begun = b"PUT /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbegun";
        client.send(begun).await.expect("it is taken");
        let answered = play::answer(&mut client.0, &case, None).await;
        answered.expect("an answer");
        let mut other = connect(&rig).await;
        assert_eq!(ask(&mut other, &rig, &case).await, 200);
    }
}

#[tokio::test]
async fn who_leaves_with_another_request_begun_is_missed() {
    for more in ["G", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\0"] {
        let case = Case { body: Bytes(b"{}".to_vec()), ..Case::default() };
        let rig = Rig::start(&case).await;
        let silent = Leg { mute: true, end: End::Silence, ..Leg::default() };
        play::legs(&rig, &rig.prefill[0], &[silent]);
        let mut client = connect(&rig).await;
        let (head, body) = play::request(&rig, &case);
        let bytes = [head, body, more.as_bytes().to_vec()].concat();
        client.send(&bytes).await.expect("it is taken");
        while rig.prefill[0].seen().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        drop(client);
        // If the sidecar missed that the client left, it would wait for the whole prefill timeout.
        while rig.prefill[0].left() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rig.decode[0].seen().len(), 0, "{more:?}");
    }
}

#[tokio::test]
async fn nobody_takes_a_cut_answer_for_a_whole_one() {
    for line in ["GET /v1/models", "POST /v1/completions"] {
        let case = Case::default();
        let rig = Rig::start(&case).await;
        let cut = Leg { cut: Some(1), end: End::Reset, framing: Ends::Chunked, ..Leg::good() };
        play::legs(&rig, &rig.decode[0], &[cut]);
        let mut client = connect(&rig).await;
        let request = format!("{line} HTTP/1.0\r\nContent-Length: 2\r\n\r\n{{}}");
        let request = match line.starts_with("GET") {
            true => format!("{line} HTTP/1.0\r\n\r\n"),
            false => request,
        };
        client.send(request).await.expect("it is taken");
        let mut whole = Vec::new();
        let read = client.0.read_to_end(&mut whole).await;
        assert!(read.is_err(), "{line}: {:?}", String::from_utf8_lossy(&whole));
    }
}

#[tokio::test]
async fn answers_may_have_many_headers() {
    let case = Case { request: "GET /v1/models".to_owned(), ..Case::default() };
    let rig = Rig::start(&case).await;
    let many = Leg { headers: (0..200).map(|number| format!("x-{number}: y")).collect(), ..Leg::good() };
    play::legs(&rig, &rig.decode[0], &[many]);
    assert_eq!(ask(&mut connect(&rig).await, &rig, &case).await, 200);
}

#[tokio::test]
async fn a_client_has_so_many_requests_under_way_and_no_more() {
    let case = Case {
        prefiller: String::new(),
        body: Bytes(b"{}".to_vec()),
        settings: Knobs { requests_per_client: Some(2), ..Default::default() },
        ..Case::default()
    };
    let rig = Rig::start(&case).await;
    let silent = Leg { mute: true, end: End::Silence, ..Leg::default() };
    let decode = &rig.decode[0];
    play::legs(&rig, decode, &[silent.clone(), silent, Leg::good()]);
    let (mut first, mut second) = (connect(&rig).await, connect(&rig).await);
    let mut third = connect(&rig).await;
    {
        let mut asked =
            std::pin::pin!(async { tokio::join!(ask(&mut first, &rig, &case), ask(&mut second, &rig, &case)) });
        while decode.seen().len() < 2 {
            tokio::select! {
                _ = &mut asked => panic!("nobody answers them"),
                () = sleep(Duration::from_millis(5)) => {}
            }
        }
        assert_eq!(ask(&mut third, &rig, &case).await, 429);
    }
    drop((first, second));
    while decode.left() < 2 {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ask(&mut third, &rig, &case).await, 200);
}

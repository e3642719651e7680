//! Malformed requests over the real listener. The sidecar must refuse each clearly, close the connection and send
//! nothing to a server.
//!
//! A well-formed request follows each row on the same connection. If the sidecar misreads where the row ends, a server
//! gets that request.

use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use transload_test_servers::wire::{self, Kind};
use transload_test_servers::{Client, Message};

use crate::case::{Case, Knobs, Leg};
use crate::play;
use crate::rig::Rig;

/// A request that reaches the decode server if it is read.
const HIDDEN: &[u8] = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

const POST: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx-prefiller-host-port: {prefill}\r\nContent-Type: application/json\r\n";

#[derive(Deserialize)]
struct Table {
    /// The rest of a disaggregated request after [`POST`]: further headers and the body.
    posts: Vec<(String, u16, String)>,
    raw: Vec<(String, u16, String)>,
    /// A beginning, a part, the number of its repetitions, and an end.
    large: Vec<(String, u16, String, String, usize, String)>,
}

fn rows(rig: &Rig) -> Vec<(String, u16, Vec<u8>)> {
    let table: Table = toml::from_str(include_str!("malformed.toml")).expect("malformed.toml");
    let posts = table.posts.into_iter();
    let posts = posts.map(|(name, status, rest)| (name, status, format!("{POST}{rest}")));
    let large = table.large.into_iter();
    let large = large.map(|(name, status, begin, part, times, end)| (name, status, begin + &part.repeat(times) + &end));
    let all = posts.chain(table.raw).chain(large);
    all.map(|(name, status, text)| (name, status, play::latin1(&rig.fill(&text)))).collect()
}

/// Sends bytes in parts. Returns an error unless the answer is a refusal with this status and the connection then ends.
async fn refused(rig: &Rig, parts: &[&[u8]], status: u16) -> Result<(), String> {
    let stream = TcpStream::connect(rig.running.addresses()[0]).await;
    let (from, mut to) = tokio::io::split(stream.map_err(|why| why.to_string())?);
    let writing = async {
        for part in parts {
            // The sidecar may refuse the request before all of it is sent.
            if to.write_all(part).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut from = BufReader::new(from);
        let answer = wire::read(&mut from, Kind::Answer).await.map_err(|why| why.to_string())?;
        let answer = answer.ok_or("there is no answer")?;
        let mut more = Vec::new();
        // Bytes that the sidecar left unread may reset the connection.
        let _ = from.read_to_end(&mut more).await;
        let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match () {
            () if answer.status() != status => Err(answer.first),
            () if !answer.whole => Err("the answer breaks off".to_owned()),
            () if answer.one("connection") != Some("close") => Err("the connection seems kept".to_owned()),
            () if error["object"] != "error" || error["code"] != status => Err(error.to_string()),
            () if !more.is_empty() => Err(format!("more: {}", more.escape_ascii())),
            () => Ok(()),
        }
    };
    let result = timeout(Duration::from_secs(20), async {
        tokio::select! {
            () = writing => unreachable!("it waits"),
            result = reading => result,
        }
    });
    result.await.unwrap_or(Err("it waits".to_owned()))
}

fn upstream(rig: &Rig) -> Vec<String> {
    let seen = rig.fakes().flat_map(|(name, fake)| {
        let seen = fake.seen().into_iter().map(|message| message.first);
        let dialled = (fake.dialled() > 0).then(|| format!("{} connections", fake.dialled()));
        seen.chain(dialled).map(move |what| format!("{name}: {what}")).collect::<Vec<_>>()
    });
    seen.collect()
}

#[tokio::test]
async fn what_is_malformed_is_refused_and_no_server_sees_anything() {
    let rig = Rig::start(&Case::default()).await;
    let mut wrong = Vec::new();
    for (name, status, bytes) in rows(&rig) {
        let whole = [&bytes[..], HIDDEN].concat();
        let (begin, end) = whole.split_at(bytes.len() / 2);
        for parts in [&[&whole[..]][..], &[begin, end]] {
            rig.fakes().for_each(|(_, fake)| fake.play(Vec::new()));
            if let Err(why) = refused(&rig, parts, status).await {
                wrong.push(format!("{name}, in {} parts: {why} instead of {status}", parts.len()));
            }
            wrong.extend(upstream(&rig).iter().map(|what| format!("{name}: {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The check itself works: it sees a well-formed request.
    play::legs(&rig, &rig.decode[0], &[Leg::good()]);
    let case = Case { request: "GET /hidden".to_owned(), ..Case::default() };
    let played = play::client(&rig, &case, &[]).await.expect("an answer");
    assert_eq!(played.answer.map(|answer| answer.status()), Some(200));
    assert_eq!(rig.decode[0].seen().len(), 1);
}

#[tokio::test]
async fn what_comes_before_a_malformed_request_is_answered_and_what_comes_after_it_is_not() {
    let rig = Rig::start(&Case::default()).await;
    play::legs(&rig, &rig.decode[0], &[Leg::good(), Leg::good()]);
    let mut client = Client::connect(rig.running.addresses()[0]).await;
    let bad =
        b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let all = [b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n", &bad[..], HIDDEN].concat();
    client.send(&all).await.expect("it takes all");
    for status in [200, 400] {
        assert_eq!(client.answer().await.status(), status);
    }
    assert!(matches!(client.0.read_u8().await, Err(why) if why.kind() == std::io::ErrorKind::UnexpectedEof));
    let seen: Vec<_> = rig.decode[0].seen().into_iter().map(|seen| seen.first).collect();
    assert_eq!(seen, ["GET /first HTTP/1.1"]);
}

/// Heads that stop before they are complete.
const SLOW: &[&str] = &[
    "G",
    "GET / HTTP/1.1",
    "GET / HTTP/1.1\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r",
];

/// Bodies that the sidecar reads whole and that stop before they are complete.
const STALLED: &[&str] = &[
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    "POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nContent-Length: 9\r\n\r\n  ",
];

#[tokio::test]
async fn requests_that_do_not_end_are_refused() {
    let knobs = Knobs { head_timeout_ms: Some(400), ..Knobs::default() };
    let rig = Rig::start(&Case { settings: knobs, ..Case::default() }).await;
    let connect = || Client::connect(rig.running.addresses()[0]);
    let late = |answer: Message| {
        assert_eq!(answer.status(), 408);
        assert_eq!(answer.one("connection"), Some("close"));
    };
    for begin in SLOW.iter().chain(STALLED) {
        let mut client = connect().await;
        client.send(begin).await.expect("it is taken");
        late(client.answer().await);
    }
    // A further byte now and then does not extend the time.
    let mut client = connect().await;
    client.send("GET / HTTP/1.1\r\nX: ").await.expect("it is taken");
    for _ in 0..100 {
        let _ = client.send("y").await;
        if timeout(Duration::from_millis(50), client.0.fill_buf()).await.is_ok() {
            break;
        }
    }
    late(client.answer().await);
    assert_eq!(upstream(&rig), Vec::<String>::new());
}

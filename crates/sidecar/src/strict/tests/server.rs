//! Tests of a hyper server behind a stream: the order of its answers, and the end of connections.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use crate::strict::oracle::server::{read, run, serve};
use crate::strict::{self, Stream, Verdict};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_refused_head_is_answered_after_the_requests_before_it() {
    run(async {
        let (mut client, log, server) = serve();
        let slow = GET.replace("/ ", "/wait/60 ");
        let bad = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(format!("{slow}{GET}{bad}{GET}").as_bytes()).await.unwrap();
        let (text, ended) = read(&mut client, 100).await;
        assert!(ended);
        let statuses = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect::<Vec<_>>();
        assert_eq!(statuses, ["200", "200", "400"]);
        assert!(text.ends_with(r#""type":"BadRequestError","param":"","code":400}"#), "{text}");
        assert!(text.contains("connection: close\r\n"), "{text}");
        assert_eq!(log.lock().unwrap().requests.len(), 2);
        drop(client);
        server.await.unwrap().unwrap();
    });
}

#[test]
fn slow_heads_end_with_408_and_idle_connections_in_silence() {
    run(async {
        // A head in one part a second.
        for before in ["", GET, "\r\n"] {
            let (mut client, log, _server) = serve();
            client.write_all(before.as_bytes()).await.unwrap();
            let (text, _) = read(&mut client, 10).await;
            assert_eq!(text.matches("200 OK").count(), usize::from(before == GET));
            let start = Instant::now() - Duration::from_secs(if before == GET { 0 } else { 10 });
            for byte in "GET / HTTP/1.1\r\nHost: abcdefghijklmnopqrstuvwxyz".bytes() {
                let _ = client.write_all(&[byte]).await;
                sleep(Duration::from_secs(1)).await;
                if !log.lock().unwrap().refusals.is_empty() {
                    break;
                }
            }
            assert!((30..=31).contains(&start.elapsed().as_secs()), "after {before:?}");
            let (text, ended) = read(&mut client, 1).await;
            assert!(ended && text.starts_with("HTTP/1.1 408"), "{text}");
        }
        // One that sends nothing, and one that waits between two requests.
        for (before, seconds) in [("", 30), ("\r\n", 30), (GET, 300)] {
            let (mut client, _, _server) = serve();
            let start = Instant::now();
            client.write_all(before.as_bytes()).await.unwrap();
            let (text, ended) = read(&mut client, 1000).await;
            assert!(ended);
            assert_eq!(start.elapsed().as_secs(), seconds, "after {before:?}");
            assert_eq!(text.matches("HTTP/").count(), usize::from(before == GET));
        }
        // A body and an answer may take longer than either.
        let (mut client, _, _server) = serve();
        let slow = "POST /wait/1000 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na";
        client.write_all(slow.as_bytes()).await.unwrap();
        sleep(Duration::from_secs(1000)).await;
        client.write_all(b"b").await.unwrap();
        let (text, ended) = read(&mut client, 1001).await;
        assert!(text.starts_with("HTTP/1.1 200") && ended, "{text}");
    });
}

#[test]
fn a_bad_body_ends_the_request_and_the_connection() {
    run(async {
        let (mut client, log, server) = serve();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(format!("{head}3\r\nabc\r\n+1\r\na\r\n0\r\n\r\n{GET}").as_bytes()).await.unwrap();
        // What comes behind it is read and dropped, so that the answer arrives.
        for _ in 0..100 {
            let _ = client.write_all(&[b'x'; 1000]).await;
            tokio::task::yield_now().await;
        }
        let (text, ended) = read(&mut client, 10).await;
        assert!(ended && text.starts_with("HTTP/1.1 400"), "{text}");
        assert_eq!(log.lock().unwrap().requests[0].body, b"abc");
        assert_eq!(log.lock().unwrap().requests.len(), 1);
        // The client has not closed its side: the server does not wait for ever.
        server.await.unwrap().unwrap();
        drop(client);
    });
}

#[test]
fn a_large_head_passes_and_its_memory_goes() {
    run(async {
        let headers = format!("name: {}\r\n", "v".repeat(490)).repeat(255);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        assert!(head.len() > 120 << 10);
        let (mut client, log, _server) = serve();
        for piece in head.as_bytes().chunks(1000) {
            client.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(read(&mut client, 1).await.0.starts_with("HTTP/1.1 200"));
        assert_eq!(log.lock().unwrap().requests[0].headers.len(), 256);

        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut stream, _) = Stream::new(server, strict::HEAD_TIMEOUT);
        let (begin, end) = head.as_bytes().split_at(100_000);
        client.write_all(begin).await.unwrap();
        let mut read = vec![0; head.len()];
        assert!(tokio::time::timeout(Duration::from_secs(1), stream.read(&mut read)).await.is_err());
        assert!(stream.held_capacity() >= begin.len());
        client.write_all(end).await.unwrap();
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!(read, head.as_bytes());
        assert_eq!(stream.held_capacity(), 0);
        assert!(size_of::<Stream<()>>() <= 320, "{}", size_of::<Stream<()>>());
    });
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn an_accepted_upgrade_makes_the_bytes_opaque() {
    run(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (stream, verdicts) = Stream::new(server, strict::HEAD_TIMEOUT);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let verdicts = verdicts.clone();
            async move {
                let Verdict::Upgrade(upgrade) = verdicts.next_request() else {
                    panic!("no upgrade");
                };
                // Early bytes are waiting by now.
                sleep(Duration::from_secs(1)).await;
                upgrade.accept();
                tokio::spawn(async move {
                    let mut io = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                    let mut bytes = [0; 6];
                    io.read_exact(&mut bytes).await.unwrap();
                    io.write_all(&bytes).await.unwrap();
                    let mut rest = Vec::new();
                    io.read_to_end(&mut rest).await.unwrap();
                    io.write_all(&rest).await.unwrap();
                });
                let answer = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
                Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap())
            }
        });
        tokio::spawn(strict::http1().serve_connection(TokioIo::new(stream), service).with_upgrades());
        client.write_all(UPGRADE.as_bytes()).await.unwrap();
        client.write_all(b"\0\r\n").await.unwrap();
        sleep(Duration::from_secs(5)).await;
        client.write_all(b"abc\n\n").await.unwrap();
        client.shutdown().await.unwrap();
        let (text, ended) = read(&mut client, 10).await;
        assert!(ended && text.starts_with("HTTP/1.1 101") && text.ends_with("\r\n\r\n\0\r\nabc\n\n"), "{text:?}");
    });
}

#[test]
fn after_a_declined_upgrade_requests_go_on() {
    run(async {
        let (mut client, log, _server) = serve();
        client.write_all(format!("{UPGRADE}{GET}").as_bytes()).await.unwrap();
        let (text, _) = read(&mut client, 1).await;
        assert_eq!(text.matches("200 OK").count(), 1);
        log.lock().unwrap().upgrades.clear();
        let (text, _) = read(&mut client, 1).await;
        assert_eq!(text.matches("200 OK").count(), 1);
        // Also where nothing was waiting, and where something bad comes.
        client.write_all(UPGRADE.as_bytes()).await.unwrap();
        assert_eq!(read(&mut client, 1).await.0.matches("200 OK").count(), 1);
        log.lock().unwrap().upgrades.clear();
        client.write_all(b"\x01").await.unwrap();
        let (text, ended) = read(&mut client, 1).await;
        assert!(ended && text.starts_with("HTTP/1.1 400"), "{text}");
    });
}

#[test]
fn a_client_that_leaves_is_noticed_whatever_it_was_doing() {
    run(async {
        for bytes in [
            GET.replace("/ ", "/wait/99 "),
            format!("{}GET / HT", GET.replace("/ ", "/wait/99 ")),
            UPGRADE.replace("/ ", "/wait/99 "),
            format!("{}early", UPGRADE.replace("/ ", "/wait/99 ")),
            "GET / HT".into(),
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na".into(),
        ] {
            let (mut client, _, server) = serve();
            client.write_all(bytes.as_bytes()).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            let start = Instant::now();
            drop(client);
            let _ = server.await.unwrap();
            assert!(start.elapsed() < Duration::from_secs(1), "{bytes:?}");
        }
    });
}

//! Runs a case: builds its bytes, sends them and collects the results.

use std::io::{self, Write as _};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use transload_test_servers::wire::{self, Kind, chunk, chunked, last_chunk};
use transload_test_servers::{End, Fake, Message, Script, write_parts};

use crate::case::{Case, Ends, Leg};
use crate::rig::Rig;

#[derive(Debug, Default)]
pub(crate) struct Played {
    pub(crate) answer: Option<Message>,
    pub(crate) continued: bool,
    /// The bytes that were echoed after the protocol switch.
    pub(crate) echo: Vec<u8>,
}

pub(crate) fn sent_body(rig: &Rig, case: &Case) -> Vec<u8> {
    match std::str::from_utf8(&case.body.0) {
        Ok(text) => rig.fill(text).into_bytes(),
        Err(_) => case.body.0.clone(),
    }
}

pub(crate) fn request(rig: &Rig, case: &Case) -> (Vec<u8>, Vec<u8>) {
    let body = sent_body(rig, case);
    let version = if case.old { "1.0" } else { "1.1" };
    let mut head = format!("{} HTTP/{version}\r\n", rig.fill(&case.request));
    let mut line = |text: &str| {
        head.push_str(&rig.fill(text));
        head.push_str("\r\n");
    };
    if !case.old {
        line("Host: sidecar.example:8000");
    }
    if !case.prefiller.is_empty() {
        line(&format!("x-prefiller-host-port: {}", case.prefiller));
    }
    case.headers.iter().for_each(|header| line(header));
    for index in 0..case.padding {
        line(&format!("x-pad-{index:03}: {}", "p".repeat(187)));
    }
    if !case.content_type.is_empty() && !body.is_empty() {
        line(&format!("Content-Type: {}", case.content_type));
    }
    let has_body = !body.is_empty() || case.request.starts_with("POST ");
    if case.chunked {
        line("Transfer-Encoding: chunked");
    } else if has_body {
        line(&format!("Content-Length: {}", body.len()));
    }
    line("");
    let body = match case.chunked {
        true => chunked([&body[..]], &case.trailers),
        false => body,
    };
    (latin1(&head), body)
}

pub(crate) fn legs<'a>(rig: &Rig, fake: &Fake, legs: impl IntoIterator<Item = &'a Leg>) {
    fake.play(legs.into_iter().map(|leg| script(rig, leg)));
}

pub(crate) fn script(rig: &Rig, leg: &Leg) -> Script {
    let fill = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) if !leg.gzip => rig.fill(text).into_bytes(),
        _ => bytes.to_vec(),
    };
    let mut pieces: Vec<Vec<u8>> = leg.pieces.iter().map(|piece| fill(&piece.0)).collect();
    if pieces.is_empty() {
        pieces.push(fill(&leg.answers.0));
    }
    if leg.gzip {
        pieces = vec![gzip(&pieces.concat())];
    }
    let framing = match leg.framing {
        Ends::Length if leg.pieces.len() > 1 => Ends::Chunked,
        framing => framing,
    };
    let body = pieces.concat();
    let mut head = format!("HTTP/1.1 {} Whatever\r\n", leg.status);
    let mut line = |text: &str| {
        head.push_str(&rig.fill(text));
        head.push_str("\r\n");
    };
    if !leg.content_type.is_empty() {
        line(&format!("Content-Type: {}", leg.content_type));
    }
    if leg.gzip {
        line("Content-Encoding: gzip");
    }
    leg.headers.iter().for_each(|header| line(header));
    let bodiless = body.is_empty() && matches!(leg.status, 101 | 204 | 304);
    match framing {
        _ if bodiless => {}
        Ends::Length => line(&format!("Content-Length: {}", body.len())),
        Ends::Chunked => line("Transfer-Encoding: chunked"),
        Ends::Close => {}
    }
    line("");
    let mut bytes = latin1(&head);
    let mut parts = Vec::new();
    if framing == Ends::Chunked && !leg.head_only {
        for piece in &pieces {
            parts.push(bytes.len());
            bytes.extend(chunk(piece));
        }
        bytes.extend(last_chunk(&leg.trailers));
    } else if !leg.head_only {
        bytes.extend(&body);
    }
    if leg.mute {
        bytes.clear();
        parts.clear();
    }
    let mut end = leg.end;
    if let Some(cut) = leg.cut {
        bytes.truncate(head.len() + cut);
        end = if end == End::Keep { End::Close } else { end };
    }
    if framing == Ends::Close && end == End::Keep && !bodiless {
        end = End::Close;
    }
    Script { delay: Duration::from_millis(leg.delay_ms), bytes, parts, held: None, end, early: leg.early }
}

pub(crate) fn latin1(text: &str) -> Vec<u8> {
    let byte = |char| u8::try_from(char).expect("a character of Latin-1");
    text.chars().map(byte).collect()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

/// Plays the client. The request is split at the positions in `parts`.
pub(crate) async fn client(rig: &Rig, case: &Case, parts: &[usize]) -> io::Result<Played> {
    let (head, body) = request(rig, case);
    let mut stream = TcpStream::connect(rig.running.addresses()[case.rank]).await?;
    stream.set_nodelay(true)?;
    if let Some(leaves) = case.leaves_ms {
        stream.write_all(&[head, body].concat()).await?;
        sleep(Duration::from_millis(leaves)).await;
        return Ok(Played::default());
    }
    // The exchange is over when its answer has arrived, so the connection can be reset.
    stream.set_zero_linger()?;
    if case.echo.is_some() {
        return switch(rig, case, stream, &head).await;
    }
    if !case.waits {
        // Parts are written one by one so that they arrive separately. Long bodies are written while the answer is
        // read.
        if !parts.is_empty() {
            write_parts(&mut stream, &[head, body].concat(), parts).await?;
            return answer(&mut BufReader::new(stream), case, None).await;
        }
        let (from, mut to) = tokio::io::split(stream);
        let mut from = BufReader::new(from);
        let writing = async {
            // An answer may arrive before the whole body is accepted.
            let _ = to.write_all(&[head, body].concat()).await;
        };
        return tokio::join!(answer(&mut from, case, None), writing).0;
    }
    let (from, mut to) = tokio::io::split(stream);
    let mut from = BufReader::new(from);
    to.write_all(&head).await?;
    let (tell, told) = oneshot::channel();
    let writing = async {
        if told.await.is_ok() {
            let _ = to.write_all(&body).await;
        }
    };
    tokio::join!(answer(&mut from, case, Some(tell)), writing).0
}

pub(crate) async fn answer<R: tokio::io::AsyncRead + Unpin>(
    from: &mut BufReader<R>,
    case: &Case,
    mut go_on: Option<oneshot::Sender<()>>,
) -> io::Result<Played> {
    let kind = match case.request.starts_with("HEAD ") {
        true => Kind::Bodiless,
        false => Kind::Answer,
    };
    let mut played = Played::default();
    while let Some(message) = wire::read(from, kind).await? {
        if message.status() != 100 {
            played.answer = Some(message);
            break;
        }
        played.continued = true;
        if let Some(go_on) = go_on.take() {
            let _ = go_on.send(());
        }
    }
    Ok(played)
}

async fn switch(rig: &Rig, case: &Case, mut stream: TcpStream, head: &[u8]) -> io::Result<Played> {
    stream.write_all(head).await?;
    let mut stream = BufReader::new(stream);
    let mut played = Played { answer: wire::read(&mut stream, Kind::Answer).await?, ..Played::default() };
    let text = rig.fill(case.echo.as_deref().unwrap_or_default());
    let switched = played.answer.as_ref().is_some_and(|answer| answer.status() == 101);
    if switched {
        stream.get_mut().write_all(text.as_bytes()).await?;
        stream.get_mut().shutdown().await?;
        let reading = stream.read_to_end(&mut played.echo);
        let _ = timeout(Duration::from_secs(5), reading).await;
    }
    Ok(played)
}

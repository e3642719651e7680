//! A fake prefill and a fake decode server that answer at once, on a separate thread.
//!
//! The request's body determines the answer, since every proxy forwards it: `"user": "events=3 every=200"` asks for
//! three events, one each 200 ms. Without it the answer is one JSON document.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::MissedTickBehavior;

use crate::wire::Wire;

/// The size of the JSON documents in bytes.
const ANSWER: usize = 1024;

/// The start of the times `t` in events, in nanoseconds.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Clone, Copy)]
pub(crate) struct Fakes {
    pub(crate) prefill: SocketAddr,
    pub(crate) decode: SocketAddr,
}

impl Fakes {
    /// Starts both servers, which run until the process ends.
    pub(crate) fn start() -> io::Result<Self> {
        LazyLock::force(&START);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (tell, told) = sync_channel(1);
        std::thread::spawn(move || {
            runtime.block_on(async {
                let bound = async {
                    let prefill = TcpListener::bind("127.0.0.1:0").await?;
                    let decode = TcpListener::bind("127.0.0.1:0").await?;
                    let fakes = Self { prefill: prefill.local_addr()?, decode: decode.local_addr()? };
                    Ok((fakes, prefill, decode))
                };
                match bound.await {
                    Err(error) => drop(tell.send(Err(error))),
                    Ok((fakes, prefill, decode)) => {
                        drop(tell.send(Ok(fakes)));
                        tokio::join!(serve(prefill, prefilled()), serve(decode, decoded()));
                    }
                }
            });
        });
        told.recv().map_err(io::Error::other)?
    }
}

/// Returns the time since an event was sent.
pub(crate) fn age(event: &[u8]) -> Option<Duration> {
    let at = memmem::find(event, b"\"t\":")? + 4;
    let digits = std::str::from_utf8(event.get(at..at + DIGITS)?).ok()?;
    let sent = Duration::from_nanos(digits.trim_start().parse().ok()?);
    Some(START.elapsed().saturating_sub(sent))
}

const DIGITS: usize = 15;

async fn serve(listener: TcpListener, json: &'static [u8]) {
    loop {
        // A connection that cannot be accepted was closed by its client.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream, json));
        }
    }
}

/// Answers requests until the client leaves, which is no error.
async fn connection(stream: TcpStream, json: &'static [u8]) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    let mut body = Vec::new();
    while let Some(mut head) = wire.head().await? {
        body.clear();
        while let Some(piece) = wire.piece(&mut head.body).await? {
            body.extend_from_slice(piece);
        }
        match (number(&body, b"events="), number(&body, b"every=")) {
            // The prefill leg has the same marker, but gets a JSON document.
            (Some(events), every) if !is_prefill(&body) => {
                stream_events(&mut wire, events, Duration::from_millis(every.unwrap_or(0))).await?;
            }
            _ => wire.write(json).await?,
        }
    }
    Ok(())
}

fn is_prefill(body: &[u8]) -> bool {
    // Only prefill legs have the value `true`.
    memmem::find(body, b"\"do_remote_decode\":").is_some_and(|at| {
        let value = body[at + 19..].trim_ascii_start();
        value.starts_with(b"true")
    })
}

fn number(body: &[u8], name: &[u8]) -> Option<u64> {
    let rest = &body[memmem::find(body, name)? + name.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

async fn stream_events(wire: &mut Wire, events: u64, every: Duration) -> io::Result<()> {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut bytes = HEAD.to_vec();
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..events {
        if !every.is_zero() {
            tokio::select! {
                _ = ticks.tick() => {}
                // Clients send nothing meanwhile, so a read completes only when the client has left.
                _ = wire.fill() => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        put_chunk(&mut bytes, &event());
        wire.write(&bytes).await?;
        bytes.clear();
    }
    put_chunk(&mut bytes, b"data: [DONE]\n\n");
    bytes.extend_from_slice(b"0\r\n\r\n");
    wire.write(&bytes).await
}

fn event() -> Vec<u8> {
    format!(
        "data: {{\"id\":\"cmpl-7\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{{\
         \"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}}],\"t\":{:DIGITS$}}}\n\n",
        START.elapsed().as_nanos()
    )
    .into_bytes()
}

fn put_chunk(bytes: &mut Vec<u8>, data: &[u8]) {
    // Writing to a vector cannot fail.
    let _ = write!(bytes, "{:x}\r\n", data.len());
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\r\n");
}

fn decoded() -> &'static [u8] {
    answer("")
}

/// Returns a prefill server's document, with the parameters for fetching 2,048 tokens.
fn prefilled() -> &'static [u8] {
    let blocks: Vec<String> = (0..128).map(|block| (block * 7 + 1000).to_string()).collect();
    answer(&format!(
        ",\"kv_transfer_params\":{{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[{}],\
         \"remote_engine_id\":\"4f8e2c\",\"remote_host\":\"127.0.0.1\",\"remote_port\":7600}}",
        blocks.join(",")
    ))
}

fn answer(more: &str) -> &'static [u8] {
    let with = |text: &str| {
        format!(
            "{{\"id\":\"cmpl-7\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{{\"index\":0,\
             \"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":\"length\"}}],\"usage\":{{\"prompt_tokens\":256,\
             \"completion_tokens\":16,\"total_tokens\":272,\"prompt_tokens_details\":{{\"cached_tokens\":0}}}}{more}}}"
        )
    };
    let body = with(&"x".repeat(ANSWER.saturating_sub(with("").len())));
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    (head + &body).into_bytes().leak()
}

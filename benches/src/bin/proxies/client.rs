//! The client, which sends prepared requests and measures the time of their answers.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::wire::{Head, Wire};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    wire: Wire,
}

#[derive(Clone, Copy)]
pub(crate) struct Took {
    /// The time to the first byte of its body.
    pub(crate) first: Duration,
    /// The time to its end.
    pub(crate) whole: Duration,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> io::Result<Self> {
        Ok(Self { wire: Wire::new(TcpStream::connect(to).await?)? })
    }

    /// Sends a request and waits for the end of its answer.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Took> {
        let start = Instant::now();
        let asked = async {
            let mut head = self.begin(request).await?;
            let mut first = None;
            while self.wire.piece(&mut head.body).await?.is_some() {
                first.get_or_insert_with(|| start.elapsed());
            }
            let whole = start.elapsed();
            Ok(Took { first: first.unwrap_or(whole), whole })
        };
        tokio::time::timeout(PATIENCE, asked).await?
    }

    /// Sends a request and waits for the head of its answer, which has to have status 200.
    pub(crate) async fn begin(&mut self, request: &[u8]) -> io::Result<Head> {
        self.wire.write(request).await?;
        let head = self.wire.head().await?;
        let head = head.ok_or(io::ErrorKind::UnexpectedEof)?;
        if head.first_line.split(' ').nth(1) != Some("200") {
            return Err(io::Error::other(head.first_line));
        }
        Ok(head)
    }

    pub(crate) async fn piece(&mut self, head: &mut Head) -> io::Result<Option<&[u8]>> {
        self.wire.piece(&mut head.body).await
    }
}

/// Returns a `POST` request with this JSON body.
pub(crate) fn post(path: &str, prefill: Option<SocketAddr>, body: &str) -> Vec<u8> {
    let named = prefill.map(|at| format!("x-prefiller-host-port: {at}\r\n"));
    let named = named.unwrap_or_default();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: m.example\r\ncontent-type: application/json\r\n{named}content-length: {length}\r\n\r\n\
         {body}"
    )
    .into_bytes()
}

/// Returns a JSON body of 1 KiB with these members.
pub(crate) fn body(members: &str) -> String {
    const BYTES: usize = 1024;
    let with = |prompt: &str| format!("{{\"model\":\"m\",\"max_tokens\":16,{members}\"prompt\":\"{prompt}\"}}");
    with(&"word ".repeat(BYTES / 5)[..BYTES - with("").len()])
}

//! What a client reads: HTTP/1.1, taken as strictly as it is written.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Nothing takes so long, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client's connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
    /// Bytes that are read at a time.
    pub(crate) sip: usize,
}

/// What a client has got for a request.
#[derive(Debug)]
pub(crate) enum Got {
    /// All that the answer's framing promises.
    Whole(Whole),
    /// The connection ended before. So many bytes of the answer had come.
    Broken(usize),
}

#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: String,
    /// No other answer follows.
    pub(crate) last: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new(), sip: 64 << 10 })
    }

    /// Reads one answer; tells what is wrong with it otherwise.
    pub(crate) async fn answer(&mut self) -> Result<Got, String> {
        let read = tokio::time::timeout(PATIENCE, self.read_answer()).await;
        read.map_err(|_| format!("no answer, only {}", self.beginning()))?
    }

    /// Whether there is a byte that nobody has asked for.
    pub(crate) fn has_more(&self) -> Option<String> {
        (!self.read.is_empty()).then(|| self.beginning())
    }

    fn beginning(&self) -> String {
        String::from_utf8_lossy(&self.read[..self.read.len().min(300)]).into_owned()
    }

    async fn read_answer(&mut self) -> Result<Got, String> {
        let mut before = 0;
        let head = loop {
            let Some(head) = self.until(b"\r\n\r\n").await else {
                return Ok(Got::Broken(before + self.read.len()));
            };
            before += head.len();
            // Hints come before the answer.
            if !head.starts_with(b"HTTP/1.1 103") {
                break head;
            }
        };
        let head = String::from_utf8(head).map_err(|_| "its head is not UTF-8")?;
        let mut lines = head.trim_end().split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status: u16 = status.ok_or_else(|| format!("{first:?} is no status line"))?;
        let (mut length, mut chunks, mut last) = (None, false, false);
        let mut content_type = String::new();
        for line in lines {
            let (name, value) = line.split_once(':').ok_or_else(|| format!("{line:?} is no header"))?;
            let value = value.trim();
            match &*name.to_ascii_lowercase() {
                "content-length" if length.is_some() => return Err("two lengths".to_owned()),
                "content-length" => {
                    let number = value.parse::<usize>();
                    length = Some(number.map_err(|_| format!("{value:?} is no length"))?);
                }
                "transfer-encoding" if value != "chunked" || chunks => {
                    return Err(format!("transfer-encoding {value:?}"));
                }
                "transfer-encoding" => chunks = true,
                "connection" => last = value.eq_ignore_ascii_case("close"),
                "content-type" => value.clone_into(&mut content_type),
                _ => {}
            }
        }
        let body = match (length, chunks) {
            (Some(_), true) => return Err("both a length and chunks".to_owned()),
            (Some(length), false) => match self.exactly(length).await {
                Some(body) => body,
                None => return Ok(Got::Broken(before + self.read.len())),
            },
            (None, true) => match self.chunks().await? {
                Some(body) => body,
                None => return Ok(Got::Broken(before)),
            },
            // Ends of connections cannot be told from breaks: the command uses none.
            (None, false) => return Err(format!("no framing: {head}")),
        };
        Ok(Got::Whole(Whole {
            status,
            content_type,
            body: String::from_utf8(body).map_err(|_| "its body is not UTF-8")?,
            last,
        }))
    }

    async fn chunks(&mut self) -> Result<Option<Vec<u8>>, String> {
        let mut body = Vec::new();
        loop {
            let Some(line) = self.until(b"\r\n").await else {
                return Ok(None);
            };
            let digits = std::str::from_utf8(&line[..line.len() - 2]).unwrap_or_default();
            let size = usize::from_str_radix(digits, 16);
            let size = size.map_err(|_| format!("{digits:?} is no size of a chunk"))?;
            let Some(chunk) = self.exactly(size + 2).await else {
                return Ok(None);
            };
            if !chunk.ends_with(b"\r\n") {
                return Err(format!("a chunk of {size} does not end"));
            }
            if size == 0 {
                return Ok(Some(body));
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = find(&self.read, end) {
                return Some(self.read.drain(..at + end.len()).collect());
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            self.more().await?;
        }
        Some(self.read.drain(..length).collect())
    }

    /// `None` once the connection is over, however it ended.
    async fn more(&mut self) -> Option<()> {
        if self.sip < 1 << 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut bytes = vec![0; self.sip];
        // A client that is slow at first is not so for ever.
        self.sip = (self.sip + 16).min(64 << 10).max(self.sip * 5 / 4).min(64 << 10);
        match self.stream.read(&mut bytes).await {
            Ok(0) | Err(_) => None,
            Ok(read) => {
                self.read.extend_from_slice(&bytes[..read]);
                Some(())
            }
        }
    }

    /// Asks for something, with nothing else on the connection.
    pub(crate) async fn get(address: std::net::SocketAddr, path: &str) -> Result<Whole, String> {
        let wrong = |error: io::Error| error.to_string();
        let mut connection = Self::new(TcpStream::connect(address).await.map_err(wrong)?).map_err(wrong)?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let written = connection.stream.write_all(request.as_bytes()).await;
        written.map_err(wrong)?;
        match connection.answer().await? {
            Got::Whole(whole) if whole.status == 200 => Ok(whole),
            got => Err(format!("{got:?}")),
        }
    }
}

pub(crate) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

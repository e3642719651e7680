//! A slow and strict reader of HTTP/1.1 messages, independent of the engine's own code.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The framing of a message's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Nothing,
    Length,
    Chunked,
    Close,
}

/// A request or an answer as read from the connection. Bytes of the head are read as Latin-1.
#[derive(Debug, Clone)]
pub struct Message {
    /// The request or status line.
    pub first: String,
    /// Name and value of each header line, in order.
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// The body had the announced length or end.
    pub whole: bool,
}

/// The kind of message, which a reader has to know in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Request,
    Answer,
    /// An answer without a body, even if its head announces one: an answer to HEAD.
    Bodiless,
}

impl Message {
    /// Returns the values of a header, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let same = |(have, _): &&(String, String)| have.eq_ignore_ascii_case(name);
        let values = self.headers.iter().filter(same);
        values.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the value of a header that occurs exactly once, else `None`.
    pub fn one(&self, name: &str) -> Option<&str> {
        match self.all(name)[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Returns the number in the status line.
    pub fn status(&self) -> u16 {
        let status = self.first.split(' ').nth(1);
        status.and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a body of JSON")
    }
}

/// Reads the next message. Other bytes are [invalid data](io::ErrorKind::InvalidData). Returns `None` if the peer ended
/// before its first byte.
pub async fn read<R: AsyncBufRead + Unpin>(from: &mut R, kind: Kind) -> io::Result<Option<Message>> {
    let mut message = read_head(from).await?;
    if let Some(message) = &mut message {
        read_body(from, message, kind).await?;
    }
    Ok(message)
}

/// Reads a head alone: the message has no body yet.
pub async fn read_head<R: AsyncBufRead + Unpin>(from: &mut R) -> io::Result<Option<Message>> {
    let Some(first) = line(from).await? else {
        return Ok(None);
    };
    let (headers, framing, body, trailers) = (fields(from).await?, Framing::Nothing, Vec::new(), Vec::new());
    Ok(Some(Message { first, headers, framing, body, trailers, whole: true }))
}

/// Reads the body that a head announces, or the part of it that arrives.
pub async fn read_body<R: AsyncBufRead + Unpin>(from: &mut R, message: &mut Message, kind: Kind) -> io::Result<()> {
    let lengths = message.all("content-length");
    let encodings = message.all("transfer-encoding");
    let status = message.status();
    let bodiless = kind == Kind::Bodiless || kind == Kind::Answer && (status < 200 || status == 204 || status == 304);
    let framing = match (&encodings[..], &lengths[..]) {
        _ if bodiless => Framing::Nothing,
        (["chunked"], []) => Framing::Chunked,
        ([], [_]) => Framing::Length,
        ([], []) if kind == Kind::Request => Framing::Nothing,
        ([], []) => Framing::Close,
        _ => return Err(wrong("it has two lengths, or an odd one")),
    };
    let length = lengths.first().map(|length| length.parse::<u64>());
    message.framing = framing;
    match message.framing {
        Framing::Nothing => {}
        Framing::Length => {
            let length = length.and_then(Result::ok).ok_or_else(|| wrong("odd length"))?;
            take(from, length, message).await?;
        }
        Framing::Chunked => chunks(from, message).await?,
        Framing::Close => message.whole = from.read_to_end(&mut message.body).await.is_ok(),
    }
    Ok(())
}

/// Reads `length` bytes of the body, or fewer if the connection ends.
async fn take<R: AsyncBufRead + Unpin>(from: &mut R, length: u64, message: &mut Message) -> io::Result<()> {
    let had = message.body.len();
    let read = from.take(length).read_to_end(&mut message.body).await;
    message.whole = read.is_ok() && (message.body.len() - had) as u64 == length;
    Ok(())
}

async fn chunks<R: AsyncBufRead + Unpin>(from: &mut R, message: &mut Message) -> io::Result<()> {
    message.whole = false;
    loop {
        let Ok(Some(size)) = line(from).await else {
            return Ok(());
        };
        let size = u64::from_str_radix(&size, 16).map_err(|_| wrong("odd size of a chunk"))?;
        if size == 0 {
            if let Ok(trailers) = fields(from).await {
                message.trailers = trailers;
                message.whole = true;
            }
            return Ok(());
        }
        take(from, size, message).await?;
        if !std::mem::take(&mut message.whole) {
            return Ok(());
        }
        if !matches!(line(from).await, Ok(Some(rest)) if rest.is_empty()) {
            return Ok(());
        }
    }
}

/// Reads header lines up to an empty one.
async fn fields<R: AsyncBufRead + Unpin>(from: &mut R) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(from).await?;
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("odd header line"))?;
        if name.is_empty() || name.contains([' ', '\t']) {
            return Err(wrong("odd header name"));
        }
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Reads a line that ends with CR and LF. Returns `None` at the end of the stream.
async fn line<R: AsyncBufRead + Unpin>(from: &mut R) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| wrong("a line without CR LF"))?;
    Ok(Some(line.iter().copied().map(char::from).collect()))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Returns a body in chunks, as it goes over the wire.
pub fn chunked<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, trailers: &[String]) -> Vec<u8> {
    let mut bytes: Vec<u8> = pieces.into_iter().flat_map(chunk).collect();
    bytes.extend(last_chunk(trailers));
    bytes
}

/// Returns one chunk, and nothing for an empty piece, since an empty chunk would be the last.
pub fn chunk(piece: &[u8]) -> Vec<u8> {
    if piece.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()
}

pub fn last_chunk(trailers: &[String]) -> Vec<u8> {
    let lines: String = trailers.iter().map(|line| format!("{line}\r\n")).collect();
    format!("0\r\n{lines}\r\n").into_bytes()
}

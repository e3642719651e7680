//! A slow and strict reader of HTTP/1.1 messages, independent of the engine's own code.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// The framing of a message's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Nothing,
    Length,
    Chunked,
    Close,
}

/// A request or an answer as read from the connection. Bytes of the head are read as Latin-1.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The request or status line.
    pub(crate) first: String,
    /// Name and value of each header line, in order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// The body had the announced length or end.
    pub(crate) whole: bool,
}

/// The kind of message, which a reader has to know in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Answer,
    /// An answer without a body, even if its head announces one: an answer to HEAD.
    Bodiless,
}

impl Message {
    /// Returns the values of a header, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = |(have, _): &&(String, String)| have.eq_ignore_ascii_case(name);
        let values = self.headers.iter().filter(same);
        values.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the value of a header that occurs exactly once, else `None`.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        match self.all(name)[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Returns the number in the status line.
    pub(crate) fn status(&self) -> u16 {
        let status = self.first.split(' ').nth(1);
        status.and_then(|status| status.parse().ok()).unwrap_or(0)
    }
}

/// Reads the next message. Returns `None` if the peer ended before its first byte.
pub(crate) async fn read<R: AsyncRead + Unpin>(from: &mut BufReader<R>, kind: Kind) -> io::Result<Option<Message>> {
    let Some((first, headers)) = read_head(from).await? else {
        return Ok(None);
    };
    let mut message =
        Message { first, headers, framing: Framing::Nothing, body: Vec::new(), trailers: Vec::new(), whole: true };
    read_body(from, &mut message, kind).await?;
    Ok(Some(message))
}

type Head = (String, Vec<(String, String)>);

/// Reads a head only.
pub(crate) async fn read_head<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> io::Result<Option<Head>> {
    let Some(first) = line(from).await? else {
        return Ok(None);
    };
    let headers = fields(from).await?;
    Ok(Some((first, headers)))
}

/// Reads the body that a head announces, or the part of it that arrives.
pub(crate) async fn read_body<R: AsyncRead + Unpin>(
    from: &mut BufReader<R>,
    message: &mut Message,
    kind: Kind,
) -> io::Result<()> {
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
async fn take<R: AsyncRead + Unpin>(from: &mut BufReader<R>, length: u64, message: &mut Message) -> io::Result<()> {
    let had = message.body.len();
    let read = from.take(length).read_to_end(&mut message.body).await;
    message.whole = read.is_ok() && (message.body.len() - had) as u64 == length;
    Ok(())
}

async fn chunks<R: AsyncRead + Unpin>(from: &mut BufReader<R>, message: &mut Message) -> io::Result<()> {
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
async fn fields<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(from).await?;
        let line = line.ok_or_else(|| wrong("it ends within its head"))?;
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
async fn line<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| wrong("a line without CR LF"))?;
    Ok(Some(line.iter().copied().map(char::from).collect()))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

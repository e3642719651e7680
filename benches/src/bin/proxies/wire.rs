//! A minimal HTTP/1.1 on a socket for measurements. The measured servers are trusted to follow it.

use std::io::{self, ErrorKind};

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One side of a connection.
pub(crate) struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
    /// The number of bytes of `read` that were consumed.
    at: usize,
}

pub(crate) struct Head {
    /// The first line: `POST /v1/completions HTTP/1.1`, or `HTTP/1.1 200 OK`.
    pub(crate) first_line: String,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Sized(usize),
    /// The remaining bytes of the chunk and of the line end after it.
    Chunk(usize),
    Over,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new(), at: 0 })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads a head. Returns `None` if the other side has closed.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(length) = memmem::find(&self.read[self.at..], b"\r\n\r\n") {
                let head = Head::parse(&self.read[self.at..self.at + length])?;
                self.at += length + 4;
                return Ok(Some(head));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Reads more of a body. Returns `None` at its end.
    pub(crate) async fn piece(&mut self, body: &mut Body) -> io::Result<Option<&[u8]>> {
        loop {
            let here = self.read.len() - self.at;
            let (left, line_end) = match body {
                Body::Over | Body::Sized(0) => return Ok(None),
                Body::Sized(left) => (left, 0),
                Body::Chunk(0) => {
                    *body = self.chunk().await?;
                    continue;
                }
                Body::Chunk(left) => (left, 2),
            };
            if here == 0 {
                self.more().await?;
                continue;
            }
            let taken = here.min(*left);
            let content = taken.min(left.saturating_sub(line_end));
            let from = self.at;
            *left -= taken;
            self.at += taken;
            if content > 0 {
                return Ok(Some(&self.read[from..from + content]));
            }
        }
    }

    /// Waits until the other side sends something or closes.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        if self.at == self.read.len() {
            self.read.clear();
            self.at = 0;
        } else if self.at > 64 << 10 {
            self.read.drain(..self.at);
            self.at = 0;
        }
        self.read.reserve(4 << 10);
        Ok(self.stream.read_buf(&mut self.read).await? > 0)
    }

    /// Reads the line before a chunk.
    async fn chunk(&mut self) -> io::Result<Body> {
        loop {
            let rest = &self.read[self.at..];
            if let Some(length) = memmem::find(rest, b"\r\n") {
                let digits = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                let size = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
                if size > 0 {
                    self.at += length + 2;
                    return Ok(Body::Chunk(size + 2));
                }
                // Nothing measured here sends trailers.
                if rest.len() >= length + 4 {
                    self.at += length + 4;
                    return Ok(Body::Over);
                }
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.fill().await? {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Head {
    fn parse(text: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(text).map_err(io::Error::other)?;
        let mut lines = text.split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let mut body = Body::Sized(0);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                body = Body::Sized(value.trim().parse().map_err(io::Error::other)?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                body = Body::Chunk(0);
            }
        }
        Ok(Self { first_line, body })
    }
}

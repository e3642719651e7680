//! Reads HTTP/1.1 answers as a client, strictly.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use transload_test_servers::wire::{self, Framing, Kind};
use transload_test_servers::{Message, PATIENCE};

pub(crate) struct Connection(BufReader<Sips>);

/// The part of an answer that a client has received.
#[derive(Debug)]
pub(crate) enum Got {
    /// A complete message, as its framing promises.
    Whole(Message),
    /// The connection ended early, after this many bytes of the answer.
    Broken(usize),
}

impl Connection {
    pub(crate) async fn new(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let sips = Sips { stream, most: 64 << 10, pause: Box::pin(sleep(Duration::ZERO)), read: 0 };
        Ok(Self(BufReader::with_capacity(64 << 10, sips)))
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.0.get_mut().stream
    }

    /// Reads this many bytes at a time, at first.
    pub(crate) fn sip(&mut self, most: usize) {
        self.0.get_mut().most = most;
    }

    /// Reads one answer, or returns what is wrong with it.
    pub(crate) async fn answer(&mut self) -> Result<Got, String> {
        let before = self.0.get_ref().read - self.0.buffer().len();
        let read = async {
            loop {
                match wire::read(&mut self.0, Kind::Answer).await {
                    // Hints come before the answer.
                    Ok(Some(hints)) if hints.status() == 103 => {}
                    read => return read,
                }
            }
        };
        let read = timeout(PATIENCE, read).await.map_err(|_| "no whole answer".to_owned())?;
        let got = self.0.get_ref().read - before;
        match read {
            Ok(Some(whole)) if !whole.whole => Ok(Got::Broken(got)),
            // Ends of connections cannot be told from breaks: the command uses none.
            Ok(Some(whole)) if !matches!(whole.framing, Framing::Length | Framing::Chunked) => {
                Err(format!("no framing: {whole:?}"))
            }
            Ok(Some(whole)) if !whole.first.starts_with("HTTP/1.1 ") => Err(format!("no status line: {whole:?}")),
            Ok(Some(whole)) if str::from_utf8(&whole.body).is_err() => Err(format!("no text: {whole:?}")),
            Ok(Some(whole)) => Ok(Got::Whole(whole)),
            Err(wrong) if wrong.kind() == io::ErrorKind::InvalidData => Err(format!("{wrong}, after {got} bytes")),
            Ok(None) | Err(_) => Ok(Got::Broken(got)),
        }
    }

    /// Returns bytes that have arrived without a request.
    pub(crate) fn has_more(&self) -> Option<String> {
        let more = self.0.buffer();
        (!more.is_empty()).then(|| String::from_utf8_lossy(&more[..more.len().min(300)]).into_owned())
    }
}

/// A reader that pauses after each few bytes if they are few.
struct Sips {
    stream: TcpStream,
    /// Bytes that are read at a time.
    most: usize,
    pause: Pin<Box<Sleep>>,
    read: usize,
}

impl AsyncRead for Sips {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.pause.as_mut().poll(cx));
        let most = this.most.min(buf.remaining());
        let mut sip = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut sip))?;
        let read = sip.filled().len();
        buf.advance(read);
        this.read += read;
        if this.most < 1 << 10 {
            this.pause.set(sleep(Duration::from_millis(1)));
        }
        // A client that is slow at first is not so for ever.
        this.most = (this.most + 16).max(this.most * 5 / 4).min(64 << 10);
        Poll::Ready(Ok(()))
    }
}

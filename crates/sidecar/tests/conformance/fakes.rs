//! Model servers that do what a script says and remember every request, byte for byte.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::wire::{self, Kind, Message};

/// The answer of a fake to one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    /// The delay before the answer.
    pub(crate) delay: Duration,
    /// Head and body as they go over the wire.
    pub(crate) bytes: Vec<u8>,
    /// The positions at which the bytes are split into several writes.
    pub(crate) parts: Vec<usize>,
    pub(crate) end: End,
    /// The answer is written before the request's body is read.
    pub(crate) early: bool,
}

/// What the fake does after it has written the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// The connection is kept for another request.
    #[default]
    Keep,
    Close,
    Reset,
    /// The fake sends nothing until the peer leaves.
    Silence,
    /// The fake sends back what the peer sends, until the peer leaves.
    Echo,
}

/// A fake server. It stops when dropped.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The tasks that listen. A fake that refuses connections has instead a socket that reserves the port, so that no
    /// other process listens there.
    _listening: Result<JoinSet<()>, TcpSocket>,
}

#[derive(Debug, Default)]
struct State {
    scripts: VecDeque<Script>,
    seen: Vec<Message>,
    /// Connections accepted.
    dialled: usize,
    /// Peers that left while a script was silent.
    left: usize,
    /// `GET /health` is a probe: it is answered but not recorded.
    probed: bool,
}

impl Fake {
    /// Starts a fake at a port of loopback. With 0 the system chooses the port.
    pub(crate) fn start(port: u16, probed: bool) -> io::Result<Self> {
        let socket = bind(port, true)?;
        let address = socket.local_addr()?;
        let listener = socket.listen(1024)?;
        let state = Arc::new(Mutex::new(State { probed, ..State::default() }));
        let mut listening = JoinSet::new();
        listening.spawn(accept(listener, state.clone()));
        Ok(Self { address, state, _listening: Ok(listening) })
    }

    /// Reserves a port at which every connection is refused.
    pub(crate) fn refusing(port: u16) -> io::Result<Self> {
        let socket = bind(port, false)?;
        Ok(Self { address: socket.local_addr()?, state: Arc::default(), _listening: Err(socket) })
    }

    /// Sets the answers to the next requests, in order, and discards the recorded requests.
    pub(crate) fn play(&self, scripts: Vec<Script>) {
        let mut state = lock(&self.state);
        state.scripts = scripts.into();
        state.seen.clear();
        state.dialled = 0;
        state.left = 0;
    }

    /// The requests recorded since the last [`play`](Self::play).
    pub(crate) fn seen(&self) -> Vec<Message> {
        lock(&self.state).seen.clone()
    }

    /// The number of connections accepted since the last [`play`](Self::play).
    pub(crate) fn dialled(&self) -> usize {
        lock(&self.state).dialled
    }

    /// The number of peers that left while a script was silent.
    pub(crate) fn left(&self) -> usize {
        lock(&self.state).left
    }
}

/// Binds a port. With `again` this succeeds even if closed connections of that port are in `TIME_WAIT`.
fn bind(port: u16, again: bool) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(again)?;
    socket.bind(([127, 0, 0, 1], port).into())?;
    Ok(socket)
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        lock(&state).dialled += 1;
        let state = state.clone();
        // An error of a peer needs no handling: it ends the connection.
        connections.spawn(async move {
            let _ = serve(stream, &state).await;
        });
    }
}

async fn serve(stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Without lingering, thousands of runs leave no connections in the system's tables.
    stream.set_zero_linger()?;
    let mut stream = BufReader::new(stream);
    while let Some((first, headers)) = wire::read_head(&mut stream).await? {
        let mut message = Message {
            first,
            headers,
            framing: wire::Framing::Nothing,
            body: Vec::new(),
            trailers: Vec::new(),
            whole: true,
        };
        if lock(state).probed && message.first.starts_with("GET /health ") {
            let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            stream.get_mut().write_all(ok).await?;
            continue;
        }
        if message.one("expect").is_some() {
            let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            stream.get_mut().write_all(go_on).await?;
        }
        let script = lock(state).scripts.pop_front();
        // The judge counts requests and reports one too many.
        let script = script.unwrap_or_else(|| Script {
            bytes: b"HTTP/1.1 599 Not Expected\r\nContent-Length: 0\r\n\r\n".to_vec(),
            ..Script::default()
        });
        if !script.early {
            wire::read_body(&mut stream, &mut message, Kind::Request).await?;
        }
        lock(state).seen.push(message);
        tokio::time::sleep(script.delay).await;
        write_parts(stream.get_mut(), &script.bytes, &script.parts).await?;
        match script.end {
            End::Keep => {}
            End::Close => {
                socket2::SockRef::from(stream.get_ref()).set_linger(None)?;
                return stream.get_mut().shutdown().await;
            }
            End::Reset => {
                // What was written arrives first.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Ok(());
            }
            End::Silence => {
                while !matches!(stream.read(&mut [0; 4096]).await, Ok(0) | Err(_)) {}
                lock(state).left += 1;
                return Ok(());
            }
            End::Echo => {
                socket2::SockRef::from(stream.get_ref()).set_linger(None)?;
                let (mut from, mut to) = tokio::io::split(stream);
                tokio::io::copy(&mut from, &mut to).await?;
                return to.shutdown().await;
            }
        }
    }
    Ok(())
}

/// Writes bytes in parts that arrive one by one.
pub(crate) async fn write_parts(to: &mut TcpStream, bytes: &[u8], parts: &[usize]) -> io::Result<()> {
    let mut written = 0;
    for &end in parts {
        let end = end.clamp(written, bytes.len());
        to.write_all(&bytes[written..end]).await?;
        written = end;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    to.write_all(&bytes[written..]).await
}

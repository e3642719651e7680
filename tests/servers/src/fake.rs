//! Model servers that do what a script says and remember every request, byte for byte.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::PATIENCE;
use crate::wire::{self, Kind, Message};

/// A script: the answer of a fake server to one request.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The wait before it.
    pub delay: Duration,
    /// Head and body as they go over the wire.
    pub bytes: Vec<u8>,
    /// The offsets at which the bytes are split into several writes.
    pub parts: Vec<usize>,
    /// Bytes from here on wait while the fake [holds](Fake::hold) its answers.
    pub held: Option<usize>,
    pub end: End,
    /// Whether the answer is written before the request's body is read.
    pub early: bool,
}

/// The fake's behaviour after the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The connection is kept for another request.
    #[default]
    Keep,
    Close,
    Reset,
    /// It sends nothing until the peer leaves.
    Silence,
    /// It echoes what the peer sends, until the peer leaves.
    Echo,
}

impl Script {
    /// Makes a whole answer in JSON.
    pub fn json(status: u16, body: &str) -> Self {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} Fake\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        Self { bytes: (head + body).into(), ..Self::default() }
    }

    pub fn silence() -> Self {
        Self { end: End::Silence, ..Self::default() }
    }
}

/// A fake server, which ends when it is dropped.
pub struct Fake {
    pub address: SocketAddr,
    state: Arc<State>,
    /// Accepts connections, which end with it.
    running: Option<JoinHandle<()>>,
    /// Keeps the port of a server that refuses connections, so that no other process listens there.
    _refusing: Option<TcpSocket>,
}

type Answer = dyn Fn(usize, &Message) -> Script + Send + Sync;

#[derive(Default)]
struct State {
    /// Decides the answer from a request's number and message, in place of queued scripts.
    answer: Option<Box<Answer>>,
    /// Whether `GET /health` counts as a probe, which is answered but not recorded.
    probed: bool,
    /// Whether there are too many requests to record them. Connections then end as those of a killed process do.
    crowded: bool,
    holds: watch::Sender<bool>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    scripts: VecDeque<Script>,
    requests: Vec<Message>,
    dialled: usize,
    /// Peers that left while a script was silent.
    left: usize,
    /// Requests whose scripts were silent for longer than anything takes.
    stuck: Vec<String>,
    /// Scripts that were played, up to their end.
    answered: usize,
    /// The last request of each connection that is open.
    open: HashMap<usize, String>,
}

impl Fake {
    /// Starts a server at a port of loopback, which follows [queued scripts](Self::play). Port 0 means any.
    pub fn start(port: u16, probed: bool) -> io::Result<Self> {
        Self::listen(port, State { probed, ..State::default() })
    }

    /// Starts one that answers the `n`th request, from 0, as a function says.
    pub fn answering(answer: impl Fn(usize, &Message) -> Script + Send + Sync + 'static) -> Self {
        Self::listen(0, State { answer: Some(Box::new(answer)), ..State::default() }).expect("a port")
    }

    /// Starts one for any number of requests, of which it remembers none. It can be killed.
    pub fn of_a_crowd(answer: impl Fn(usize, &Message) -> Script + Send + Sync + 'static) -> Self {
        let state = State { answer: Some(Box::new(answer)), crowded: true, ..State::default() };
        Self::listen(0, state).expect("a port")
    }

    fn listen(port: u16, state: State) -> io::Result<Self> {
        let socket = bind(port, true)?;
        let (address, state) = (socket.local_addr()?, Arc::new(state));
        let running = tokio::spawn(accept(socket.listen(1024)?, state.clone()));
        Ok(Self { address, state, running: Some(running), _refusing: None })
    }

    /// Makes a server that refuses every connection to its port.
    pub fn refusing(port: u16) -> io::Result<Self> {
        let socket = bind(port, false)?;
        Ok(Self { address: socket.local_addr()?, state: Arc::default(), running: None, _refusing: Some(socket) })
    }

    pub fn port(&self) -> String {
        self.address.port().to_string()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the answers to the next requests, in order, and drops those queued before.
    pub fn play(&self, scripts: impl IntoIterator<Item = Script>) {
        let mut seen = self.state.seen();
        let open = std::mem::take(&mut seen.open);
        *seen = Seen { scripts: scripts.into_iter().collect(), open, ..Seen::default() };
    }

    /// Makes the server hold its answers where their scripts say so, or releases them.
    pub fn hold(&self, holds: bool) {
        self.state.holds.send_replace(holds);
    }

    /// Returns the requests that it has seen.
    pub fn seen(&self) -> Vec<Message> {
        self.state.seen().requests.clone()
    }

    /// Returns how many connections it has accepted.
    pub fn dialled(&self) -> usize {
        self.state.seen().dialled
    }

    /// Returns how many peers have left while it was silent.
    pub fn left(&self) -> usize {
        self.state.seen().left
    }

    /// Returns the requests that it was silent to for too long.
    pub fn stuck(&self) -> Vec<String> {
        self.state.seen().stuck.clone()
    }

    /// Returns how many requests it has answered.
    pub fn answered(&self) -> usize {
        self.state.seen().answered
    }

    /// Returns the last request of each connection that is open.
    pub fn open(&self) -> Vec<String> {
        self.state.seen().open.values().cloned().collect()
    }

    /// Ends the server as `kill -9` does: the system closes all its sockets.
    pub async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            let _ = running.await;
        }
    }

    /// Starts it again, at the same address.
    pub async fn restart(&mut self) {
        // The connections of the dead one may still be on their way out.
        let listener = loop {
            match bind(self.address.port(), true).and_then(|socket| socket.listen(1024)) {
                Ok(listener) => break listener,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        self.running = Some(tokio::spawn(accept(listener, self.state.clone())));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Binds a port, though connections that have ended there are still remembered if it is to be used `again`.
fn bind(port: u16, again: bool) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(again)?;
    socket.bind(([127, 0, 0, 1], port).into())?;
    Ok(socket)
}

impl State {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(connection(stream, state.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

struct Open<'a> {
    state: &'a State,
    index: usize,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.state.seen().open.remove(&self.index);
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    let index = {
        let mut seen = state.seen();
        seen.dialled += 1;
        // Numbers of connections go on when a new script is played.
        let index = seen.open.keys().max().map_or(0, |last| last + 1);
        seen.open.insert(index, "nothing".to_owned());
        index
    };
    let open = Open { state: &state, index };
    // A peer that breaks off has said all there is to say.
    let _ = serve(stream, &open).await;
}

async fn serve(stream: TcpStream, open: &Open<'_>) -> io::Result<()> {
    let state = open.state;
    stream.set_nodelay(true)?;
    if !state.crowded {
        // Thousands of runs leave no connections that the system has to remember.
        stream.set_zero_linger()?;
    }
    let mut stream = BufReader::new(stream);
    while let Some(mut message) = wire::read_head(&mut stream).await? {
        if state.probed && message.first.starts_with("GET /health ") {
            stream.get_mut().write_all(&Script::json(200, "{}").bytes).await?;
            continue;
        }
        if message.one("expect").is_some() {
            stream.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        // The judge counts what was seen: one too many is found there.
        let queued = state.seen().scripts.pop_front();
        let mut script = queued.unwrap_or_else(|| Script::json(599, "{}"));
        if !script.early {
            wire::read_body(&mut stream, &mut message, Kind::Request).await?;
        }
        let number = {
            let mut seen = state.seen();
            seen.open.insert(open.index, format!("{} {}", message.first, String::from_utf8_lossy(&message.body)));
            if !state.crowded {
                seen.requests.push(message.clone());
            }
            seen.requests.len().wrapping_sub(1)
        };
        if let Some(answer) = &state.answer {
            script = answer(number, &message);
        }
        sleep(script.delay).await;
        let (now, held) = script.bytes.split_at(script.held.unwrap_or(script.bytes.len()));
        write_parts(stream.get_mut(), now, &script.parts).await?;
        if script.held.is_some() {
            let mut holds = state.holds.subscribe();
            tokio::select! {
                _ = holds.wait_for(|holds| !holds) => {}
                more = stream.fill_buf() => if more?.is_empty() { return Ok(()) },
            }
            stream.get_mut().write_all(held).await?;
        }
        state.seen().answered += 1;
        match script.end {
            End::Keep => {}
            End::Close => {
                SockRef::from(stream.get_ref()).set_linger(None)?;
                return stream.get_mut().shutdown().await;
            }
            End::Reset => {
                // What was written arrives first.
                sleep(Duration::from_millis(20)).await;
                return stream.get_ref().set_zero_linger();
            }
            End::Silence => {
                let left =
                    timeout(PATIENCE, async { while !matches!(stream.read(&mut [0; 4096]).await, Ok(0) | Err(_)) {} });
                match left.await {
                    Ok(()) => state.seen().left += 1,
                    Err(_) => state.seen().stuck.push(message.first),
                }
                return Ok(());
            }
            End::Echo => {
                SockRef::from(stream.get_ref()).set_linger(None)?;
                let (mut from, mut to) = tokio::io::split(stream);
                tokio::io::copy(&mut from, &mut to).await?;
                return to.shutdown().await;
            }
        }
    }
    Ok(())
}

/// Writes bytes in parts that arrive one by one.
pub async fn write_parts(to: &mut TcpStream, bytes: &[u8], parts: &[usize]) -> io::Result<()> {
    let mut written = 0;
    for &end in parts {
        let end = end.clamp(written, bytes.len());
        to.write_all(&bytes[written..end]).await?;
        written = end;
        sleep(Duration::from_millis(2)).await;
    }
    to.write_all(&bytes[written..]).await
}

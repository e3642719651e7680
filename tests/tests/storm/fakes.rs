//! Servers of both roles, which do what each request's plan says.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use transload_tests::process::{Chance, mix};

use super::answer::find;
use super::plan::{Asked, Connector, Fault, Plan, Setting, tokens};
use super::script::{Answer, Step, script};

/// How long a server that says nothing waits for the other side to close: far longer than that may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the decode servers say was cached; a prefill server says something else.
pub(crate) const CACHED_AT_DECODE: u64 = 7;

/// What a prefill server says was cached.
pub(crate) const fn cached_at_prefill(number: u64) -> u64 {
    1000 + number % 1000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Prefill,
    Decode,
}

/// What all servers of a world know.
pub(crate) struct Known {
    setting: Setting,
    seed: u64,
    /// How long servers take, in milliseconds, at most.
    pub(crate) busy: u64,
    requests: Mutex<HashMap<u64, Seen>>,
    /// What should not have happened.
    faults: Mutex<Vec<String>>,
    /// For each connection the line of its last request.
    open: Mutex<HashMap<u64, String>>,
    connections: AtomicU64,
}

/// What servers have seen of a request.
#[derive(Debug, Default)]
struct Seen {
    prefills: usize,
    decodes: usize,
    /// Its id, the same on all legs.
    id: Option<String>,
}

impl Known {
    pub(crate) fn new(setting: Setting, seed: u64, busy: u64) -> Arc<Self> {
        Arc::new(Self {
            setting,
            seed,
            busy,
            requests: Mutex::default(),
            faults: Mutex::default(),
            open: Mutex::default(),
            connections: AtomicU64::new(0),
        })
    }

    /// A client will send this request.
    pub(crate) fn expect(&self, number: u64) {
        self.requests.lock().unwrap().insert(number, Seen::default());
    }

    /// A client has got its answer, or has left.
    pub(crate) fn forget(&self, number: u64) {
        self.requests.lock().unwrap().remove(&number);
    }

    pub(crate) fn fault(&self, fault: String) {
        let mut faults = self.faults.lock().unwrap();
        // More would be more of the same.
        if faults.len() < 20 {
            faults.push(fault);
        }
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap().clone()
    }

    /// What was last asked on each connection that the servers have.
    pub(crate) fn open(&self) -> Vec<String> {
        self.open.lock().unwrap().values().cloned().collect()
    }
}

/// A server that runs, until it is killed.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    role: Role,
    known: Arc<Known>,
    running: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start(role: Role, known: &Arc<Known>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = Self { address: listener.local_addr().unwrap(), role, known: known.clone(), running: None };
        server.serve(listener);
        server
    }

    fn serve(&mut self, listener: TcpListener) {
        let (role, known) = (self.role, self.known.clone());
        self.running = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        if let Ok((stream, _)) = accepted {
                            connections.spawn(connection(stream, role, known.clone()));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        }));
    }

    /// Ends it as `kill -9` does: the system closes all that it has open.
    pub(crate) async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            let _ = running.await;
        }
    }

    /// Starts it again, at the same address.
    pub(crate) async fn restart(&mut self) {
        // The connections of the dead one may still be on their way out.
        loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => return self.serve(listener),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// A connection that a server has.
struct Open<'a> {
    known: &'a Known,
    index: u64,
}

impl<'a> Open<'a> {
    fn new(known: &'a Known) -> Self {
        let index = known.connections.fetch_add(1, Ordering::SeqCst);
        let open = Self { known, index };
        open.asked("nothing");
        open
    }

    fn asked(&self, line: &str) {
        self.known.open.lock().unwrap().insert(self.index, line.to_owned());
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.known.open.lock().unwrap().remove(&self.index);
    }
}

async fn connection(mut stream: TcpStream, role: Role, known: Arc<Known>) {
    let open = Open::new(&known);
    // The other side may leave at any time.
    let _ = serve(&mut stream, role, &known, &open).await;
}

async fn serve(stream: &mut TcpStream, role: Role, known: &Known, open: &Open<'_>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    while let Some((head, body)) = request(stream, &mut read).await? {
        open.asked(&format!("{role:?} {head}{body}"));
        for step in steps(&head, &body, role, known) {
            match step {
                Step::Write(bytes) => stream.write_all(&bytes).await?,
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Reset => return stream.set_zero_linger(),
                Step::Close => return stream.shutdown().await,
                Step::Hang => {
                    let waited = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await;
                    if waited.is_err() {
                        known.fault(format!("a silent leg was never given up: {head}"));
                    }
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Reads a request, in the one form that the command may send it in.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Option<(String, String)>> {
    let end = loop {
        if let Some(end) = find(read, b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    read.drain(..end);
    let small = head.to_ascii_lowercase();
    let mut body = Vec::new();
    if let Some((_, rest)) = small.split_once("\r\ncontent-length:") {
        let length = rest.split("\r\n").next().unwrap_or_default().trim();
        let length: usize = length.parse().map_err(io::Error::other)?;
        fill(stream, read, length).await?;
        body.extend(read.drain(..length));
    } else if small.contains("\r\ntransfer-encoding:") {
        loop {
            let line = loop {
                if let Some(line) = find(read, b"\r\n") {
                    break line;
                }
                fill(stream, read, read.len() + 1).await?;
            };
            let size = String::from_utf8_lossy(&read[..line]).into_owned();
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            read.drain(..line + 2);
            fill(stream, read, size + 2).await?;
            body.extend(read.drain(..size));
            read.drain(..2);
            if size == 0 {
                break;
            }
        }
    }
    Ok(Some((head, String::from_utf8_lossy(&body).into_owned())))
}

async fn fill(stream: &mut TcpStream, read: &mut Vec<u8>, length: usize) -> io::Result<()> {
    while read.len() < length {
        if stream.read_buf(read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Decides what happens to a request.
fn steps(head: &str, body: &str, role: Role, known: &Known) -> Vec<Step> {
    let whole = format!("{head}{body}");
    if whole.contains("evil") {
        known.fault(format!("{role:?} got what only the client may say: {whole}"));
    }
    let Some(asked) = Plan::find(&whole) else {
        // A probe, of health or metrics.
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}";
        return vec![Step::Write(ok.into())];
    };
    let number = asked.number;
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let turn = {
        let mut requests = known.requests.lock().unwrap();
        let Some(seen) = requests.get_mut(&number) else {
            // Its client has left meanwhile.
            return vec![Step::Reset];
        };
        if let Some(wrong) = seen.id_differs(head) {
            known.fault(wrong);
        }
        let turn = match role {
            Role::Prefill => &mut seen.prefills,
            Role::Decode => &mut seen.decodes,
        };
        *turn += 1;
        *turn - 1
    };
    // The same whenever it is drawn again.
    let mut chance = Chance(mix(known.seed ^ mix(number)) ^ (turn as u64) << 1 ^ role as u64);
    let faults = match role {
        Role::Prefill => &asked.prefill,
        Role::Decode => &asked.decode,
    };
    let fault = faults.get(turn).copied().unwrap_or(Fault::Fine);
    // A probe's answer that is too long to be held counts as the answer.
    let fault = match fault {
        Fault::Gigantic if asked.misses => Fault::Fine,
        fault => fault,
    };
    let answer = match fault.status() {
        Some(200) => plain(200, format!("not json {number}")),
        Some(status) => plain(status, own(number, role, status)),
        None => match role {
            Role::Prefill => prefilled(&asked, &body, head, known),
            Role::Decode => decoded(&asked, &body, head, known),
        },
    };
    let mut steps = script(fault, answer, &mut chance);
    if known.busy > 0 {
        steps.insert(0, Step::Pause(Duration::from_millis(chance.below(known.busy))));
    }
    steps
}

impl Seen {
    /// All legs of a request have one id.
    fn id_differs(&mut self, head: &str) -> Option<String> {
        let small = head.to_ascii_lowercase();
        let id = small.split_once("\r\nx-request-id:")?.1;
        let id = id.split("\r\n").next()?.trim().to_owned();
        match &self.id {
            Some(known) if *known != id => Some(format!("{id} is not {known}, of the other leg")),
            _ => {
                self.id = Some(id);
                None
            }
        }
    }
}

fn plain(status: u16, body: String) -> Answer {
    Answer { status, content_type: "application/json", body }
}

/// What a server says with a status of its own.
pub(crate) fn own(number: u64, role: Role, status: u16) -> String {
    let role = match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    };
    json!({"error": {"message": format!("{role} {number}"), "code": status}}).to_string()
}

fn prefilled(asked: &Asked, body: &Value, head: &str, known: &Known) -> Answer {
    let number = asked.number;
    match known.setting.connector {
        Connector::NixlV2 => {
            let wanted = body["kv_transfer_params"]["do_remote_decode"] == true
                && body["stream"] == false
                && limit(head, body) == 1;
            if !wanted {
                known.fault(format!("a prefill leg asks for other things: {body}"));
            }
        }
        Connector::SharedStorage => {}
        Connector::Sglang => rooms(body, known),
    }
    let usage = json!({"prompt_tokens": 20, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached_at_prefill(number)}});
    let params = json!({"do_remote_prefill": true, "remote_engine_id": format!("e{number}"), "remote_block_ids": [[1, 2, number]],
        "remote_host": "127.0.0.1", "remote_port": 7600});
    let answer = json!({"id": "p", "choices": [], "usage": usage, "kv_transfer_params": params});
    plain(200, answer.to_string())
}

fn rooms(body: &Value, known: &Known) {
    if body["bootstrap_room"].as_u64().is_none() || body["bootstrap_host"] != "127.0.0.1" {
        known.fault(format!("a leg has no room to meet in: {body}"));
    }
}

fn limit(head: &str, body: &Value) -> u64 {
    let name = match head.starts_with("POST /v1/responses") {
        true => "max_output_tokens",
        false => "max_tokens",
    };
    body[name].as_u64().unwrap_or(u64::MAX)
}

/// A decode server's tokens, with a mark that says whether it was given parameters.
fn decoded(asked: &Asked, body: &Value, head: &str, known: &Known) -> Answer {
    let number = asked.number;
    let params = &body["kv_transfer_params"];
    let given = !params.is_null();
    if given && params["remote_engine_id"] != format!("e{number}") {
        known.fault(format!("{number} was given another one's parameters: {body}"));
    }
    if known.setting.connector == Connector::Sglang && !body["bootstrap_room"].is_null() {
        rooms(body, known);
    }
    let mut reason = "stop";
    let (mut from, mut to) = (0, asked.tokens);
    if known.setting.chunk.is_some() && head.starts_with("POST /v1/chat") {
        // What was generated before stands behind the client's own message.
        let before = body["messages"][1]["content"].as_str().unwrap_or_default();
        from = before.matches(' ').count();
        if before != tokens(number, 0, from) {
            known.fault(format!("{number} goes on from other tokens: {body}"));
        }
        let limit = usize::try_from(limit(head, body)).unwrap_or(usize::MAX);
        to = to.min(from.saturating_add(limit));
        if to < asked.tokens {
            reason = "length";
        }
    }
    let threshold = body["cache_hit_threshold"].as_f64().unwrap_or(0.0);
    let mark = if given { "given" } else { "alone" };
    let text = if asked.misses && threshold > 0.0 && known.setting.connector == Connector::SharedStorage {
        reason = "cache_threshold";
        String::new()
    } else {
        tokens(number, from, to)
    };
    let usage = json!({"prompt_tokens": 20, "completion_tokens": to - from,
        "prompt_tokens_details": {"cached_tokens": CACHED_AT_DECODE}});
    let chat = head.starts_with("POST /v1/chat");
    if body["stream"] != true {
        let choice = match chat {
            true => {
                json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason})
            }
            false => json!({"index": 0, "text": text, "finish_reason": reason}),
        };
        let answer = json!({"id": mark, "created": 1, "choices": [choice], "usage": usage});
        return plain(200, answer.to_string());
    }
    let mut events = String::from(": comment\n\n");
    for token in text.split_inclusive(' ') {
        let choice = match chat {
            true => json!({"index": 0, "delta": {"content": token}}),
            false => json!({"index": 0, "text": token}),
        };
        events += &format!("data: {}\n\n", json!({"id": mark, "choices": [choice]}));
    }
    let last = json!({"index": 0, "finish_reason": reason});
    events += &format!("data: {}\n\n", json!({"id": mark, "choices": [last], "usage": usage}));
    events += "data: [DONE]\n\n";
    Answer { status: 200, content_type: "text/event-stream", body: events }
}

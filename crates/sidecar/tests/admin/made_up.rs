//! A source of made-up requests and servers, behind a real admin address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use transload_sidecar::internal::admin::{Source, serve};
use transload_sidecar::internal::observe::{FailureKind, Observer, Outcome, Path, Record, ServerState, ServerStatus};
use transload_sidecar::{Role, ServerUrl, Target};

/// The metrics of our connector as one vLLM server would serve them.
const METRICS: &str = r#"# TYPE vllm:transload_bytes_total counter
vllm:transload_bytes_total{engine="0",model_name="m",path="quic"} 8.49346e+10
vllm:transload_bytes_total{engine="0",model_name="m",path="local"} 2.147483648e+10
vllm:transload_load_seconds_count{engine="0",model_name="m"} 1204
vllm:transload_load_seconds_sum{engine="0",model_name="m"} 21.4
vllm:transload_failures_total{engine="0",model_name="m",kind="expired"} 3
vllm:transload_leases_ended_total{engine="0",model_name="m",end="released"} 1198
"#;

pub(crate) struct World {
    pub(crate) observer: Observer,
    pub(crate) servers: Vec<ServerStatus>,
    pub(crate) ready: AtomicBool,
    pub(crate) scrapes: AtomicUsize,
    /// Whether servers have our connector.
    pub(crate) connector: bool,
    pub(crate) going: Vec<Record>,
}

impl Source for World {
    fn observer(&self) -> &Observer {
        &self.observer
    }

    fn servers(&self) -> Vec<ServerStatus> {
        self.servers.clone()
    }

    async fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    async fn get(&self, _: &ServerStatus, path: &str, _: usize, _: Duration) -> Option<Bytes> {
        assert_eq!(path, "/metrics");
        self.scrapes.fetch_add(1, Ordering::Relaxed);
        self.connector.then(|| Bytes::from_static(METRICS.as_bytes()))
    }
}

pub(crate) fn nothing() -> World {
    World {
        observer: Observer::new("sidecar", env!("CARGO_PKG_VERSION"), ago(11_532_000_000)),
        servers: Vec::new(),
        ready: AtomicBool::new(true),
        scrapes: AtomicUsize::new(0),
        connector: false,
        going: Vec::new(),
    }
}

/// Returns a proxy in front of a few servers after some minutes of mixed requests, some of which are in flight.
pub(crate) fn busy(requests: usize) -> World {
    let mut world = nothing();
    world.observer = Observer::new("proxy", env!("CARGO_PKG_VERSION"), ago(11_532_000_000));
    world.connector = true;
    world.servers = vec![
        server(Role::Prefill, "10.4.0.11:8100", ServerState::Up, [3, 1841, 2]),
        server(Role::Prefill, "10.4.0.12:8100", ServerState::Up, [2, 1838, 0]),
        server(Role::Prefill, "10.4.0.13:8100", ServerState::Open, [0, 1203, 31]),
        server(Role::Decode, "10.4.1.21:8200", ServerState::Up, [24, 2655, 1]),
        server(Role::Decode, "10.4.1.22:8200", ServerState::Up, [19, 2671, 0]),
    ];
    let mut dice = Dice(16);
    let mut at = 400 + 1700 * requests as u64;
    for number in 0..requests {
        at -= 1700;
        request(&world, &mut dice, number, at, true);
    }
    for (number, age) in [6100, 3400, 1900, 330, 90].into_iter().enumerate() {
        let record = request(&world, &mut dice, requests + number, age, false);
        world.going.extend(record);
    }
    world
}

/// Makes a request that began `age` milliseconds ago. With `ends` it is over by now; otherwise its record is returned.
fn request(world: &World, dice: &mut Dice, number: usize, age: u64, ends: bool) -> Option<Record> {
    let id = format!("{:016x}{:016x}", dice.next(), dice.next());
    let mut now = ago(age * 1000);
    let limit = Instant::now();
    let mut after = |micros: u64| {
        now += Duration::from_micros(micros);
        (ends || now <= limit).then_some(now)
    };
    let record = world.observer.begin(&id, after(0)?);
    let long = dice.below(4) == 0;
    let tokens = if long { 6000 + dice.below(9000) } else { 300 + dice.below(2200) };
    let [prefill, decode] = [Role::Prefill, Role::Decode].map(|role| {
        let all: Vec<_> = world.servers.iter().filter(|one| one.role == role && one.state == ServerState::Up).collect();
        all[dice.below(all.len() as u64) as usize].url.clone()
    });
    // The events of the request until now.
    let story = || -> Option<Outcome> {
        record.received(after(150 + dice.below(700))?);
        let kind = number % 23;
        if kind == 19 {
            record.status(400);
            return Some(Outcome::Rejected);
        }
        let wait = 9000 + tokens * 24 + dice.below(30_000);
        if kind == 4 || kind == 11 {
            record.path(Path::DecodeOnly);
            record.decode_asked(&decode, after(90)?);
            record.decode_answered(after(wait)?);
        } else {
            record.path(Path::Disaggregated);
            record.prefill_asked(&prefill, after(90 + dice.below(60))?);
            if kind == 7 {
                record.failure(Role::Prefill, FailureKind::Broken, after(wait / 3)?);
                record.path(Path::Fallback);
                record.decode_asked(&decode, after(80)?);
                record.decode_answered(after(wait)?);
            } else {
                record.prefill_answered(after(wait)?);
                record.decode_asked(&decode, after(60 + dice.below(80))?);
                record.decode_answered(after(14_000 + tokens * 3 + dice.below(9000))?);
                record.tokens(None, Some(tokens / 3 / 16 * 16));
            }
            record.tokens(Some(tokens), None);
        }
        record.status(200);
        record.first_byte(after(40)?);
        let events = 30 + dice.below(400);
        record.bytes(230 * events as usize);
        if !ends {
            return None;
        }
        let whole = 18_000 * events;
        after(if kind == 14 { whole / 4 } else { whole });
        Some(if kind == 14 { Outcome::ClientLeft } else { Outcome::Ok })
    };
    let mut story = story;
    match story() {
        Some(outcome) => {
            record.finish(outcome, now.min(limit));
            None
        }
        None => Some(record),
    }
}

pub(crate) fn server(
    role: Role,
    target: &str,
    state: ServerState,
    [in_flight, requests, failures]: [u64; 3],
) -> ServerStatus {
    ServerStatus {
        url: ServerUrl { tls: false, target: Target::parse(target).expect("a target") },
        role,
        state,
        in_flight,
        requests,
        failures,
        misfits: Vec::new(),
    }
}

/// Returns the time this many microseconds ago, or the earliest that the clock can represent.
pub(crate) fn ago(micros: u64) -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_micros(micros)).unwrap_or(now)
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Serves it on a port of this host until the handle is aborted.
pub(crate) async fn start(world: World) -> (SocketAddr, Arc<World>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let world = Arc::new(world);
    let source = world.clone();
    let task = tokio::spawn(async move { serve(listener, source).await.expect("an address") });
    (address, world, task)
}

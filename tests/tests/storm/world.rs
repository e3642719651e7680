//! A world: one way to run the command, with its servers and clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use transload_test_servers::{Fake, Process, get};
use transload_tests::process::{Chance, mix};

use super::client::{self, Verdict};
use super::fakes::{self, Known, Role};
use super::plan::{Mode, Setting};

const CLIENTS: usize = 24;

/// The time after which ended requests must be gone. Idle connections are kept for 4 s and checked as often.
const SETTLED: Duration = Duration::from_secs(40);

/// The memory that the command may gain between a quarter of the requests and their end, in KiB.
const GAINED: u64 = 24 << 10;

/// The addresses that clients need.
pub(crate) struct Place {
    pub(crate) setting: Setting,
    pub(crate) address: SocketAddr,
    pub(crate) prefill: Vec<SocketAddr>,
    /// An address at which nothing listens.
    pub(crate) closed: SocketAddr,
    pub(crate) known: Arc<Known>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answers: u64,
    pub(crate) errors: u64,
    pub(crate) broken: u64,
    pub(crate) left: u64,
    pub(crate) malformed: u64,
}

impl Counts {
    pub(crate) fn judge(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Answer => &mut self.answers,
            Verdict::Error => &mut self.errors,
            Verdict::Broken => &mut self.broken,
        } += 1;
    }

    fn all(&self) -> u64 {
        self.answers + self.errors + self.broken + self.left + self.malformed
    }

    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.errors += other.errors;
        self.broken += other.broken;
        self.left += other.left;
        self.malformed += other.malformed;
    }
}

pub(crate) struct World {
    pub(crate) place: Arc<Place>,
    process: Process,
    admin: SocketAddr,
    seed: u64,
    servers: Vec<Fake>,
    /// Holds the address where nothing listens.
    _closed: Fake,
}

impl World {
    pub(crate) async fn start(setting: Setting, seed: u64) -> Self {
        let known = Known::new(setting, seed, 0);
        let mut servers = Vec::new();
        for role in [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode] {
            servers.push(fakes::start(role, &known));
        }
        let closed = Fake::refusing(0).unwrap();
        let nowhere = closed.address;
        let at: Vec<_> = servers.iter().map(|server| server.address).collect();
        let mut arguments: Vec<String> = match setting.mode {
            Mode::Sidecar => vec![
                "sidecar".into(),
                "--secure-proxy=false".into(),
                "--port=0".into(),
                format!("--vllm-port={}", at[2].port()),
            ],
            Mode::Proxy => vec![
                "proxy".into(),
                "--listen=127.0.0.1:0".into(),
                format!("--prefill=http://{},http://{},http://{nowhere}", at[0], at[1]),
                format!("--decode=http://{},http://{}", at[2], at[3]),
            ],
        };
        arguments.extend([
            "--admin=127.0.0.1:0".into(),
            "--prefill-timeout=400ms".into(),
            "--body-limit=512KiB".into(),
            format!("--kv-connector={}", setting.connector.name()),
        ]);
        if let Some(tokens) = setting.chunk {
            arguments.push(format!("--decode-chunk-size={tokens}"));
        }
        let mut process = Process::start(&arguments);
        let (clients, admin) = process.addresses().await;
        let place = Place { setting, address: clients[0], prefill: vec![at[0], at[1]], closed: nowhere, known };
        Self { place: Arc::new(place), process, admin: admin.unwrap(), seed, servers, _closed: closed }
    }

    /// Sends this many requests. Returns a line of results, and the faults found.
    pub(crate) async fn weather(mut self, requests: u64) -> (String, Vec<String>) {
        let start = Instant::now();
        let files = self.process.open_files();
        let next = Arc::new(AtomicU64::new(0));
        let mut counts = Counts::default();
        self.send(requests / 4, &next, &mut counts).await;
        let memory = self.process.resident();
        self.send(requests, &next, &mut counts).await;
        let storm = start.elapsed();
        let left = self.settle(files).await;
        let grown = self.process.resident();
        if grown > memory + GAINED {
            self.fault(format!("{memory} KiB have become {grown}"));
        }
        if !left.is_empty() {
            self.fault(format!("after {SETTLED:?} there are left: {left:?}"));
        }
        if !self.process.lives() {
            self.fault("it has ended".to_owned());
        }
        for stuck in self.servers.iter().flat_map(Fake::stuck) {
            self.fault(format!("a silent leg was never given up: {stuck}"));
        }
        let setting = self.place.setting;
        let line = format!(
            "{:?} {:?} chunk {:?}: {counts:?}, {} s and {} s to settle, {memory} then {grown} KiB",
            setting.mode,
            setting.connector,
            setting.chunk,
            storm.as_secs(),
            (start.elapsed() - storm).as_secs(),
        );
        let faults = self.place.known.faults();
        (line, faults.into_iter().map(|fault| format!("{setting:?}: {fault}")).collect())
    }

    /// Lets clients visit until there were enough requests in all, or enough faults.
    async fn send(&self, requests: u64, next: &Arc<AtomicU64>, counts: &mut Counts) {
        let mut visits = JoinSet::new();
        while counts.all() < requests && self.place.known.faults().len() < 20 {
            while visits.len() < CLIENTS {
                let (place, seed) = (self.place.clone(), self.seed);
                let visit = next.fetch_add(1, Ordering::SeqCst);
                let chance = Chance(mix(seed) ^ mix(visit));
                let first = visit * (client::MOST + 1);
                visits.spawn(async move { client::visit(&place, chance, first).await });
            }
            if let Some(visit) = visits.join_next().await {
                counts.add(&visit.unwrap());
            }
        }
        while let Some(visit) = visits.join_next().await {
            counts.add(&visit.unwrap());
        }
    }

    /// Waits until nothing is left of requests, and returns what is left after a limit.
    async fn settle(&mut self, files: usize) -> Vec<String> {
        // A proxy keeps a connection to each server, for its probes.
        let probes = match self.place.setting.mode {
            Mode::Sidecar => 0,
            Mode::Proxy => self.servers.len(),
        };
        let start = Instant::now();
        loop {
            let mut left = Vec::new();
            let connections: Vec<_> = self.servers.iter().flat_map(Fake::open).collect();
            if connections.len() > probes {
                left.push(format!("connections to servers: {connections:?}"));
            }
            let open = self.process.open_files();
            if open > files + probes {
                left.push(format!("{open} files, {files} before"));
            }
            // Not before that, since it asks its servers then.
            if left.is_empty() {
                left = self.in_flight().await;
            }
            if left.is_empty() || start.elapsed() > SETTLED {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn in_flight(&self) -> Vec<String> {
        let status = get(self.admin, "/status").await.json();
        let servers = status["servers"].as_array().into_iter().flatten();
        let busy = servers.filter(|server| server["in_flight"] != 0);
        let mut left: Vec<_> = busy.map(|server| format!("in flight at {server}")).collect();
        if status["in_flight_total"] != 0 {
            left.push(format!("requests in flight: {}", status["in_flight"]));
        }
        left
    }

    fn fault(&self, fault: String) {
        self.place.known.fault(fault);
    }
}

//! The setup and the checks that all rounds of a test share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use transload_layout::Rank;
use transload_tests::cluster::{CLUSTER, Cache, Side, impatient};
use transload_tests::process::{Belongings, Chance, alone, resident_kib};
use transload_transfer::device::Gpu;
use transload_transfer::{
    Agent, AgentOptions, Authority, ClusterName, Identity, Incarnation, PullReport, PullRequest, Roles, ServiceName,
    wire,
};

use crate::blow::Killer;
use crate::peer::Peer;

/// The rounds before anything is counted. What they allocate for good (the system's files, kept stacks) is not a leak.
const WARM: u64 = 2;

/// Threads that have mapped a ring stay for another ten seconds in case that there is more to do.
/// So some more may be there after a round; one that is lost in each of them shows after a few, and each
/// one in the end, when there must be none.
const IDLE_THREADS: usize = 6;

/// The number of rounds of an ordinary run, for each test. A round takes about two seconds.
const ROUNDS: u64 = 3;

/// Makes a transfer take this path and no other.
pub(crate) fn choose_path(path: Option<wire::Path>, request: &mut PullRequest) {
    if let Some(path) = path {
        request.paths = path.into();
    }
}

/// Returns whether all bytes have taken the path that they were to take.
pub(crate) fn took_path(path: Option<wire::Path>, report: &PullReport) -> Result<(), String> {
    let mut taken = report.routes.iter().map(|route| route.path);
    match path {
        Some(path) if taken.any(|taken| taken != path) => Err(format!("{report:?} where it was to be {path}")),
        _ => Ok(()),
    }
}

/// One test: its cluster, its seed, and the resources counted before.
pub(crate) struct Siege {
    /// The one path that all transfers take.
    pub(crate) path: Option<wire::Path>,
    /// The GPU that has all caches, even those of other processes.
    pub(crate) gpu: Option<Gpu>,
    /// The time for which all agents wait for a peer; far shorter than the default.
    pub(crate) patience: Option<Duration>,
    pub(crate) folder: TempDir,
    chance: Cell<u64>,
    requests: Cell<u64>,
    lives: Cell<u64>,
    news: Cell<BTreeMap<String, u64>>,
    before: Cell<Option<(Belongings, u64)>>,
    seed: u64,
}

impl Siege {
    /// Makes a test whose transfers take this path, or all paths in turn.
    pub(crate) fn new(test: u64, path: Option<wire::Path>) -> Self {
        let folder = TempDir::new().unwrap();
        let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
        authority.save(folder.path()).unwrap();
        for name in ["prefill-0", "prefill-1", "decode-0", "decode-1"] {
            let service = ServiceName::new(name).unwrap();
            let identity = authority.issue(&service, Roles::all()).unwrap();
            identity.save(folder.path()).unwrap();
        }
        let seed = number("TRANSLOAD_TEST_SEED", 0x5EED) + test;
        Self {
            path,
            gpu: None,
            patience: None,
            folder,
            chance: Cell::new(seed),
            requests: Cell::default(),
            lives: Cell::default(),
            news: Cell::default(),
            before: Cell::default(),
            seed,
        }
    }

    /// Makes a test of transfers between caches on a GPU, over this path.
    pub(crate) fn on_gpu(test: u64, path: wire::Path) -> Self {
        Self { gpu: Some(Gpu::open(0).unwrap()), ..Self::new(test, Some(path)) }
    }

    /// Runs a test in its own runtime, and counts what it leaves behind.
    pub(crate) fn lay(&self, test: impl AsyncFnOnce()) {
        let _one_at_a_time = alone();
        let began = Instant::now();
        let empty = Belongings::count();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(test());
        let rounds = number("TRANSLOAD_TEST_KILLS", ROUNDS);
        let seconds = began.elapsed().as_secs_f64();
        let news = self.news.take();
        println!("{rounds} rounds of seed {:#x} in {seconds:.1} s: {news:?}", self.seed);
        // Whatever the first runtime of a process keeps (its pipe for signals) is not ours.
        let most = Belongings { descriptors: empty.descriptors + 3, ..empty };
        if self.counts() {
            most.wait_for();
        }
    }

    pub(crate) fn rounds(&self) -> impl Iterator<Item = u64> {
        let warm = if self.counts() { WARM } else { 0 };
        0..warm + number("TRANSLOAD_TEST_KILLS", ROUNDS)
    }

    /// Returns whether resources are counted. With a GPU they are not, since its driver opens files at any time.
    fn counts(&self) -> bool {
        self.gpu.is_none()
    }

    pub(crate) fn agent(&self, name: &str, cache: &Cache, ranks: &[Rank]) -> Agent {
        let identity = load(self.folder.path(), name);
        let ranks = ranks.iter().copied();
        cache.agent(identity, ranks, Incarnation::new(1, 1), options(self.patience))
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.lives.set(self.lives.get() + 1);
        Incarnation::new(self.lives.get(), self.draw())
    }

    pub(crate) fn request(&self) -> u64 {
        loop {
            self.requests.set(self.requests.get() + 1);
            let request = self.requests.get();
            // The first two of four take the network only.
            if self.path.is_none() || request % 4 >= 2 {
                return request;
            }
        }
    }

    pub(crate) fn cache(&self, side: Side) -> Cache {
        Cache::on(side, self.gpu.as_ref())
    }

    pub(crate) fn took_its_path(&self, report: &PullReport) -> Result<(), String> {
        took_path(self.path, report)
    }

    fn draw(&self) -> u64 {
        let mut chance = Chance(self.chance.get());
        let drawn = chance.draw();
        self.chance.set(chance.0);
        drawn
    }

    /// Kills one or all of some peers at some moment of a request. `took` is how
    /// long one took without.
    pub(crate) fn kill<const N: usize>(&self, peers: [&Peer; N], took: Duration) -> Killer {
        let drawn = self.draw() as usize % (N + 1);
        let chosen = peers.iter().enumerate();
        let chosen = chosen.filter(|(i, _)| drawn == N || *i == drawn);
        let victims = chosen.map(|(_, peer)| peer.id()).collect();
        Killer::start(victims, took.mul_f64((self.draw() % 800) as f64 / 1000.0))
    }

    pub(crate) fn note(&self, news: String) {
        let mut all = self.news.take();
        *all.entry(news).or_default() += 1;
        self.news.set(all);
    }

    /// Checks that a round leaves no more behind than the first ones did.
    pub(crate) fn over(&self, round: u64) {
        match self.before.get() {
            _ if !self.counts() => {}
            None if round + 1 == WARM => {
                let mut before = Belongings::count();
                before.threads += IDLE_THREADS;
                self.before.set(Some((before, resident_kib())));
                self.news.take();
            }
            None => {}
            Some((before, resident)) => {
                before.wait_for();
                let now = resident_kib();
                assert!(now < resident + (64 << 10), "{now} KiB, once it was {resident}");
            }
        }
    }
}

/// Returns settings with this time limit for peers.
pub(crate) fn options(patience: Option<Duration>) -> AgentOptions {
    let Some(patience) = patience else {
        return impatient();
    };
    let mut options = AgentOptions::default();
    options.quic.lanes = 2;
    options.stall(patience).connect_wait(patience)
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

/// Returns the identity of one of the agents, out of the folder of a test.
pub(crate) fn load(folder: &Path, name: &str) -> Identity {
    Identity::load_agent(folder, &ServiceName::new(name).unwrap()).unwrap()
}

//! `kill -9` of real processes in the midst of pulls and pushes, at moments drawn from a seed.
//!
//! The survivor is this process, where it can be looked into; the others are this binary once more, as
//! [`other_process`]. However a round ends: what was reported as good is good to the last byte, nothing
//! is written after a failure was reported, every lease ends once and with a reason, nothing is left
//! over, and the same survivor serves the next round.
//!
//! `TRANSLOAD_TEST_KILLS` is how many rounds each test goes, `TRANSLOAD_TEST_SEED` with which seed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::{
    self, CLUSTER, Cache, Origins, Side, claims_of, idle, impatient, lease_of, mint, ticket_of,
    transfer_of, unused,
};
use transload_tests::process::{Belongings, Chance, Other, alone, heard, resident_kib, say};
use transload_transfer::agent::{
    Agent, Lease, LeaseOutcome, PullReport, PullRequest, TransferError,
};
use transload_transfer::identity::{Authority, Identity, Roles};
use transload_transfer::ids::{AgentId, ClusterName, DeploymentDigest, Direction, Incarnation};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::ticket::{RankAddress, Ticket};
use transload_transfer::wire::{JobError, Path as TakenPath};

/// Rounds before anything is counted: what they open for good (files of the system, stacks that are
/// kept) is not a leak.
const WARM: u64 = 2;

/// By when a survivor knows, whatever has happened; its jobs themselves would give up a second later.
const SOON: Duration = Duration::from_secs(7);

/// How long something that is late is waited for.
const LATE: Duration = Duration::from_millis(150);

/// Two agents pull what two other processes hold, of which one or both die.
#[test]
fn destinations_survive_their_sources() {
    destinations_survive(&Siege::new(1, None), &[&RANKS[..2], &RANKS[2..]]);
}

/// One agent pulls from both, over a ring from each.
#[test]
fn a_destination_of_two_rings_survives_its_sources() {
    destinations_survive(&Siege::new(4, Some(Way::Ring)), &[&RANKS]);
}

/// Two agents copy out of the memory of two other processes.
#[test]
fn borrowers_survive_their_lenders() {
    let siege = Siege::new(5, Some(Way::Shared));
    destinations_survive(&siege, &[&RANKS[..2], &RANKS[2..]]);
}

/// Two other processes pull what this one holds; one or both die.
#[test]
fn a_source_survives_its_destinations() {
    source_survives(&Siege::new(2, None));
}

/// The same out of memory that this one lends.
#[test]
fn a_lender_survives_its_borrowers() {
    source_survives(&Siege::new(6, Some(Way::Shared)));
}

/// Another process pushes into what this one has opened, and dies.
#[test]
fn an_opening_survives_who_pushes_into_it() {
    opening_survives(&Siege::new(3, None));
}

/// The same, where this one copies out of the other's memory.
#[test]
fn an_opening_survives_who_lends_to_it() {
    opening_survives(&Siege::new(7, Some(Way::Shared)));
}

fn destinations_survive(siege: &Siege, shares: &[&'static [Rank]]) {
    let cache = siege.cache(Side::Decode);
    let origins = Origins::new();
    siege.lay(async || {
        let names = ["decode-0", "decode-1"].into_iter().zip(shares);
        let pullers = names.map(|(name, ranks)| (siege.agent(name, &cache, ranks), *ranks));
        let pullers: Vec<_> = pullers.collect();
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut sources = [
                Peer::start(siege, "prefill-0", &RANKS[..1], incarnation).await,
                Peer::start(siege, "prefill-1", &RANKS[1..2], incarnation).await,
            ];
            let (owner, addresses) = (sources[0].owner, sources.each_ref().map(Peer::address));
            let (mut killer, mut took, mut requests) = (None, None, 0);
            let mut news = "idle".to_owned();
            while killer.as_ref().is_none_or(Killer::is_waiting) || news == "idle" {
                let request = siege.request();
                let mut leased = true;
                for source in &mut sources {
                    source.process.say(&format!("lease {request}"));
                }
                for source in &mut sources {
                    leased &= source.process.hear().await.is_some();
                }
                if !leased {
                    break;
                }
                let addresses = addresses.to_vec();
                let claims = claims_of(request, Direction::Pull, owner, incarnation, addresses);
                let ticket = mint(&pullers[0].0.ticket_key(), &claims);
                cache.clear();
                if let Some(took) = took.take() {
                    killer = Some(siege.kill(sources.each_ref(), took));
                }
                let began = Instant::now();
                let pulls = pullers.iter().map(|(agent, ranks)| {
                    let pull = transfer_of(Side::Decode, ranks, ticket.clone(), request);
                    let agent = agent.clone();
                    tokio::spawn(async move { agent.pull(pull).await })
                });
                let mut failed = false;
                for (pull, (_, ranks)) in pulls.collect::<Vec<_>>().into_iter().zip(&pullers) {
                    match pull.await.unwrap() {
                        Ok(report) => {
                            origins.check(&cache, request, ranks).unwrap();
                            siege.is_way_of(&report).unwrap();
                        }
                        Err(error) => {
                            news = kind(&error);
                            failed = true;
                        }
                    }
                }
                if failed {
                    assert!(killer.is_some(), "round {round}: nobody was killed: {news}");
                    assert!(
                        began.elapsed() < SOON,
                        "round {round}: {:?}",
                        began.elapsed()
                    );
                    let sum = cache.checksum();
                    sleep(LATE).await;
                    assert_eq!(
                        cache.checksum(),
                        sum,
                        "round {round}: written after the failure"
                    );
                    break;
                }
                if killer.is_none() {
                    requests += 1;
                    // The first has made the connections as well.
                    took = (requests > 1).then(|| began.elapsed());
                }
            }
            siege.note(news);
            let victims = killer.unwrap().wait();
            for source in sources {
                source.ended(&victims, round);
            }
            for (agent, _) in &pullers {
                idle(agent).await;
            }
            siege.over(round);
        }
        for (agent, _) in pullers {
            agent.shutdown(Duration::from_secs(1)).await;
        }
    });
}

fn source_survives(siege: &Siege) {
    let cache = siege.cache(Side::Prefill);
    siege.lay(async || {
        let owner = siege.agent("prefill-0", &cache, &RANKS[..2]);
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut pullers = [
                Peer::start(siege, "decode-0", &RANKS[..2], incarnation).await,
                Peer::start(siege, "decode-1", &RANKS[2..], incarnation).await,
            ];
            let (mut killer, mut took, mut requests): (Option<Killer>, _, _) = (None, None, 0);
            loop {
                let request = siege.request();
                cache.fill(request);
                let leases = open(&owner, &cache, &RANKS[..2], request, Direction::Pull).await;
                let ticket = ticket_of(&owner, request, Direction::Pull);
                let mut done = true;
                if let Some(took) = took.take() {
                    killer = Some(siege.kill(pullers.each_ref(), took));
                }
                let began = Instant::now();
                for puller in &mut pullers {
                    puller
                        .process
                        .say(&format!("move {request} {}", ticket.expose()));
                }
                for puller in &mut pullers {
                    done &= puller.process.hear().await.is_some_and(|said| {
                        assert!(!said.starts_with("wrong"), "round {round}: {said}");
                        said == format!("moved {request}")
                    });
                }
                let news = ends(leases, &cache, request).await;
                if done {
                    assert_eq!(news, "completed");
                } else {
                    assert!(killer.is_some(), "round {round}: nobody was killed");
                    siege.note(news);
                    break;
                }
                if killer.as_ref().is_some_and(|killer| !killer.is_waiting()) {
                    siege.note("idle".to_owned());
                    break;
                }
                if killer.is_none() {
                    requests += 1;
                    // The first has made the connections as well.
                    took = (requests > 1).then(|| began.elapsed());
                }
            }
            let victims = killer.unwrap().wait();
            for puller in pullers {
                puller.ended(&victims, round);
            }
            idle(&owner).await;
            siege.over(round);
        }
        owner.shutdown(Duration::from_secs(1)).await;
    });
}

fn opening_survives(siege: &Siege) {
    let cache = siege.cache(Side::Decode);
    let origins = Origins::new();
    siege.lay(async || {
        let owner = siege.agent("decode-0", &cache, &RANKS);
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut pusher = [Peer::start(siege, "prefill-0", &RANKS[..2], incarnation).await];
            let (mut killer, mut took, mut requests): (Option<Killer>, _, _) = (None, None, 0);
            loop {
                let request = siege.request();
                cache.clear();
                let openings = open(&owner, &cache, &RANKS, request, Direction::Push).await;
                let ticket = ticket_of(&owner, request, Direction::Push);
                if let Some(took) = took.take() {
                    killer = Some(siege.kill(pusher.each_ref(), took));
                }
                let began = Instant::now();
                pusher[0]
                    .process
                    .say(&format!("move {request} {}", ticket.expose()));
                let said = pusher[0].process.hear().await;
                let news = ends(openings, &cache, request).await;
                match news.as_str() {
                    "completed" => origins.check(&cache, request, &RANKS).unwrap(),
                    _ => {
                        let sum = cache.checksum();
                        sleep(LATE).await;
                        assert_eq!(
                            cache.checksum(),
                            sum,
                            "round {round}: written after the end"
                        );
                    }
                }
                if said.is_none() {
                    siege.note(news);
                    break;
                }
                assert_eq!(
                    (said, news),
                    (Some(format!("moved {request}")), "completed".into())
                );
                if killer.as_ref().is_some_and(|killer| !killer.is_waiting()) {
                    siege.note("idle".to_owned());
                    break;
                }
                if killer.is_none() {
                    requests += 1;
                    // The first has made the connections as well.
                    took = (requests > 1).then(|| began.elapsed());
                }
            }
            killer.unwrap().wait();
            drop(pusher);
            idle(&owner).await;
            siege.over(round);
        }
        owner.shutdown(Duration::from_secs(1)).await;
    });
}

const RANKS: [Rank; 4] = [Rank(0), Rank(1), Rank(2), Rank(3)];

async fn move_it(
    agent: &Agent,
    direction: Direction,
    request: PullRequest,
) -> Result<PullReport, TransferError> {
    match direction {
        Direction::Pull => agent.pull(request).await,
        Direction::Push => agent.push(request).await,
    }
}

/// Leases the blocks of a request, or opens them.
async fn open(
    owner: &Agent,
    cache: &Cache,
    ranks: &[Rank],
    request: u64,
    direction: Direction,
) -> Vec<Lease> {
    let mut leases = Vec::new();
    for &rank in ranks {
        let lease = lease_of(cache.side(), rank, request);
        leases.push(cluster::open(owner, direction, lease).await);
    }
    leases
}

/// Waits until leases have ended, all of them soon and with their blocks; how the last one did that was
/// not completed.
async fn ends(leases: Vec<Lease>, cache: &Cache, request: u64) -> String {
    let mut news = LeaseEnd::Completed;
    for lease in leases {
        let ended = timeout(SOON, lease.ended()).await;
        let LeaseOutcome { end, tables } = ended.expect("a lease does not end").unwrap();
        assert_eq!(tables, cache.side().tables(request));
        if end != LeaseEnd::Completed {
            news = end;
        }
    }
    news.to_string()
}

/// The kind of an error that a dead peer may lead to.
fn kind(error: &TransferError) -> String {
    match error {
        TransferError::Job(JobError::Unreachable { .. }) => "unreachable".to_owned(),
        TransferError::Job(JobError::Failed { failure, .. }) => format!("failed: {failure}"),
        TransferError::Job(JobError::Refused { refusal, .. }) => format!("refused: {refusal}"),
        other => panic!("{other}"),
    }
}

/// The one path that all transfers of a test take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Shared,
}

impl Way {
    /// Memory for it, of sources above all.
    fn cache(way: Option<Self>, side: Side) -> Cache {
        match way {
            Some(Self::Shared) if side == Side::Prefill => Cache::lendable(side),
            _ => Cache::new(side),
        }
    }

    /// Whether all bytes have taken it.
    fn is_of(way: Option<Self>, report: &PullReport) -> Result<(), String> {
        let path = match way {
            None => return Ok(()),
            Some(Self::Ring) => TakenPath::Ring,
            Some(Self::Shared) => TakenPath::Shared,
        };
        match report.routes.iter().all(|route| route.path == path) {
            true => Ok(()),
            false => Err(format!("{report:?} where it was to be {path}")),
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        [Self::Ring, Self::Shared]
            .into_iter()
            .find(|way| name == way.name())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Shared => "shared",
        }
    }
}

/// What all rounds of a test share.
struct Siege {
    way: Option<Way>,
    folder: TempDir,
    chance: Cell<u64>,
    requests: Cell<u64>,
    lives: Cell<u64>,
    news: Cell<BTreeMap<String, u64>>,
    before: Cell<Option<(Belongings, u64)>>,
    seed: u64,
}

impl Siege {
    /// Of transfers that take all the paths that there are in turn, or one of them.
    fn new(test: u64, way: Option<Way>) -> Self {
        let folder = TempDir::new().unwrap();
        let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
        authority.save(folder.path()).unwrap();
        for name in ["prefill-0", "prefill-1", "decode-0", "decode-1"] {
            let agent = AgentId::new(name).unwrap();
            let identity = authority.issue(&agent, Roles::all()).unwrap();
            identity.save(folder.path()).unwrap();
        }
        let seed = number("TRANSLOAD_TEST_SEED", 0x5EED) + test;
        Self {
            way,
            folder,
            chance: Cell::new(seed),
            requests: Cell::default(),
            lives: Cell::default(),
            news: Cell::default(),
            before: Cell::default(),
            seed,
        }
    }

    /// Runs a test with a runtime of its own, and counts what it leaves.
    fn lay(&self, test: impl AsyncFnOnce()) {
        let _one_at_a_time = alone();
        let began = Instant::now();
        let empty = Belongings::count();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(test());
        let rounds = number("TRANSLOAD_TEST_KILLS", ROUNDS);
        let seconds = began.elapsed().as_secs_f64();
        let news = self.news.take();
        println!(
            "{rounds} rounds of seed {:#x} in {seconds:.1} s: {news:?}",
            self.seed
        );
        // Whatever the first runtime of a process keeps (its pipe for signals) is not ours.
        let most = Belongings {
            descriptors: empty.descriptors + 3,
            ..empty
        };
        most.wait_for();
    }

    fn rounds(&self) -> impl Iterator<Item = u64> {
        0..WARM + number("TRANSLOAD_TEST_KILLS", ROUNDS)
    }

    fn agent(&self, name: &str, cache: &Cache, ranks: &[Rank]) -> Agent {
        let identity = load(self.folder.path(), name);
        let ranks = ranks.iter().copied();
        cache.agent(identity, ranks, Incarnation::new(1, 1), impatient())
    }

    /// A new life.
    fn incarnation(&self) -> Incarnation {
        self.lives.set(self.lives.get() + 1);
        Incarnation::new(self.lives.get(), self.draw())
    }

    /// A new request.
    fn request(&self) -> u64 {
        loop {
            self.requests.set(self.requests.get() + 1);
            let request = self.requests.get();
            // The first two of four take the network only.
            if self.way.is_none() || request % 4 >= 2 {
                return request;
            }
        }
    }

    fn cache(&self, side: Side) -> Cache {
        Way::cache(self.way, side)
    }

    fn is_way_of(&self, report: &PullReport) -> Result<(), String> {
        Way::is_of(self.way, report)
    }

    fn draw(&self) -> u64 {
        let mut chance = Chance(self.chance.get());
        let drawn = chance.draw();
        self.chance.set(chance.0);
        drawn
    }

    /// Kills one or all of some peers at some moment of a request. `took` is how
    /// long one took without.
    fn kill<const N: usize>(&self, peers: [&Peer; N], took: Duration) -> Killer {
        let drawn = self.draw() as usize % (N + 1);
        let chosen = peers.iter().enumerate();
        let chosen = chosen.filter(|(i, _)| drawn == N || *i == drawn);
        let victims = chosen.map(|(_, peer)| peer.process.id()).collect();
        Killer::start(victims, took.mul_f64((self.draw() % 800) as f64 / 1000.0))
    }

    fn note(&self, news: String) {
        let mut all = self.news.take();
        *all.entry(news).or_default() += 1;
        self.news.set(all);
    }

    /// Nothing more is there after a round than there was after the first ones.
    fn over(&self, round: u64) {
        match self.before.get() {
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
                assert!(
                    now < resident + (64 << 10),
                    "{now} KiB, once it was {resident}"
                );
            }
        }
    }
}

/// Threads that copied, or emptied a ring, stay for another ten seconds in case that there is more to do.
/// So some more may be there after a round; one that is lost in each of them shows after a few, and each
/// one in the end, when there must be none.
const IDLE_THREADS: usize = 6;

/// How many rounds an ordinary run takes, in each of the tests; each is about two seconds.
const ROUNDS: u64 = 3;

fn number(variable: &str, otherwise: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

/// Kills, after a while.
struct Killer {
    victims: Vec<u32>,
    thread: JoinHandle<()>,
}

impl Killer {
    fn start(victims: Vec<u32>, after: Duration) -> Self {
        let all = victims.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(after);
            for victim in all {
                let victim = Pid::from_raw(victim.try_into().unwrap()).unwrap();
                kill_process(victim, Signal::KILL).unwrap();
            }
        });
        Self { victims, thread }
    }

    fn is_waiting(&self) -> bool {
        !self.thread.is_finished()
    }

    fn wait(self) -> Vec<u32> {
        self.thread.join().unwrap();
        self.victims
    }
}

/// Another process with an agent.
struct Peer {
    process: Other,
    name: &'static str,
    port: u16,
    owner: DeploymentDigest,
}

impl Peer {
    async fn start(
        siege: &Siege,
        name: &'static str,
        ranks: &[Rank],
        incarnation: Incarnation,
    ) -> Self {
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.0.to_string()).collect();
        let mut process = Other::start(
            "other_process",
            &[
                (
                    "TRANSLOAD_TEST_FOLDER",
                    siege.folder.path().to_str().unwrap(),
                ),
                ("TRANSLOAD_TEST_NAME", name),
                ("TRANSLOAD_TEST_RANKS", &ranks.join(",")),
                ("TRANSLOAD_TEST_LIFE", &incarnation.0.to_string()),
                ("TRANSLOAD_TEST_WAY", siege.way.map_or("any", Way::name)),
            ],
        );
        let said = process.hear().await.expect("it has started");
        let (port, digest) = said.split_once(' ').unwrap();
        let owner = |i| u8::from_str_radix(&digest[2 * i..2 * i + 2], 16).unwrap();
        Self {
            process,
            name,
            port: port.parse().unwrap(),
            owner: DeploymentDigest(std::array::from_fn(owner)),
        }
    }

    fn address(&self) -> RankAddress {
        RankAddress {
            agent: AgentId::new(self.name).unwrap(),
            host: "127.0.0.1".to_owned(),
            port: self.port,
        }
    }

    /// One that was not killed has to end in good order.
    fn ended(self, victims: &[u32], round: u64) {
        if !victims.contains(&self.process.id()) {
            assert!(
                self.process.ended(),
                "round {round}: {} was not content",
                self.name
            );
        }
    }
}

fn load(folder: &Path, name: &str) -> Identity {
    Identity::load_agent(folder, &AgentId::new(name).unwrap()).unwrap()
}

/// The other process: leases what it is told to, or pulls or pushes, until its input ends.
#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn other_process() {
    let variable = |name| std::env::var(name).unwrap();
    let name = variable("TRANSLOAD_TEST_NAME");
    let (side, direction) = match name.starts_with("prefill") {
        true => (Side::Prefill, Direction::Push),
        false => (Side::Decode, Direction::Pull),
    };
    let ranks = variable("TRANSLOAD_TEST_RANKS");
    let ranks: Vec<_> = ranks
        .split(',')
        .map(|rank| Rank(rank.parse().unwrap()))
        .collect();
    let incarnation = Incarnation(variable("TRANSLOAD_TEST_LIFE").parse().unwrap());
    let way = Way::of_name(&variable("TRANSLOAD_TEST_WAY"));
    let cache = Way::cache(way, side);
    let origins = (side == Side::Decode).then(Origins::new);
    let identity = load(Path::new(&variable("TRANSLOAD_TEST_FOLDER")), &name);
    let agent = cache.agent(identity, ranks.clone(), incarnation, impatient());
    let digest = agent.deployment_digest();
    let digest: String = digest.0.iter().map(|byte| format!("{byte:02x}")).collect();
    say(&format!("{} {digest}", agent.control_addr().port()));

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut lines = heard();
        let mut leases = (Vec::new(), 0);
        while let Some(line) = lines.recv().await {
            let words: Vec<_> = line.split(' ').collect();
            let request = words[1].parse().unwrap();
            if words[0] == "lease" {
                ends(std::mem::take(&mut leases.0), &cache, leases.1).await;
                cache.fill(request);
                leases = (
                    open(&agent, &cache, &ranks, request, Direction::Pull).await,
                    request,
                );
                say(&format!("leased {request}"));
                continue;
            }
            let ticket = Ticket::from_text(words[2]).unwrap();
            match direction {
                Direction::Pull => cache.clear(),
                Direction::Push => cache.fill(request),
            }
            let moving = transfer_of(side, &ranks, ticket, request);
            let moved = move_it(&agent, direction, moving).await;
            let right = match (&moved, &origins) {
                (Ok(report), Some(origins)) => origins
                    .check(&cache, request, &ranks)
                    .and_then(|()| Way::is_of(way, report)),
                (Ok(report), None) => Way::is_of(way, report),
                _ => Ok(()),
            };
            say(&match (moved, right) {
                (_, Err(why)) => format!("wrong: {why}"),
                (Ok(_), Ok(())) => format!("moved {request}"),
                (Err(error), _) => format!("failed: {}", kind(&error)),
            });
        }
        ends(leases.0, &cache, leases.1).await;
        unused(&agent).await;
        agent.shutdown(Duration::from_secs(1)).await;
    });
}

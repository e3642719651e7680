//! Servers that are killed and started again while clients are served. Every request that could be saved is saved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use transload_test_servers::{Fake, Process};
use transload_tests::process::{Chance, mix};

use super::answer::{Connection, Got};
use super::client::{Verdict, judge, request};
use super::fakes::{self, Known, Role};
use super::plan::{Connector, Fault, Mode, Named, Plan, Route, Setting};
use super::world::Place;

const SERVERS: usize = 3;

const CLIENTS: u64 = 16;

#[derive(Default)]
struct Kills {
    begun: AtomicU64,
    done: AtomicU64,
}

/// Sends requests while servers die and come back, one at a time; what should not have happened.
pub(crate) async fn weather(requests: u64, seed: u64) -> Vec<String> {
    let setting = Setting { mode: Mode::Proxy, connector: Connector::NixlV2, chunk: None };
    let known = Known::new(setting, seed, 40);
    let mut servers = Vec::new();
    for role in [Role::Prefill, Role::Decode] {
        for _ in 0..SERVERS {
            servers.push(fakes::start(role, &known));
        }
    }
    let urls = |from: usize| servers[from..from + SERVERS].iter().map(Fake::url).collect::<Vec<_>>().join(",");
    let mut process = Process::start(&[
        "proxy".into(),
        "--listen=127.0.0.1:0".into(),
        "--admin=127.0.0.1:0".into(),
        format!("--prefill={}", urls(0)),
        format!("--decode={}", urls(SERVERS)),
    ]);
    let (clients, admin) = process.addresses().await;
    let closed = admin.expect("an admin address");
    let place = Arc::new(Place { setting, address: clients[0], prefill: Vec::new(), closed, known });
    let kills = Arc::new(Kills::default());
    let over = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn(kill(servers, kills.clone(), over.clone(), seed));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (place, kills) = (place.clone(), kills.clone());
        clients.spawn(async move {
            let mut met = BTreeMap::<_, u64>::new();
            for number in (client..requests).step_by(CLIENTS as usize) {
                let chance = Chance(mix(seed) ^ mix(number));
                *met.entry(ask(&place, &kills, number, chance).await).or_default() += 1;
            }
            met
        });
    }
    let mut met = BTreeMap::<_, u64>::new();
    for client in clients.join_all().await {
        for (outcome, count) in client {
            *met.entry(outcome).or_default() += count;
        }
    }
    over.store(true, Ordering::SeqCst);
    killer.await.unwrap();
    let (kills, seconds) = (kills.done.load(Ordering::SeqCst), start.elapsed().as_secs());
    println!("{requests} requests, {kills} kills, seed {seed}, {seconds} s: {met:?}");
    if kills < 2 {
        place.known.fault(format!("only {kills} servers were killed"));
    }
    place.known.faults()
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Answered,
    /// It got an error or nothing, though at most one server died during it.
    Lost,
    /// It broke off after its client had received a part.
    CutInHalf,
    /// Several servers died during it.
    Unlucky,
}

async fn ask(place: &Place, kills: &Kills, number: u64, mut chance: Chance) -> Outcome {
    let plan = Plan {
        number,
        route: [Route::Completions, Route::Chat][chance.below(2) as usize],
        stream: chance.below(2) == 0,
        named: Named::Nothing,
        prefill: Vec::new(),
        // Its head and its first bytes come, and then the rest of it takes some time.
        decode: vec![[Fault::Slow, Fault::Fine][chance.below(2) as usize]; 4],
        tokens: 5 + chance.below(20) as usize,
        misses: false,
        steers: false,
    };
    let request = request(&plan, place, &mut chance);
    place.known.expect(number);
    let before = kills.done.load(Ordering::SeqCst);
    let got = async {
        let connected = Connection::new(place.address).await;
        let mut connection = connected.map_err(|error| error.to_string())?;
        let written = connection.stream().write_all(&request).await;
        written.map_err(|error| error.to_string())?;
        connection.answer().await
    };
    let got = got.await;
    let died = kills.begun.load(Ordering::SeqCst) - before;
    place.known.forget(number);
    let judged = got.and_then(|got| match got {
        Got::Broken(bytes) if bytes > 0 && died > 0 => Ok(Outcome::CutInHalf),
        got => judge(&plan, place.setting, &got).map(|verdict| match verdict {
            Verdict::Answer => Outcome::Answered,
            Verdict::Error | Verdict::Broken => Outcome::Lost,
        }),
    });
    match judged {
        Ok(Outcome::Lost) | Err(_) if died > 1 => Outcome::Unlucky,
        Ok(Outcome::Lost) => {
            place.known.fault(format!("lost: {plan:?}"));
            Outcome::Lost
        }
        Ok(outcome) => outcome,
        Err(wrong) => {
            place.known.fault(format!("lost: {wrong}, while {died} died\nof {plan:?}"));
            Outcome::Lost
        }
    }
}

async fn kill(mut servers: Vec<Fake>, kills: Arc<Kills>, over: Arc<AtomicBool>, seed: u64) {
    let mut chance = Chance(seed);
    while !over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(200 + chance.below(300))).await;
        let index = chance.below(servers.len() as u64) as usize;
        let server = &mut servers[index];
        kills.begun.fetch_add(1, Ordering::SeqCst);
        server.kill().await;
        kills.done.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(chance.below(600))).await;
        server.restart().await;
    }
}

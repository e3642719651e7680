//! The other process: it leases, pulls or pushes on command, until its input ends.

use std::path::Path;
use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Cache, Origins, Side, TOKENS, lease_of, pushed, transfer_of, unused};
use transload_tests::fake_cuda::Driver;
use transload_tests::process::{heard, say};
use transload_transfer::device::Gpu;
use transload_transfer::{Agent, Direction, Incarnation, Lease, PullReport, PullRequest, Ticket, TransferError, wire};

use crate::request::{ends, kind, open};
use crate::siege::{choose_path, load, options, took_path};

/// The fault of a GPU during the next transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The GPU stalls, and the process reports that.
    Holds,
    /// The GPU is lost to this process.
    Loses,
}

/// The driver's error after a kernel has failed, when the context cannot be used any more.
const LAUNCH_FAILED: u32 = 719;

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Holds => "holds",
            Fault::Loses => "loses",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let all = [Fault::Holds, Fault::Loses];
        all.into_iter().find(|fault| fault.name() == name)
    }

    fn strike(self) {
        let fake = Driver::load().fake().unwrap();
        match self {
            Fault::Loses => fake.fail("cuLaunchKernel", 2, LAUNCH_FAILED),
            Fault::Holds => {
                let before = fake.calls("cuLaunchKernel");
                fake.hold_at("cuLaunchKernel");
                drop(std::thread::spawn(move || {
                    while fake.calls("cuLaunchKernel") == before {
                        std::thread::yield_now();
                    }
                    say(self.name());
                }));
            }
        }
    }
}

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
    let ranks: Vec<_> = ranks.split(',').map(|rank| Rank(rank.parse().unwrap())).collect();
    let incarnation = Incarnation(variable("TRANSLOAD_TEST_LIFE").parse().unwrap());
    let path = variable("TRANSLOAD_TEST_PATH");
    let paths = [wire::Path::QUIC, wire::Path::RING, wire::Path::DEVICE];
    let path = paths.into_iter().find(|known| known.to_string() == path);
    // Its driver, before anybody else looks for one.
    let gpu = (variable("TRANSLOAD_TEST_ON_GPU") == "1").then(|| {
        let _driver = Driver::load();
        Gpu::open(0).unwrap()
    });
    let cache = Cache::on(side, gpu.as_ref());
    let origins = (side == Side::Decode).then(Origins::new);
    let identity = load(Path::new(&variable("TRANSLOAD_TEST_FOLDER")), &name);
    let patience = variable("TRANSLOAD_TEST_PATIENCE").parse().unwrap();
    let patience = (patience > 0).then_some(Duration::from_secs(patience));
    let agent = cache.agent(identity, ranks.clone(), incarnation, options(patience));
    let digest = agent.deployment_digest();
    let digest: String = digest.0.iter().map(|byte| format!("{byte:02x}")).collect();
    say(&format!("{} {digest}", agent.control_addr().port()));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut lines = heard();
        let mut leases = (Vec::new(), 0);
        let mut fault = None;
        while let Some(line) = lines.recv().await {
            let words: Vec<_> = line.split(' ').collect();
            if let [fault_of_gpu] = words[..] {
                fault = Fault::of(fault_of_gpu);
                continue;
            }
            let request = words[1].parse().unwrap();
            if words[0] == "lease" {
                ends(std::mem::take(&mut leases.0), &cache, leases.1).await;
                cache.fill(request);
                fault.take().into_iter().for_each(Fault::strike);
                leases = (open(&agent, &cache, &ranks, request, Direction::Pull).await, request);
                say(&format!("leased {request}"));
                continue;
            }
            if words[0] == "begin" {
                cache.fill(request);
                leases = (begin(&agent, side, &ranks, request).await, request);
                say(&format!("begun {request}"));
                continue;
            }
            if words[0] == "finish" {
                for lease in &leases.0 {
                    lease.finish_prefill().await.unwrap();
                }
                continue;
            }
            let ticket = Ticket::from_text(words[2]).unwrap();
            match direction {
                Direction::Pull => cache.clear(),
                Direction::Push => cache.fill(request),
            }
            fault.take().into_iter().for_each(Fault::strike);
            let mut moving = transfer_of(side, &ranks, ticket, request);
            choose_path(path, &mut moving);
            let moved = move_it(&agent, direction, moving).await;
            let right = match (&moved, &origins) {
                (Ok(report), Some(origins)) => {
                    origins.check(&cache, request, &ranks).and_then(|()| took_path(path, report))
                }
                (Ok(report), None) => took_path(path, report),
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

/// Leases blocks of which the first layer is prefilled, and the others not yet.
async fn begin(agent: &Agent, side: Side, ranks: &[Rank], request: u64) -> Vec<Lease> {
    let mut leases = Vec::new();
    for &rank in ranks {
        let mut lease = lease_of(side, rank, request);
        lease.prefilled = false;
        (lease.ttl, lease.hard_bound) = (Duration::from_secs(60), Duration::from_secs(60));
        let lease = agent.lease(lease).await.unwrap();
        lease.ready(0, TOKENS).await.unwrap();
        leases.push(lease);
    }
    leases
}

async fn move_it(agent: &Agent, direction: Direction, request: PullRequest) -> Result<PullReport, TransferError> {
    match direction {
        Direction::Pull => agent.pull(request).await,
        Direction::Push => agent.push(pushed(request)).await,
    }
}

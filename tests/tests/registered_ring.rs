//! Rings whose slots a GPU fills and empties itself, on the fake driver.
#![cfg(target_os = "linux")]

use std::fs;
use std::thread::sleep as wait;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::all_end;
use transload_tests::fake_cuda::{Fake, run};
use transload_tests::pair::{DEEP, Pair};
use transload_transfer::device::Gpu;
use transload_transfer::internal::slots::RingShape;
use transload_transfer::{
    AgentOptions, Direction, Lease, LeaseEnd, LeaseRequest, LeaseSetId, Path, PullRequest, Transfer,
};

/// The sides that have their caches on the GPU.
const WHERE: [[bool; 2]; 3] = [[true, true], [true, false], [false, true]];

const SET: LeaseSetId = LeaseSetId([1; 16]);

/// The driver's error for memory that it cannot register.
const NOT_SUPPORTED: u32 = 801;

/// A time limit far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn pair(gpu: &Gpu, [src, dst]: [bool; 2]) -> Pair {
    Pair::deep_on_gpus([src.then_some(gpu), dst.then_some(gpu)])
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("done in time")
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("{what}");
}

/// Returns a pull of everything that the source has leased, over the ring.
fn request(pair: &Pair, set: LeaseSetId) -> PullRequest {
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = Path::RING.into();
    request
}

async fn completed(leases: Vec<Lease>) {
    for lease in leases {
        assert_eq!(soon(lease.ended()).await.unwrap().end, LeaseEnd::Completed);
    }
}

async fn pull(pair: &Pair, set: LeaseSetId) {
    let leases = pair.leases(&pair.src, set, false).await;
    let report = soon(pair.dst.agent.pull(request(pair, set))).await.unwrap();
    assert!(report.routes.iter().all(|route| route.path == Path::RING));
    assert!(pair.found() == pair.expected(), "other bytes");
    completed(leases).await;
}

/// Returns how many bytes all routes have, and how many sides of them are on the GPU.
fn bytes(pair: &Pair, on: [bool; 2]) -> u64 {
    let bytes = pair.tokens * u64::from(DEEP) * 4 * 39 * 2 * 2;
    bytes * on.map(u64::from).iter().sum::<u64>()
}

#[test]
fn copy_engines_reach_the_slots_of_a_ring() {
    run("copy_engines_reach_the_slots_of_a_ring", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let live = fake.live();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                let pair = pair(&gpu, on);
                let before = fake.registered_bytes();
                pull(&pair, SET).await;
                // Between two GPUs, and not with the host, much has to be under way.
                let shape = match on {
                    [true, true] => RingShape::BETWEEN_DEVICES,
                    _ => RingShape::DEFAULT,
                };
                assert!(mapped_rings().contains(&shape.bytes()), "{on:?}");
                // Each byte crosses the bus once, between the slot and the GPU.
                let crossed = fake.registered_bytes() - before;
                assert_eq!(crossed, bytes(&pair, on), "{on:?}");
            }
        });
        until_all_is_given_back(&fake, live);
    });
}

/// Waits until everything is released: the rings, and all that was registered for them.
fn until_all_is_given_back(fake: &Fake, live: u64) {
    for _ in 0..1_000 {
        if fake.live() == live {
            return;
        }
        wait(Duration::from_millis(10));
    }
    panic!("{} things are left, {live} were there", fake.live());
}

/// A driver may refuse the memory of a ring: bytes then go through buffers of the GPU's own.
#[test]
fn rings_that_a_driver_refuses_work_all_the_same() {
    run("rings_that_a_driver_refuses_work_all_the_same", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            // Each side asks once.
            for refused in [2, 1] {
                let pair = pair(&gpu, [true, true]);
                let before = fake.registered_bytes();
                for nth in 1..=refused {
                    fake.fail("cuMemHostRegister_v2", nth, NOT_SUPPORTED);
                }
                pull(&pair, SET).await;
                let crossed = fake.registered_bytes() - before;
                assert_eq!(crossed > 0, refused < 2, "{refused}: {crossed} bytes");
                fake.fail("cuMemHostRegister_v2", 0, 0);
            }
        });
    });
}

/// Returns the bytes of each ring that this process has mapped.
fn mapped_rings() -> Vec<u64> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|map| map.contains("memfd:transload-ring"));
    let bytes = |map: &str| {
        let (start, end) = map.split(' ').next()?.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).ok();
        Some(at(end)? - at(start)?)
    };
    rings.map(|map| bytes(map).unwrap()).collect()
}

/// Memory of a ring stays mapped for as long as a driver considers it registered. Otherwise other devices would copy to
/// its pages, whatever is mapped there later.
#[test]
fn a_ring_that_stays_registered_stays_mapped() {
    const NAME: &str = "a_ring_that_stays_registered_stays_mapped";
    run(NAME, &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let live = fake.live();
        let runtime = Runtime::new().unwrap();
        for stays in [false, true] {
            runtime.block_on(async {
                let pair = pair(&gpu, [true, true]);
                pull(&pair, SET).await;
                assert_eq!(mapped_rings().len(), 2, "one, at both ends");
                if stays {
                    fake.fail("cuMemHostUnregister", 1, NOT_SUPPORTED);
                }
            });
            until_all_is_given_back(&fake, live + u64::from(stays));
            let unmapped = || mapped_rings().len() == usize::from(stays);
            runtime.block_on(until("the others are unmapped", unmapped));
        }
        still_works(&gpu);
    });
}

const TWO_GPUS: (&str, &str) = ("FAKE_CUDA_DEVICES", "2");

/// Returns the pull of some ranks of the destination.
fn request_of(pair: &Pair, set: LeaseSetId, ranks: [u32; 2]) -> PullRequest {
    let mut request = request(pair, set);
    request.ranks = ranks.map(Rank).into();
    request
}

/// Ranks of an agent on two GPUs share the ring with a peer, which is registered once for both.
#[test]
fn ranks_on_two_gpus_share_a_ring() {
    run("ranks_on_two_gpus_share_a_ring", &[TWO_GPUS], |fake| {
        let (first, second) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let both: &[&Gpu] = &[&first, &second];
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                let gpus = on.map(|on| if on { both } else { &[] });
                let pair = Pair::deep_on_several(gpus, AgentOptions::default());
                let (before, registered) = (fake.registered_bytes(), fake.calls("cuMemHostRegister_v2"));
                pull(&pair, SET).await;
                let crossed = fake.registered_bytes() - before;
                assert_eq!(crossed, bytes(&pair, on), "{on:?}");
                let registered = fake.calls("cuMemHostRegister_v2") - registered;
                let sides = on.map(u64::from).iter().sum::<u64>();
                assert_eq!(registered, sides, "{on:?}");
            }
        });
    });
}

/// If one GPU is lost, the other one keeps using the ring, even if the ring was registered with the lost GPU's context.
#[test]
fn a_lost_gpu_leaves_a_shared_ring_to_the_other() {
    const NAME: &str = "a_lost_gpu_leaves_a_shared_ring_to_the_other";
    run(NAME, &[TWO_GPUS], |fake| {
        let (first, second) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        Runtime::new().unwrap().block_on(async {
            let gpus: [&[&Gpu]; 2] = [&[&first, &second], &[]];
            let pair = Pair::deep_on_several(gpus, AgentOptions::default());
            let leases = pair.leases(&pair.src, SET, false).await;
            const LAUNCH_FAILED: u32 = 719;
            fake.fail("cuMemcpyDtoHAsync_v2", 3, LAUNCH_FAILED);
            // What these ranks need is on the first GPU.
            let lost = soon(pair.dst.agent.pull(request_of(&pair, SET, [0, 1]))).await;
            let error = lost.unwrap_err();
            assert_eq!(error.kind(), "device_lost", "{error}");
            let mut ends = Vec::new();
            for lease in leases {
                ends.push(soon(lease.ended()).await.unwrap().end);
            }
            assert_eq!(ends, [LeaseEnd::DeviceLost, LeaseEnd::Cancelled]);

            let set = LeaseSetId([2; 16]);
            let tables = pair.src.tables.clone();
            let lease = LeaseRequest::new(set, Rank(1), tables, pair.content, pair.tokens);
            let lease = pair.src.agent.lease(lease).await.unwrap();
            let (before, registered) = (fake.registered_bytes(), fake.calls("cuMemHostRegister_v2"));
            let report = soon(pair.dst.agent.pull(request_of(&pair, set, [2, 3]))).await;
            let report = report.unwrap();
            assert!(report.routes.iter().all(|route| route.path == Path::RING));
            assert!(pair.found()[2..] == pair.expected()[2..], "other bytes");
            let crossed = fake.registered_bytes() - before;
            assert_eq!(crossed, bytes(&pair, [true, false]) / 2);
            let again = fake.calls("cuMemHostRegister_v2") - registered;
            assert_eq!(again, 0, "the ring is the same");
            drop(lease);
        });
    });
}

/// A stalled GPU keeps some slots of a shared ring. The other GPU's sends wait until the stalled transfers have failed,
/// and then use the remaining slots. Received slots are released in order, so receives take another path once the ring is
/// closed.
#[test]
fn a_gpu_that_stands_still_gives_a_shared_ring_up() {
    const NAME: &str = "a_gpu_that_stands_still_gives_a_shared_ring_up";
    run(NAME, &[TWO_GPUS, SLOW[0]], |fake| {
        let (first, second) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let both: &[&Gpu] = &[&first, &second];
        let mut options = AgentOptions::default();
        // Long enough for the GPU that goes on, on a machine that others use.
        options.wire.device_stall = Duration::from_secs(2);
        options.quic.stall_timeout = Duration::from_secs(6);
        Runtime::new().unwrap().block_on(async {
            // By their rank at the source, or at the destination.
            for (gpus, still, others) in [([both, &[]], [0, 1], [2, 3]), ([&[], both], [0, 2], [1, 3])] {
                let pair = Pair::deep_on_several(gpus, options.clone());
                let other = LeaseSetId([2; 16]);
                let _stuck = pair.leases(&pair.src, SET, false).await;
                let _leases = pair.leases(&pair.src, other, false).await;
                let (agent, any) = (&pair.dst.agent, [Path::QUIC, Path::RING]);
                let pull = |set, ranks| {
                    let mut request = request_of(&pair, set, ranks);
                    request.paths = any.into_iter().collect();
                    soon(agent.pull(request))
                };
                let before = fake.registered_bytes();
                fake.hold_at("registered copy");
                let hold_and_pull = async {
                    until("bytes cross the bus", || fake.registered_bytes() > before).await;
                    fake.hold_device(0, true);
                    fake.hold(false);
                    pull(other, others).await
                };
                let (stalled, went_on) = tokio::join!(pull(SET, still), hold_and_pull);
                let error = stalled.unwrap_err();
                assert_eq!(error.kind(), "device_stalled", "{error}");
                let report = went_on.unwrap();
                let mut paths = report.routes.iter().map(|route| route.path);
                assert!(gpus[0].is_empty() || paths.all(|path| path == Path::RING));
                fake.hold_device(0, false);
                for rank in others.map(|rank| rank as usize) {
                    assert!(pair.found()[rank] == pair.expected()[rank], "rank {rank}");
                }
            }
        });
        still_works(&first);
    });
}

#[test]
fn layers_leave_as_they_are_ready() {
    run("layers_leave_as_they_are_ready", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            for (on, invited) in [(WHERE[0], false), (WHERE[1], true), (WHERE[2], false)] {
                let pair = pair(&gpu, on);
                let mut leases = Vec::new();
                for rank in [Rank(0), Rank(1)] {
                    let tables = pair.src.tables.clone();
                    let mut lease = LeaseRequest::new(SET, rank, tables, pair.content, pair.tokens);
                    lease.prefilled = false;
                    leases.push(pair.src.agent.lease(lease).await.unwrap());
                }
                let mut request = request(&pair, SET);
                request.request.by_layer = true;
                let opened = LeaseSetId([2; 16]);
                request.into = invited.then(|| pair.ticket(&pair.dst, opened, Direction::Push));
                let pull = pair.dst.agent.start_pull(request).await.unwrap();
                for layer in 0..DEEP {
                    for lease in &leases {
                        lease.ready(layer, pair.tokens).await.unwrap();
                    }
                }
                for lease in &leases {
                    lease.finish_prefill().await.unwrap();
                }
                soon(pull.finish()).await.unwrap();
                assert!(pair.found() == pair.expected(), "{on:?}");
                completed(leases).await;
            }
        });
    });
}

#[test]
fn pushes_reach_every_byte() {
    run("pushes_reach_every_byte", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                let pair = pair(&gpu, on);
                let expected = pair.expected();
                let openings = pair.leases(&pair.dst, SET, true).await;
                let ticket = pair.ticket(&pair.dst, SET, Direction::Push);
                let mut request = pair.push_request(ticket);
                request.paths = Path::RING.into();
                soon(pair.src.agent.push(request)).await.unwrap();
                completed(openings).await;
                assert!(pair.found() == expected, "{on:?}");
            }
        });
    });
}

/// Makes operations slow enough for other events to happen during them.
const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "3000")];

/// The destination goes while the copy engine writes to its ring: the source's blocks are held until that is over, and so is
/// the memory of the ring.
#[test]
fn a_peer_dies_while_its_ring_is_written_to() {
    run("a_peer_dies_while_its_ring_is_written_to", SLOW, |fake| {
        let gpu = Gpu::open(0).unwrap();
        let live = fake.live();
        Runtime::new().unwrap().block_on(async {
            let (pair, leases, pull) = held_pull(&fake, &gpu, [true, false]).await;
            pair.dst.agent.shutdown(Duration::ZERO).await;
            soon(pull.finish()).await.unwrap_err();
            for lease in &leases {
                lease.cancel().await.unwrap();
            }
            let ended = async {
                all_end(leases, LeaseEnd::Cancelled).await;
            };
            let mut ended = Box::pin(ended);
            assert!(is_pending(&mut ended).await, "the GPU still reads blocks");
            fake.hold(false);
            soon(ended).await;
        });
        until_all_is_given_back(&fake, live);
        still_works(&gpu);
    });
}

/// The source goes while the copy engine reads from its ring.
#[test]
fn a_peer_dies_while_its_ring_is_read() {
    run("a_peer_dies_while_its_ring_is_read", SLOW, |fake| {
        let gpu = Gpu::open(0).unwrap();
        let live = fake.live();
        Runtime::new().unwrap().block_on(async {
            let (pair, leases, pull) = held_pull(&fake, &gpu, [false, true]).await;
            pair.src.agent.shutdown(Duration::ZERO).await;
            is_cancelled(&fake, pull).await;
            drop(leases);
        });
        until_all_is_given_back(&fake, live);
        still_works(&gpu);
    });
}

/// The destination releases no slot, since its GPU is stalled. The source's blocks are released all the same.
#[test]
fn a_peer_releases_no_slot() {
    run("a_peer_releases_no_slot", SLOW, |fake| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            let (_pair, leases, pull) = held_pull(&fake, &gpu, [false, true]).await;
            for lease in leases {
                lease.cancel().await.unwrap();
                assert_eq!(soon(lease.ended()).await.unwrap().end, LeaseEnd::Cancelled);
            }
            is_cancelled(&fake, pull).await;
        });
        still_works(&gpu);
    });
}

/// Cancels a pull, which ends once the GPU continues.
async fn is_cancelled(fake: &Fake, pull: Transfer) {
    // It may have failed already.
    let _ = pull.cancel().await;
    let mut over = Box::pin(pull.finish());
    assert!(is_pending(&mut over).await, "the GPU still writes to blocks");
    fake.hold(false);
    soon(over).await.unwrap_err();
}

/// Starts a pull over a ring that stalls once it has reached a GPU.
async fn held_pull(fake: &Fake, gpu: &Gpu, on: [bool; 2]) -> (Pair, Vec<Lease>, Transfer) {
    let pair = pair(gpu, on);
    let leases = pair.leases(&pair.src, SET, false).await;
    let before = fake.registered_bytes();
    fake.hold_at("registered copy");
    let pull = pair.dst.agent.start_pull(request(&pair, SET)).await;
    until("bytes cross the bus", || fake.registered_bytes() > before).await;
    (pair, leases, pull.unwrap())
}

/// Returns whether work has not ended after a while.
async fn is_pending<T>(work: &mut (impl Future<Output = T> + Unpin)) -> bool {
    timeout(Duration::from_millis(300), work).await.is_err()
}

/// Checks that nothing has used freed memory, for which the driver would have lost the device.
fn still_works(gpu: &Gpu) {
    Runtime::new().unwrap().block_on(async {
        let pair = pair(gpu, [true, true]);
        pull(&pair, LeaseSetId([9; 16])).await;
    });
}

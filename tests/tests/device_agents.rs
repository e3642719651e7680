//! Agents whose caches are in the memory of a GPU, on the fake driver.
#![cfg(target_os = "linux")]

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::cluster::all_end;
use transload_tests::fake_cuda::{Engine, run, run_anywhere};
use transload_tests::pair::{Pair, contents};
use transload_transfer::device::{Gpu, Mark};
use transload_transfer::memory::Access;
use transload_transfer::{
    After, AgentOptions, Direction, LeaseEnd, LeaseRequest, LeaseSetId, Path, PathSet, PullReport, TransferError,
};

/// The sides that have their caches on the GPU.
const WHERE: [[bool; 2]; 3] = [[true, true], [true, false], [false, true]];

/// Returns the paths between them.
fn paths_of(on: [bool; 2]) -> Vec<Path> {
    match on {
        [true, true] => vec![Path::QUIC, Path::RING, Path::DEVICE],
        _ => vec![Path::QUIC, Path::RING],
    }
}

fn pair(gpu: &Gpu, [src, dst]: [bool; 2]) -> Pair {
    Pair::on_gpus([src.then_some(gpu), dst.then_some(gpu)])
}

fn paths(report: &PullReport) -> PathSet {
    report.routes.iter().map(|route| route.path).collect()
}

#[test]
fn pulls_reach_every_byte_from_and_to_a_gpu() {
    run_anywhere("pulls_reach_every_byte_from_and_to_a_gpu", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let fake = driver.fake();
        let live = || fake.as_ref().map(|fake| fake.live());
        let before = live();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                for path in paths_of(on) {
                    let pair = pair(&gpu, on);
                    let set = LeaseSetId([1; 16]);
                    let leases = pair.leases(&pair.src, set, false).await;
                    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
                    let mut request = pair.request(ticket, &pair.dst);
                    request.paths = path.into();
                    let report = pair.dst.agent.pull(request).await.unwrap();
                    assert_eq!(paths(&report), path.into(), "{on:?}");
                    assert_eq!(pair.found(), pair.expected(), "{on:?} over {path:?}");
                    all_end(leases, LeaseEnd::Completed).await;
                }
            }
        });
        // All memories of the pairs were given back, and what was uploaded for their routes.
        for _ in 0..100 {
            if live() == before {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?} things are left, {before:?} were there", live());
    });
}

/// Heads are multiples of 16 B, so nothing moves in shorter units, wherever a header or packets cut the streams.
#[test]
fn streams_that_are_cut_anywhere_move_in_the_longest_units() {
    let name = "streams_that_are_cut_anywhere_move_in_the_longest_units";
    run(name, &[("FAKE_CUDA_DELAY_US", "5")], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let launched = |entries: [&str; 4]| entries.map(|entry| fake.calls(entry));
        let long = || launched(["walk_16", "stream_16", "runs_16", "fold"]);
        let short = || launched(["walk_1", "walk_2", "walk_4", "walk_8"]);
        // Each is launched once when a GPU is opened, so that the driver has loaded it.
        const LOADED: [u64; 4] = [1; 4];
        assert_eq!([long(), short()], [LOADED; 2]);
        Runtime::new().unwrap().block_on(async {
            for (number, on) in WHERE.into_iter().enumerate() {
                for path in paths_of(on) {
                    let gpus = on.map(|on| if on { vec![&gpu] } else { vec![] });
                    let pair = Pair::deep_of_heads(40, [&gpus[0], &gpus[1]], Default::default());
                    let before = long();
                    pull(&pair, number as u8, path.into()).await.unwrap();
                    assert!(long() > before, "{on:?} over {path:?}");
                    assert_eq!(short(), LOADED, "{on:?} over {path:?}");
                }
            }
        });
    });
}

/// The next bytes of a stream are read from the network while earlier ones cross the bus. So a stalled GPU holds two
/// copies of each stream.
#[test]
fn bytes_are_taken_while_others_cross_the_bus() {
    run("bytes_are_taken_while_others_cross_the_bus", &[], |fake| {
        const ROUTES: usize = 4;
        let gpu = Gpu::open(0).unwrap();
        let mut options = AgentOptions::default();
        options.quic.lanes = 1;
        let under_way = || {
            let submitted = fake.calls("cuMemcpyHtoDAsync_v2");
            submitted.saturating_sub(fake.calls("copy done"))
        };
        Runtime::new().unwrap().block_on(async {
            let pair = Pair::deep_on_several([&[], &[&gpu]], options);
            let set = LeaseSetId([8; 16]);
            let _leases = pair.leases(&pair.src, set, false).await;
            let ticket = pair.ticket(&pair.src, set, Direction::Pull);
            let mut request = pair.request(ticket, &pair.dst);
            request.paths = Path::QUIC.into();
            fake.hold_at("cuLaunchKernel");
            let device = async {
                while under_way() <= ROUTES as u64 {
                    sleep(Duration::from_millis(1)).await;
                }
                fake.hold(false);
            };
            let pulled = async { tokio::join!(pair.dst.agent.pull(request), device).0 };
            let report = timeout(Duration::from_secs(60), pulled).await;
            let report = report.expect("two copies of a stream").unwrap();
            assert_eq!(report.routes.len(), ROUTES);
            assert_eq!(pair.found(), pair.expected());
        });
    });
}

/// Pulls, and returns the paths that were used, after this many attempts at most.
async fn pull(pair: &Pair, set: u8, allowed: PathSet) -> Result<(PathSet, u32), TransferError> {
    let set = LeaseSetId([set; 16]);
    let _leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = allowed;
    let report = pair.dst.agent.pull(request).await?;
    assert_eq!(pair.found(), pair.expected());
    let attempts = report.routes.iter().map(|route| route.attempts).max();
    Ok((paths(&report), attempts.unwrap()))
}

/// If all caches are on one GPU, the bytes stay there. Otherwise the next path is used, and the report says so.
#[test]
fn the_shortest_path_is_taken() {
    let two_gpus = &[("FAKE_CUDA_DEVICES", "2")];
    run("the_shortest_path_is_taken", two_gpus, |fake| {
        const NOT_SUPPORTED: u32 = 801;
        let gpus = [0, 1].map(|ordinal| Gpu::open(ordinal).unwrap());
        Runtime::new().unwrap().block_on(async {
            let one = Pair::on_gpus([Some(&gpus[0]), Some(&gpus[0])]);
            let (taken, attempts) = pull(&one, 11, PathSet::ANY).await.unwrap();
            assert_eq!((taken, attempts), (Path::DEVICE.into(), 1));

            let mixed = Pair::on_gpus([Some(&gpus[0]), None]);
            let (taken, attempts) = pull(&mixed, 12, PathSet::LOCAL).await.unwrap();
            assert_eq!((taken, attempts), (Path::RING.into(), 1));
            let refused = pull(&mixed, 13, Path::DEVICE.into()).await.unwrap_err();
            assert!(refused.to_string().contains("device"), "{refused}");

            // GPUs that reach each other share a ring in the memory of the source's.
            let reached = Pair::on_gpus([Some(&gpus[0]), Some(&gpus[1])]);
            let (taken, attempts) = pull(&reached, 17, PathSet::ANY).await.unwrap();
            assert_eq!((taken, attempts), (Path::DEVICE.into(), 1));

            // Of others both have the path, so one attempt finds that it leads nowhere; from then on they know.
            for agent in 1..=2 {
                fake.fail("cuDeviceCanAccessPeer", agent, NOT_SUPPORTED);
            }
            let two = Pair::on_gpus([Some(&gpus[0]), Some(&gpus[1])]);
            let (taken, _) = pull(&two, 14, PathSet::LOCAL).await.unwrap();
            assert_eq!(taken, Path::RING.into());
            let (taken, attempts) = pull(&two, 15, PathSet::ANY).await.unwrap();
            assert_eq!((taken, attempts), (Path::RING.into(), 1));
            let refused = pull(&two, 16, Path::DEVICE.into()).await.unwrap_err();
            assert!(refused.to_string().contains("device"), "{refused}");
        });
    });
}

/// Each function that rings need fails once at each of its calls. Every reported success is correct, if necessary by
/// another path.
#[test]
fn each_call_of_a_ring_may_fail() {
    let no_delays = &[("FAKE_CUDA_DELAY_US", "0")];
    run("each_call_of_a_ring_may_fail", no_delays, |fake| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            let mut others = 0;
            for function in [
                "cuMemGetAllocationGranularity",
                "cuMemCreate",
                "cuMemExportToShareableHandle",
                "cuMemImportFromShareableHandle",
                "cuMemGetAllocationPropertiesFromHandle",
                "cuMemAddressReserve",
                "cuMemMap",
                "cuMemSetAccess",
                "cuMemHostAlloc",
                "cuDeviceGetUuid_v2",
            ] {
                for nth in 1..=2 {
                    const OUT_OF_MEMORY: u32 = 2;
                    fake.fail(function, nth, OUT_OF_MEMORY);
                    let pair = pair(&gpu, [true, true]);
                    let (taken, _) = pull(&pair, 21, PathSet::LOCAL).await.unwrap();
                    fake.fail(function, 0, 0);
                    others += u32::from(taken == Path::RING.into());
                }
            }
            assert!(others > 10, "only {others} went another way");
        });
    });
}

/// A read-only cache is never written, whatever it is registered for.
#[test]
fn a_cache_that_may_only_be_read_is_not_written() {
    run("a_cache_that_may_only_be_read_is_not_written", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            let pair = Pair::on_gpus_with([None, Some(&gpu)], Access::Read);
            let before = pair.found();
            let set = LeaseSetId([7; 16]);
            let _leases = pair.leases(&pair.src, set, false).await;
            let ticket = pair.ticket(&pair.src, set, Direction::Pull);
            let mut request = pair.request(ticket, &pair.dst);
            request.timeout = Duration::from_secs(2);
            pair.dst.agent.pull(request).await.unwrap_err();
            assert_eq!(pair.found(), before);
        });
    });
}

#[test]
fn pushes_reach_every_byte_from_and_to_a_gpu() {
    run_anywhere("pushes_reach_every_byte_from_and_to_a_gpu", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        Runtime::new().unwrap().block_on(async {
            for on in WHERE {
                for path in paths_of(on) {
                    let pair = pair(&gpu, on);
                    let expected = pair.expected();
                    let set = LeaseSetId([2; 16]);
                    let openings = pair.leases(&pair.dst, set, true).await;
                    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
                    let mut request = pair.push_request(ticket);
                    request.paths = path.into();
                    pair.src.agent.push(request).await.unwrap();
                    all_end(openings, LeaseEnd::Completed).await;
                    assert_eq!(pair.found(), expected, "{on:?} over {path:?}");
                }
            }
        });
    });
}

/// An engine that has submitted the computing of blocks, and the reading of others, to the GPU, which does both later.
struct Busy<'a> {
    engine: Engine<'a>,
    gpu: &'a Gpu,
    /// The microseconds that it computes, and then reads. This is longer than a pull takes.
    micros: u32,
}

impl Busy<'_> {
    fn mark(&self) -> Mark {
        // SAFETY: the stream is there until this process ends.
        unsafe { Mark::new(self.gpu, self.engine.stream()).unwrap() }
    }

    /// Fills the caches of the source's ranks after a delay. Until then they are zero.
    fn computes(&self, pair: &Pair) -> Mark {
        for (memory, device) in pair.src.memories.iter().zip(&pair.src.on_gpu) {
            let (start, len) = device.allocation(0).unwrap();
            self.engine.write(start, &vec![0; len as usize]);
            self.engine.spin(self.micros);
            self.engine.write(start, &contents(memory));
        }
        self.mark()
    }

    /// Reads the caches of the destination's ranks after a delay.
    fn reads(&self, pair: &Pair) -> (Mark, Vec<&'static [u8]>) {
        self.engine.spin(self.micros);
        let devices = pair.dst.on_gpu.iter().map(|device| device.allocation(0).unwrap());
        let read = devices.map(|(start, len)| self.engine.read(start, len as usize)).collect();
        (self.mark(), read)
    }
}

/// Pulls from blocks that are computed later into blocks that are read later. Returns whether the pulled bytes were
/// correct, and whether those that were read were.
async fn pull_busy(busy: &Busy<'_>, path: Path, marked: bool) -> (bool, bool) {
    let pair = pair(busy.gpu, [true, true]);
    let (before, expected) = (pair.found(), pair.expected());
    // First one that waits for nothing: to make connections and rings a driver may wait for all streams.
    pull(&pair, 9, path.into()).await.unwrap();
    for (device, bytes) in pair.dst.on_gpu.iter().zip(&before) {
        busy.engine.write(device.allocation(0).unwrap().0, bytes);
    }
    busy.engine.wait();
    assert!(pair.found() == before);
    let after = |mark: Mark| {
        if marked { After::from(mark) } else { After::default() }
    };
    let set = LeaseSetId([3; 16]);
    let computed = busy.computes(&pair);
    let mut leases = Vec::new();
    for rank in (0..pair.src.memories.len() as u32).map(Rank) {
        let tables = pair.src.tables.clone();
        let mut lease = LeaseRequest::new(set, rank, tables, pair.content, pair.tokens);
        lease.after = after(computed.clone());
        leases.push(pair.src.agent.lease(lease).await.unwrap());
    }
    let (free, read) = busy.reads(&pair);
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    (request.paths, request.after) = (path.into(), after(free.clone()));
    pair.dst.agent.pull(request).await.unwrap();
    all_end(leases, LeaseEnd::Completed).await;
    After::from(free).done().await.unwrap();
    (pair.found() == expected, read == before)
}

/// With marks, nothing is read before it is computed and nothing is overwritten before it is read. Without marks this
/// happens.
#[test]
fn nothing_is_touched_before_its_mark() {
    run_anywhere("nothing_is_touched_before_its_mark", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let busy = Busy {
            engine: Engine::new(&driver),
            gpu: &gpu,
            // A GPU makes its kernels ready when they are first used.
            micros: if driver.fake().is_some() { 100_000 } else { 3_000_000 },
        };
        Runtime::new().unwrap().block_on(async {
            for path in paths_of([true, true]) {
                assert_eq!(pull_busy(&busy, path, true).await, (true, true), "{path:?}");
            }
            for path in [Path::QUIC, Path::DEVICE] {
                assert_eq!(pull_busy(&busy, path, false).await, (false, false));
            }
        });
    });
}

/// A mark that is never reached delays only its own lease and pull, and both end at their time limits.
#[test]
fn a_mark_that_never_comes_ends_with_its_lease() {
    run("a_mark_that_never_comes_ends_with_its_lease", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let busy = Busy { engine: Engine::new(&fake), gpu: &gpu, micros: 20_000_000 };
        Runtime::new().unwrap().block_on(async {
            let pair = pair(&gpu, [true, true]);
            let expected = pair.expected();
            let go_on = async |set, path: Path| {
                let set = LeaseSetId([set; 16]);
                let leases = pair.leases(&pair.src, set, false).await;
                let ticket = pair.ticket(&pair.src, set, Direction::Pull);
                let mut request = pair.request(ticket, &pair.dst);
                request.paths = path.into();
                pair.dst.agent.pull(request).await.unwrap();
                assert_eq!(pair.found(), expected);
                drop(leases);
            };
            // Rings have to be there before: to make one a driver may wait for all that the GPU has to do.
            go_on(8, Path::RING).await;
            go_on(9, Path::DEVICE).await;
            busy.engine.spin(busy.micros);
            let never = busy.mark();
            let tables = pair.src.tables.clone();
            let set = LeaseSetId([4; 16]);
            let mut lease = LeaseRequest::new(set, Rank(0), tables, pair.content, pair.tokens);
            lease.after = After::from(never.clone());
            (lease.ttl, lease.hard_bound) = (Duration::from_secs(1), Duration::from_secs(1));
            let lease = pair.src.agent.lease(lease).await.unwrap();
            let ticket = pair.ticket(&pair.src, set, Direction::Pull);
            let mut request = pair.request(ticket, &pair.dst);
            request.timeout = Duration::from_secs(3);
            let waits = tokio::spawn({
                let agent = pair.dst.agent.clone();
                async move { agent.pull(request).await }
            });

            let set = LeaseSetId([6; 16]);
            let held = pair.leases(&pair.src, set, false).await;
            let ticket = pair.ticket(&pair.src, set, Direction::Pull);
            let mut request = pair.request(ticket, &pair.dst);
            (request.paths, request.after) = (Path::RING.into(), After::from(never));
            let agent = pair.dst.agent.clone();
            let never_free = tokio::spawn(async move { agent.pull(request).await });

            // Others go on meanwhile, over the same rings: what waits for a mark has no slot of one.
            go_on(5, Path::RING).await;
            go_on(7, Path::DEVICE).await;
            assert!(!never_free.is_finished());
            never_free.abort();
            drop(held);

            assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Expired);
            assert!(waits.await.unwrap().is_err());
        });
        // It is still spinning.
        std::process::exit(0);
    });
}

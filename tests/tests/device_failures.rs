//! Agents on GPUs that fail: each call of the driver, a device that is lost, one that stands still. On the fake driver.
#![cfg(target_os = "linux")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::smallvec;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use transload_layout::Rank;
use transload_tests::fake_cuda::{Engine, Fake, run};
use transload_tests::pair::{Pair, contents};
use transload_transfer::agent::{
    After, AgentOptions, Lease, LeaseEndError, LeaseOpenError, LeaseRequest, TransferError,
};
use transload_transfer::copy::CopyOptions;
use transload_transfer::device::{DeviceError, DeviceMemory, Gpu, GpuOptions, Mark, copy};
use transload_transfer::ids::{Direction, LeaseSetId};
use transload_transfer::lease::{LeaseEnd, OpenFault};
use transload_transfer::memory::{Access, Memory};
use transload_transfer::path::Path;
use transload_transfer::plan::program::{Nest, Placed, Program};

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;

/// Far more than anything here takes; a test that hangs fails by it.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = timeout(Duration::from_secs(60), work).await;
    done.expect("done in time")
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), wait).await;
    waited.unwrap_or_else(|_| panic!("never: {what}"));
}

fn whole(len: u64) -> Program {
    let (nests, placed) = (
        vec![Nest {
            loops: smallvec![],
            run: len,
        }],
        vec![Placed {
            nest: 0,
            src: 0,
            dst: 0,
        }],
    );
    Program { nests, placed }
}

/// Writes to the caches of the destination what was in them at first.
fn reset(pair: &Pair) {
    for (memory, device) in pair.dst.memories.iter().zip(&pair.dst.on_gpu) {
        copy(&whole(memory.bytes()), memory, device, &CopyOptions::new()).unwrap();
    }
}

/// What is in the caches of the destination, if they can be read still.
fn found(pair: &Pair) -> Result<Vec<Vec<u8>>, DeviceError> {
    let devices = pair.dst.on_gpu.iter();
    let read = devices.map(|device| {
        let (_, len) = device.allocation(0).unwrap();
        let host = Memory::allocate(&[len as usize]).unwrap();
        copy(&whole(len), device, &host, &CopyOptions::new())?;
        Ok(contents(&host))
    });
    read.collect()
}

fn set_id(set: u32) -> LeaseSetId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&set.to_le_bytes());
    LeaseSetId(id)
}

/// Leases what the source has to a set, and pulls that.
async fn pull(pair: &Pair, set: u32) -> (Vec<Lease>, Result<(), TransferError>) {
    let leases = pair.leases(&pair.src, set_id(set), false).await;
    (leases, pull_leased(pair, set).await)
}

/// Pulls what is leased to a set, over QUIC.
async fn pull_leased(pair: &Pair, set: u32) -> Result<(), TransferError> {
    let ticket = pair.ticket(&pair.src, set_id(set), Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.paths = Path::QUIC.into();
    soon(pair.dst.agent.pull(request)).await.map(drop)
}

async fn all_end(leases: Vec<Lease>) -> Vec<LeaseEnd> {
    let mut ends = Vec::new();
    for lease in leases {
        ends.push(soon(lease.ended()).await.unwrap().end);
    }
    ends
}

/// How often each function of the driver is called in a pull, of those that are.
async fn calls(fake: &Fake, pair: &Pair) -> Vec<(&'static str, u64)> {
    let source = include_str!("../../crates/transfer/src/device/driver.rs");
    let list = source.split("functions! {").nth(1).unwrap();
    let names = list.split('}').next().unwrap().split_whitespace();
    let before: Vec<_> = names.map(|name| (name, fake.calls(name))).collect();
    let (leases, pulled) = pull(pair, 0).await;
    pulled.unwrap();
    all_end(leases).await;
    let calls = before.into_iter();
    let calls = calls.map(|(name, before)| (name, fake.calls(name) - before));
    calls.filter(|(_, calls)| *calls > 0).collect()
}

/// The first calls, and one of the rest.
fn some_of(calls: u64) -> impl Iterator<Item = u32> {
    let mut some = vec![1, 2, calls.div_ceil(2)];
    some.retain(|nth| *nth <= calls);
    some.dedup();
    some.into_iter().map(|nth| nth as u32)
}

/// Each function fails once during a pull from GPU to GPU: what is reported good is right, and what comes after it goes on.
#[test]
fn each_call_may_fail_during_a_pull() {
    let delay = [("FAKE_CUDA_DELAY_US", "0")];
    run("each_call_may_fail_during_a_pull", &delay, |fake| {
        Runtime::new().unwrap().block_on(async {
            let gpu = Gpu::open(0).unwrap();
            let pair = Pair::on_gpus([Some(&gpu); 2]);
            let (expected, mut set) = (pair.expected(), 1);
            let called = calls(&fake, &pair).await;
            assert!(called.len() >= 8, "{called:?}");
            let called = called.into_iter();
            let each = called.flat_map(|(of, calls)| some_of(calls).map(move |nth| (of, nth)));
            for (function, nth) in each {
                reset(&pair);
                let left = fake.live();
                fake.fail(function, nth, OUT_OF_MEMORY);
                let (leases, pulled) = pull(&pair, set).await;
                fake.fail(function, 0, 0);
                if pulled.is_ok() {
                    assert!(
                        found(&pair).unwrap() == expected,
                        "{function}, call {nth}: wrong bytes"
                    );
                }
                drop(leases);
                reset(&pair);
                let (leases, pulled) = pull(&pair, set + 1).await;
                pulled.unwrap_or_else(|error| panic!("after {function}, call {nth}: {error}"));
                assert!(found(&pair).unwrap() == expected);
                all_end(leases).await;
                let what = format!("{function}, call {nth}: nothing stays behind");
                until(&what, || fake.live() <= left + 1).await;
                set += 2;
            }
        });
    });
}

/// Has a call lose a device during a pull, and says whether the pull has failed.
async fn lose(fake: &Fake, number: u32, (function, nth): (&'static str, u32)) -> bool {
    let gpu = Gpu::open(number).unwrap();
    let pair = Pair::on_gpus([Some(&gpu); 2]);
    let expected = pair.expected();
    let leases = pair.leases(&pair.src, set_id(1), false).await;
    fake.fail(function, nth, LAUNCH_FAILED);
    let pulled = pull_leased(&pair, 1).await;
    fake.fail(function, 0, 0);
    let what = format!("{function}, call {nth}");
    let Err(error) = pulled else {
        match found(&pair) {
            Ok(found) => assert!(found == expected, "{what}: wrong bytes"),
            Err(DeviceError::Lost { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        return false;
    };
    assert_eq!(error.kind(), "device_lost", "{what}: {error}");
    for end in all_end(leases).await {
        // The holder may be the first to give up.
        let ends = [LeaseEnd::DeviceLost, LeaseEnd::Cancelled];
        assert!(ends.contains(&end), "{what}: {end}");
    }
    true
}

/// The same with an error that the device does not survive, each time on another device: nothing hangs, what fails says why,
/// and the next device works.
#[test]
fn each_call_may_lose_the_device_during_a_pull() {
    let variables = [("FAKE_CUDA_DELAY_US", "0"), ("FAKE_CUDA_DEVICES", "64")];
    run(
        "each_call_may_lose_the_device_during_a_pull",
        &variables,
        |fake| {
            Runtime::new().unwrap().block_on(async {
                let gpu = Gpu::open(0).unwrap();
                let called = calls(&fake, &Pair::on_gpus([Some(&gpu); 2])).await;
                drop(gpu);
                let (mut number, mut failed) = (0, 0);
                for (function, calls) in called {
                    for nth in some_of(calls) {
                        until("the device is closed", || fake.live() == 0).await;
                        number += 1;
                        failed += u32::from(lose(&fake, number, (function, nth)).await);
                    }
                }
                assert!(failed > 10, "only {failed} failures");
                until("the device is closed", || fake.live() == 0).await;
            });
        },
    );
}

/// A lost device is the end of what its agent has on it, which peers hear; another device and the host go on.
#[test]
fn a_lost_device_takes_nothing_else_with_it() {
    let name = "a_lost_device_takes_nothing_else_with_it";
    run(name, &[("FAKE_CUDA_DEVICES", "2")], |fake| {
        let (lost, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let engine = Engine::new(&fake);
        Runtime::new().unwrap().block_on(async {
            let pair = Pair::on_gpus([Some(&lost), Some(&other)]);
            engine.spin(600_000_000);
            // SAFETY: the stream is there until this process ends.
            let mark = unsafe { Mark::new(&lost, engine.stream()).unwrap() };
            let of_set = |set| {
                let tables = pair.src.tables.clone();
                let set = LeaseSetId([set; 16]);
                LeaseRequest::new(set, Rank(0), tables, pair.content, pair.tokens)
            };
            let mut waits = of_set(2);
            waits.after = After::from(mark.clone());
            let agent = pair.src.agent.clone();
            let waits = tokio::spawn(async move { agent.open(waits).await });

            // Only the source fetches anything from its device.
            fake.fail("cuMemcpyDtoHAsync_v2", 2, LAUNCH_FAILED);
            let (leases, pulled) = pull(&pair, 1).await;
            let error = pulled.unwrap_err();
            assert_eq!(error.kind(), "device_lost", "{error}");
            for end in all_end(leases).await {
                assert_eq!(end, LeaseEnd::DeviceLost);
            }
            let reason = OpenFault::DeviceLost { rank: Rank(0) };
            let refused = |error| matches!(error, LeaseOpenError::Refused { reason: why, .. } if why == reason);
            // What has waited for the device, and what is new.
            assert!(refused(soon(waits).await.unwrap().unwrap_err()));
            soon(After::from(mark).done()).await.unwrap_err();
            let new = soon(pair.src.agent.lease(of_set(3))).await;
            assert!(refused(new.unwrap_err()));

            let pair = Pair::on_gpus([None, Some(&other)]);
            let (leases, pulled) = pull(&pair, 4).await;
            pulled.unwrap();
            assert!(found(&pair).unwrap() == pair.expected());
            all_end(leases).await;
        });
        // It is still spinning.
        std::process::exit(0);
    });
}

/// Settings of an agent that does not wait long for what does not end.
fn impatient(stall: Duration) -> AgentOptions {
    let mut options = AgentOptions::default();
    options.wire.device_stall = stall;
    options
}

/// What does not end fails by that name, and keeps its blocks until it ends; then the device is used again.
#[test]
fn a_device_that_stands_still_fails_its_transfers() {
    let delay = [("FAKE_CUDA_DELAY_US", "20000")];
    run(
        "a_device_that_stands_still_fails_its_transfers",
        &delay,
        |fake| {
            let gpu = Gpu::open(0).unwrap();
            Runtime::new().unwrap().block_on(async {
                let options = impatient(Duration::from_millis(300));
                let pair = Pair::on_gpus_with_options([Some(&gpu); 2], options);
                let (set, keeper) = (LeaseSetId([1; 16]), Arc::new(()));
                let kept: Weak<()> = Arc::downgrade(&keeper);
                let mut leases = Vec::new();
                for rank in (0..pair.src.memories.len() as u32).map(Rank) {
                    let tables = pair.src.tables.clone();
                    let mut request =
                        LeaseRequest::new(set, rank, tables, pair.content, pair.tokens);
                    request.keeper = Some(keeper.clone());
                    leases.push(pair.src.agent.lease(request).await.unwrap());
                }
                drop(keeper);
                let launched = fake.calls("cuLaunchKernel");
                let ticket = pair.ticket(&pair.src, set, Direction::Pull);
                let mut request = pair.request(ticket, &pair.dst);
                request.paths = Path::QUIC.into();
                let pull = tokio::spawn({
                    let agent = pair.dst.agent.clone();
                    async move { agent.pull(request).await }
                });
                let is_launched = || fake.calls("cuLaunchKernel") > launched;
                until("a piece is under way", is_launched).await;
                fake.hold(true);
                let error = soon(pull).await.unwrap().unwrap_err();
                assert_eq!(error.kind(), "device_stalled", "{error}");
                let mut stalled = 0;
                for lease in leases {
                    match soon(lease.ended()).await {
                        Err(LeaseEndError::Stalled) => stalled += 1,
                        Ok(ended) => assert_ne!(ended.end, LeaseEnd::Completed),
                        Err(gone) => panic!("{gone}"),
                    }
                }
                assert!(stalled > 0 && kept.strong_count() > 0);
                fake.hold(false);
                until("its blocks are let go of", || kept.strong_count() == 0).await;

                let (leases, pulled) = self::pull(&pair, 9).await;
                pulled.unwrap();
                assert!(found(&pair).unwrap() == pair.expected());
                all_end(leases).await;
            });
        },
    );
}

/// Work of the engine that a lease or a pull waits for may take longer than an operation of theirs.
#[test]
fn a_mark_that_takes_long_is_no_stall() {
    run("a_mark_that_takes_long_is_no_stall", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&fake);
        Runtime::new().unwrap().block_on(async {
            let options = impatient(Duration::from_secs(1));
            let pair = Pair::on_gpus_with_options([Some(&gpu); 2], options);
            let set = LeaseSetId([1; 16]);
            engine.spin(3_000_000);
            // SAFETY: the stream is there until this process ends.
            let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
            let mut leases = Vec::new();
            for rank in (0..pair.src.memories.len() as u32).map(Rank) {
                let tables = pair.src.tables.clone();
                let mut request = LeaseRequest::new(set, rank, tables, pair.content, pair.tokens);
                request.after = mark.clone().into();
                leases.push(pair.src.agent.lease(request).await.unwrap());
            }
            let ticket = pair.ticket(&pair.src, set, Direction::Pull);
            let mut request = pair.request(ticket, &pair.dst);
            request.paths = Path::QUIC.into();
            soon(pair.dst.agent.pull(request)).await.unwrap();
            assert!(found(&pair).unwrap() == pair.expected());
            for end in all_end(leases).await {
                assert_eq!(end, LeaseEnd::Completed);
            }
        });
    });
}

/// Copies and tables that are waited for end, with an error, where the device stands still; what they touch is kept until that
/// is over.
#[test]
fn what_is_waited_for_ends_where_a_device_stands_still() {
    let name = "what_is_waited_for_ends_where_a_device_stands_still";
    run(name, &[], |fake| {
        let mut options = GpuOptions::default();
        options.stall = Duration::from_millis(100);
        let gpu = Gpu::open_with(0, &options).unwrap();
        let (program, options) = (whole(4096), CopyOptions::new());
        let host = Memory::allocate(&[4096]).unwrap();
        host.write(0, &[7; 4096]).unwrap();
        let owned = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
        let (start, _) = owned.allocation(0).unwrap();
        let keeper = Arc::new(owned);
        let kept = Arc::downgrade(&keeper);
        // SAFETY: the keeper keeps it.
        let foreign = unsafe {
            let parts = [(start, 4096)];
            DeviceMemory::from_raw_parts(&gpu, &parts, Access::ReadWrite, Some(keeper)).unwrap()
        };
        let second = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
        fake.hold(true);
        let stalled = |error: DeviceError| matches!(error, DeviceError::Stalled { ordinal: 0, .. });
        // Each needs a table first, which is not there in time either.
        assert!(stalled(
            copy(&program, &host, &foreign, &options).unwrap_err()
        ));
        assert!(stalled(
            copy(&program, &foreign, &host, &options).unwrap_err()
        ));
        assert!(stalled(
            copy(&program, &foreign, &second, &options).unwrap_err()
        ));
        assert!(stalled(DeviceMemory::allocate(&gpu, &[64]).unwrap_err()));
        fake.hold(false);
        let used_again = || copy(&program, &host, &second, &options).is_ok();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(until("it is used again", used_again));
        copy(&program, &second, &foreign, &options).unwrap();
        host.write(0, &[0; 4096]).unwrap();
        copy(&program, &foreign, &host, &options).unwrap();
        assert!(contents(&host) == [7; 4096]);
        drop(foreign);
        runtime.block_on(until("it is let go of", || kept.strong_count() == 0));
    });
}

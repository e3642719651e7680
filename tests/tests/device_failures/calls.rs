//! Each function of the driver fails once during a pull from GPU to GPU, from the first connection on.

use tokio::runtime::Runtime;
use transload_tests::fake_cuda::{Fake, run};
use transload_tests::pair::Pair;
use transload_transfer::device::{DeviceError, Gpu};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::path::Path;

use super::*;

/// What only the making of a ring calls. Where it fails, another path is taken, or the same one by another way.
const MAKES_A_RING: [&str; 9] = [
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemHostRegister_v2",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemSetAccess",
];

/// How often each function of the driver is called in the first pull of a pair by a path, of those that are.
async fn calls(fake: &Fake, pair: &Pair, path: Path) -> Vec<(&'static str, u64)> {
    let source = include_str!("../../../crates/transfer/src/device/driver.rs");
    let list = source.split("functions! {").nth(1).unwrap();
    let names = list.split('}').next().unwrap().split_whitespace();
    let before: Vec<_> = names.map(|name| (name, fake.calls(name))).collect();
    let (leases, pulled) = pull(pair, 0, path).await;
    assert!(took(&pulled.unwrap(), path));
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

/// What is reported good is right, and what comes after it goes on.
fn each_call_may_fail(fake: &Fake, path: Path) {
    Runtime::new().unwrap().block_on(async {
        let gpu = Gpu::open(0).unwrap();
        let called = calls(fake, &Pair::on_gpus([Some(&gpu); 2]), path).await;
        assert!(called.len() >= 8, "{called:?}");
        let called = called.into_iter();
        let each = called.flat_map(|(of, calls)| some_of(calls).map(move |nth| (of, nth)));
        let mut left = None;
        for (function, nth) in each {
            let what = format!("{path}: {function}, call {nth}");
            let pair = Pair::on_gpus([Some(&gpu); 2]);
            let expected = pair.expected();
            fake.fail(function, nth, OUT_OF_MEMORY);
            let (leases, pulled) = pull(&pair, 1, up_to(path)).await;
            fake.fail(function, 0, 0);
            match &pulled {
                Ok(_) => assert!(found(&pair).unwrap() == expected, "{what}: wrong bytes"),
                Err(error) => {
                    assert_eq!(error.kind(), "failed", "{what}: {error}");
                    assert!(!MAKES_A_RING.contains(&function), "{what}: {error}");
                }
            }
            drop(leases);
            reset(&pair);
            let (leases, pulled) = pull(&pair, 2, up_to(path)).await;
            pulled.unwrap_or_else(|error| panic!("after {what}: {error}"));
            assert!(found(&pair).unwrap() == expected, "after {what}");
            all_end(leases).await;
            drop(pair);
            let left = *left.get_or_insert_with(|| fake.live());
            until(&format!("{what}: nothing stays behind"), || {
                fake.live() <= left
            })
            .await;
        }
    });
}

/// The most that the two ends of a ring leave on a lost device, whose driver is asked for nothing any more: a handle, a
/// reservation and a mapping each.
const LEFT_BY_A_RING: u64 = 6;

/// Has a call lose a device during a pull, and says whether the pull has failed.
async fn lose(fake: &Fake, number: u32, path: Path, (function, nth): (&'static str, u32)) -> bool {
    let gpu = Gpu::open(number).unwrap();
    let pair = Pair::on_gpus([Some(&gpu); 2]);
    let expected = pair.expected();
    let leases = pair.leases(&pair.src, set_id(1), false).await;
    fake.fail(function, nth, LAUNCH_FAILED);
    let pulled = pull_leased(&pair, 1, up_to(path)).await;
    fake.fail(function, 0, 0);
    let what = format!("{path}: {function}, call {nth}");
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

/// An error that the device does not survive, each time on another device: nothing hangs, what fails says why, and the next
/// device works.
fn each_call_may_lose_the_device(fake: &Fake, path: Path) {
    Runtime::new().unwrap().block_on(async {
        let gpu = Gpu::open(0).unwrap();
        let called = calls(fake, &Pair::on_gpus([Some(&gpu); 2]), path).await;
        drop(gpu);
        let (mut number, mut failed) = (0, 0);
        for (function, calls) in called {
            for nth in some_of(calls) {
                closed(fake, number, path).await;
                number += 1;
                failed += u32::from(lose(fake, number, path, (function, nth)).await);
            }
        }
        assert!(failed > 10, "only {failed} failures");
        closed(fake, number, path).await;
    });
}

/// Waits until all of these devices are closed.
async fn closed(fake: &Fake, lost: u32, path: Path) {
    let left = match path {
        Path::DEVICE => u64::from(lost) * LEFT_BY_A_RING,
        _ => 0,
    };
    until("the device is closed", || fake.live() <= left).await;
}

const NO_DELAY: (&str, &str) = ("FAKE_CUDA_DELAY_US", "0");
const MANY_DEVICES: (&str, &str) = ("FAKE_CUDA_DEVICES", "64");

/// Makes a test of each path.
macro_rules! tests {
    ($($path:expr => $fails:ident $loses:ident,)*) => {$(
        #[test]
        fn $fails() {
            let name = concat!("calls::", stringify!($fails));
            run(name, &[NO_DELAY], |fake| each_call_may_fail(&fake, $path));
        }

        #[test]
        fn $loses() {
            let name = concat!("calls::", stringify!($loses));
            run(name, &[NO_DELAY, MANY_DEVICES], |fake| each_call_may_lose_the_device(&fake, $path));
        }
    )*};
}

tests! {
    Path::QUIC => each_call_may_fail_over_the_network each_call_may_lose_the_device_over_the_network,
    Path::RING => each_call_may_fail_over_a_staging_ring each_call_may_lose_the_device_over_a_staging_ring,
    Path::DEVICE => each_call_may_fail_over_a_ring_on_the_device each_call_may_lose_the_device_over_a_ring_on_the_device,
}

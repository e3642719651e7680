//! Each function of the driver fails once: during a pull from GPU to GPU, from the first connection until everything is
//! released.

use tokio::runtime::Runtime;
use transload_tests::fake_cuda::{Fake, run};
use transload_tests::pair::Pair;
use transload_transfer::device::{DeviceError, Gpu};
use transload_transfer::{LeaseEnd, Path};

use super::*;

/// The functions that only the making of a ring calls. If one fails, the transfer takes another path, or the same path in
/// another way.
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

/// The functions that release a resource, and how much leaks if they fail. They are not called again, since a failed call
/// may have worked. The driver keeps the rest until its context ends. A mapping stays with its addresses.
const GIVE_BACK: [(&str, u64); 8] = [
    ("cuEventDestroy_v2", 1),
    ("cuMemAddressFree", 1),
    ("cuMemFreeHost", 1),
    ("cuMemFree_v2", 1),
    ("cuMemHostUnregister", 1),
    ("cuMemRelease", 1),
    ("cuMemUnmap", 2),
    ("cuStreamDestroy_v2", 1),
];

/// Returns how often each function of the driver was called until now.
fn counts(fake: &Fake) -> Vec<(&'static str, u64)> {
    let names = Fake::functions().into_iter();
    names.map(|name| (name, fake.calls(name))).collect()
}

/// Returns how often each was called since then, of those that were.
fn since(fake: &Fake, before: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    let calls = before.iter();
    let calls = calls.map(|(name, before)| (*name, fake.calls(name) - before));
    calls.filter(|(_, calls)| *calls > 0).collect()
}

/// Returns how often each function of the driver is called in the first pull of a pair by a path, of those that are.
async fn calls(fake: &Fake, pair: &Pair, path: Path) -> Vec<(&'static str, u64)> {
    let before = counts(fake);
    let (leases, pulled) = pull(pair, 0, path).await;
    assert!(took(&pulled.unwrap(), path));
    all_end(leases).await;
    since(fake, &before)
}

/// The moment at which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// During the first pull of a pair.
    Pulling,
    /// When the pair ends and releases everything.
    Ending,
}

/// Makes one call fail, and remembers whether the call was made.
struct Failing<'a> {
    fake: &'a Fake,
    function: &'static str,
    until: u64,
}

impl<'a> Failing<'a> {
    fn new(fake: &'a Fake, function: &'static str, nth: u32) -> Self {
        let until = fake.calls(function) + u64::from(nth);
        fake.fail(function, nth, OUT_OF_MEMORY);
        Self { fake, function, until }
    }

    fn has_failed(self) -> bool {
        self.fake.fail(self.function, 0, 0);
        self.fake.calls(self.function) >= self.until
    }
}

/// Returns the first calls, and one of the rest.
fn some_of(calls: u64) -> impl Iterator<Item = u32> {
    let mut some = vec![1, 2, calls.div_ceil(2)];
    some.retain(|nth| *nth <= calls);
    some.dedup();
    some.into_iter().map(|nth| nth as u32)
}

/// Checks that every reported success is correct, that later transfers work, and that nothing leaks except what the call
/// should have released.
fn each_call_may_fail(fake: &Fake, path: Path) {
    Runtime::new().unwrap().block_on(async {
        let gpu = Gpu::open(0).unwrap();
        let mut left = fake.live();
        let pair = Pair::on_gpus([Some(&gpu); 2]);
        let pulling = calls(fake, &pair, path).await;
        let before = counts(fake);
        drop(pair);
        until("a pair leaves nothing behind", || fake.live() == left).await;
        let ending = since(fake, &before);
        assert!(pulling.len() >= 8, "{pulling:?}");
        assert!(ending.len() >= 4, "{ending:?}");

        let (mut injected, mut gave_back) = (0, 0);
        let all = [(When::Pulling, pulling), (When::Ending, ending)].into_iter();
        let all = all.flat_map(|(when, called)| called.into_iter().map(move |of| (when, of)));
        for (when, (function, calls)) in all {
            for nth in some_of(calls) {
                let what = format!("{path}: {when:?}, {function}, call {nth}");
                let pair = Pair::on_gpus([Some(&gpu); 2]);
                let mut failed = false;
                if when == When::Pulling {
                    failed = pull_with(fake, &pair, path, (function, nth), &what).await;
                }
                let (leases, pulled) = pull(&pair, 2, up_to(path)).await;
                pulled.unwrap_or_else(|error| panic!("after {what}: {error}"));
                assert!(found(&pair).unwrap() == pair.expected(), "after {what}");
                all_end(leases).await;
                let failing = (when == When::Ending).then(|| Failing::new(fake, function, nth));
                drop(pair);
                let stays = GIVE_BACK.iter().find(|(name, _)| *name == function);
                let stays = stays.map_or(0, |(_, stays)| *stays);
                until(&format!("{what}: as much is left as may stay"), || [left, left + stays].contains(&fake.live()))
                    .await;
                failed |= failing.is_some_and(Failing::has_failed);
                injected += u32::from(failed);
                if failed && stays > 0 {
                    left += stays;
                    gave_back += 1;
                }
                until(&format!("{what}: nothing else stays"), || fake.live() == left).await;
            }
        }
        assert!(injected > 20, "only {injected} calls have failed");
        assert!(gave_back > 4, "only {gave_back} of them give back");
    });
}

/// Pulls while a call fails, and returns whether that call was made.
async fn pull_with(fake: &Fake, pair: &Pair, path: Path, (function, nth): (&'static str, u32), what: &str) -> bool {
    let expected = pair.expected();
    let failing = Failing::new(fake, function, nth);
    let (leases, pulled) = pull(pair, 1, up_to(path)).await;
    let failed = failing.has_failed();
    match &pulled {
        Ok(_) => assert!(found(pair).unwrap() == expected, "{what}: wrong bytes"),
        Err(error) => {
            assert_eq!(error.kind(), "failed", "{what}: {error}");
            assert!(!MAKES_A_RING.contains(&function), "{what}: {error}");
        }
    }
    drop(leases);
    reset(pair);
    failed
}

/// The most that the two ends of a ring leave on a lost device, whose driver is asked for nothing any more: a handle, a
/// reservation and a mapping each.
const LEFT_BY_A_RING: u64 = 6;

/// Makes a call lose the device during a pull. Returns whether the pull failed.
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

/// Each call loses its device once, on a new device each time: nothing hangs, errors say why, and the next device works.
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
const MANY_DEVICES: (&str, &str) = ("FAKE_CUDA_DEVICES", "96");

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

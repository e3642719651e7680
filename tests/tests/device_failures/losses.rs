//! Tests what the loss of a device ends, and what continues.

use tokio::runtime::Runtime;
use transload_tests::fake_cuda::{Engine, Fake, run};
use transload_tests::pair::Pair;
use transload_transfer::device::{Gpu, Mark};
use transload_transfer::wire::OpenFault;
use transload_transfer::{After, LeaseEnd, LeaseOpenError, Path};

use super::*;

/// A lost device ends everything that its agent has on it, and peers are notified. Another device and the host continue.
fn a_lost_device_takes_nothing_else_with_it(fake: &Fake, path: Path) {
    let (lost, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
    let engine = Engine::new(fake);
    Runtime::new().unwrap().block_on(async {
        let pair = Pair::on_gpus([Some(&lost), Some(&other)]);
        engine.spin(600_000_000);
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&lost, engine.stream()).unwrap() };
        let mut waits = lease_of(&pair, 2, Rank(0));
        waits.after = After::from(mark.clone());
        let agent = pair.src.agent.clone();
        let waits = tokio::spawn(async move { agent.open(waits).await });

        // Only the source fetches anything from its device.
        fake.fail("cuMemcpyDtoHAsync_v2", 2, LAUNCH_FAILED);
        let (leases, pulled) = pull(&pair, 1, path).await;
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
        let new = soon(pair.src.agent.lease(lease_of(&pair, 3, Rank(0)))).await;
        assert!(refused(new.unwrap_err()));

        // Another device goes on, and the host.
        for [src, dst] in [[None, Some(&other)], [None, None], [Some(&other), None]] {
            let pair = Pair::on_gpus([src, dst]);
            let (leases, pulled) = pull(&pair, 4, path).await;
            assert!(took(&pulled.unwrap(), path));
            assert!(pair.found() == pair.expected());
            all_end(leases).await;
        }
    });
    // It is still spinning.
    std::process::exit(0);
}

const TWO: &[(&str, &str)] = &[("FAKE_CUDA_DEVICES", "2")];

#[test]
fn over_the_network() {
    run("losses::over_the_network", TWO, |fake| {
        a_lost_device_takes_nothing_else_with_it(&fake, Path::QUIC);
    });
}

#[test]
fn over_a_staging_ring() {
    run("losses::over_a_staging_ring", TWO, |fake| {
        a_lost_device_takes_nothing_else_with_it(&fake, Path::RING);
    });
}

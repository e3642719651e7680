//! Devices that stall.

use std::sync::{Arc, Weak};

use tokio::runtime::Runtime;
use transload_tests::fake_cuda::{Engine, Fake, run};
use transload_tests::pair::Pair;
use transload_transfer::device::{DeviceMemory, Gpu, GpuOptions, Mark};
use transload_transfer::memory::Access;
use transload_transfer::{AgentOptions, LeaseEndError, Path};

use super::*;

/// Returns settings of an agent with a short limit for stalled devices.
fn impatient(stall: Duration) -> AgentOptions {
    let mut options = AgentOptions::default();
    options.wire.device_stall = stall;
    options
}

/// A stalled transfer fails with the error for that, and keeps its blocks until the device continues. Then the device is
/// used again, over the same path.
fn a_device_that_stands_still_fails_its_transfers(fake: &Fake, path: Path) {
    let gpu = Gpu::open(0).unwrap();
    Runtime::new().unwrap().block_on(async {
        let options = impatient(Duration::from_millis(300));
        let pair = Pair::on_gpus_with_options([Some(&gpu); 2], options);
        let keeper = Arc::new(());
        let kept: Weak<()> = Arc::downgrade(&keeper);
        let mut leases = Vec::new();
        for rank in (0..pair.src.memories.len() as u32).map(Rank) {
            let mut request = lease_of(&pair, 1, rank);
            request.keeper = Some(keeper.clone());
            leases.push(pair.src.agent.lease(request).await.unwrap());
        }
        drop(keeper);
        fake.hold_at("cuLaunchKernel");
        let error = pull_leased(&pair, 1, path).await.unwrap_err();
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

        let (leases, pulled) = pull(&pair, 9, path).await;
        pulled.unwrap();
        assert!(found(&pair).unwrap() == pair.expected());
        all_end(leases).await;
    });
}

/// Makes operations slow enough for other events to happen during them.
const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "20000")];

#[test]
fn over_the_network() {
    run("stalls::over_the_network", SLOW, |fake| {
        a_device_that_stands_still_fails_its_transfers(&fake, Path::QUIC);
    });
}

#[test]
fn over_a_staging_ring() {
    run("stalls::over_a_staging_ring", SLOW, |fake| {
        a_device_that_stands_still_fails_its_transfers(&fake, Path::RING);
    });
}

#[test]
fn over_a_ring_on_the_device() {
    run("stalls::over_a_ring_on_the_device", SLOW, |fake| {
        a_device_that_stands_still_fails_its_transfers(&fake, Path::DEVICE);
    });
}

/// An engine's work before a lease or pull may take longer than the limit for operations of the transfer.
#[test]
fn a_mark_that_takes_long_is_no_stall() {
    run("stalls::a_mark_that_takes_long_is_no_stall", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&fake);
        Runtime::new().unwrap().block_on(async {
            let options = impatient(Duration::from_secs(1));
            let pair = Pair::on_gpus_with_options([Some(&gpu); 2], options);
            engine.spin(3_000_000);
            // SAFETY: the stream is there until this process ends.
            let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
            let mut leases = Vec::new();
            for rank in (0..pair.src.memories.len() as u32).map(Rank) {
                let mut request = lease_of(&pair, 1, rank);
                request.after = mark.clone().into();
                leases.push(pair.src.agent.lease(request).await.unwrap());
            }
            pull_leased(&pair, 1, Path::QUIC).await.unwrap();
            assert!(found(&pair).unwrap() == pair.expected());
            for end in all_end(leases).await {
                assert_eq!(end, LeaseEnd::Completed);
            }
        });
    });
}

/// If the device stalls, waiting copies and tables end with an error. The memory they touch is kept until the stall is
/// over.
#[test]
fn what_is_waited_for_ends_where_a_device_stands_still() {
    let name = "stalls::what_is_waited_for_ends_where_a_device_stands_still";
    // Nothing bounds a call of the driver itself that waits for the device, as allocating may.
    run(name, &[("FAKE_CUDA_ALLOC_WAITS", "0")], |fake| {
        let options = GpuOptions { stall: Duration::from_millis(100) };
        let gpu = Gpu::open_with(0, &options).unwrap();
        let (program, options) = (whole(4096), CopyOptions::default());
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
        assert!(stalled(copy(&program, &host, &foreign, &options).unwrap_err()));
        assert!(stalled(copy(&program, &foreign, &host, &options).unwrap_err()));
        assert!(stalled(copy(&program, &foreign, &second, &options).unwrap_err()));
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

/// A copy between two GPUs that ends too late keeps its resources, and further copies get none until it has ended.
#[test]
fn a_copy_between_gpus_that_stalls_has_its_buffers_until_it_ends() {
    let name = "stalls::a_copy_between_gpus_that_stalls_has_its_buffers_until_it_ends";
    let variables = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_DELAY_US", "50000")];
    run(name, &variables, |fake| {
        let options = GpuOptions { stall: Duration::from_secs(1) };
        let open = |number| Gpu::open_with(number, &options).unwrap();
        let (here, there) = (open(0), open(1));
        let memory = |gpu| DeviceMemory::allocate(gpu, &[4096]).unwrap();
        let (source, destination) = (memory(&here), memory(&there));
        let copy = || copy(&whole(4096), &source, &destination, &CopyOptions::default());
        copy().unwrap();
        let live = fake.live();
        fake.hold_at("cuMemcpyPeerAsync");
        let error = copy().unwrap_err();
        assert!(matches!(error, DeviceError::Stalled { .. }), "{error}");
        let carried = fake.calls("cuMemcpyPeerAsync");
        for _ in 0..3 {
            let error = copy().unwrap_err();
            assert!(matches!(error, DeviceError::Stalled { .. }), "{error}");
        }
        assert_eq!(fake.calls("cuMemcpyPeerAsync"), carried);
        fake.hold(false);
        let runtime = Runtime::new().unwrap();
        runtime.block_on(until("it is used again", || copy().is_ok()));
        runtime.block_on(until("no more is left", || fake.live() == live));
    });
}

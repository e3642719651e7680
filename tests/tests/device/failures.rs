//! Refusals, failures, and the resources that they leave behind.

use std::fs;
use std::sync::mpsc;
use std::time::Duration;

use transload_tests::fake_cuda::{self, Engine, Fake, run, without};
use transload_transfer::Memory;
use transload_transfer::device::internal::measure::{Meter, PinnedMemory};
use transload_transfer::device::{DeviceError, DeviceMemory, Gpu, GpuOptions, Mark, NoCuda, available, copy};
use transload_transfer::memory::copy::CopyOptions;
use transload_transfer::memory::{Access, CheckError};

use super::{dense, strided};

#[test]
fn what_is_no_memory_of_the_gpu_is_refused() {
    let name = "failures::what_is_no_memory_of_the_gpu_is_refused";
    run(name, &[("FAKE_CUDA_DEVICES", "2")], |fake| {
        let (gpu, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let foreign = |gpu: &Gpu, start: u64, len: usize| {
            // SAFETY: what is not mapped is refused, and nothing is copied.
            unsafe { DeviceMemory::from_raw_parts(gpu, &[(start, len)], Access::ReadWrite, None) }
        };
        let memory = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
        let (start, _) = memory.allocation(0).unwrap();
        foreign(&gpu, start + 96, 4000).unwrap();
        let text = |result: Result<DeviceMemory, DeviceError>| result.unwrap_err().to_string();
        let past = text(foreign(&gpu, start, 4097));
        assert_eq!(past, "allocation 0 of 4097 bytes has only 4096 mapped from its start on");
        let elsewhere = text(foreign(&other, start, 4096));
        assert_eq!(elsewhere, "allocation 0 is memory of device 0, not of device 1");
        let host = Memory::allocate(&[4096]).unwrap();
        let address = host.allocation(0).unwrap().0.as_ptr() as u64;
        assert_eq!(
            text(foreign(&gpu, address, 4096)),
            "allocation 0 is memory that the driver does not know, not memory of a CUDA device"
        );
        assert_eq!(DeviceMemory::ordinal_of(&[(start, 4096)]), Ok(0));
        DeviceMemory::ordinal_of(&[(address, 4096)]).unwrap_err();
        assert_eq!(Gpu::current_ordinal(), Ok(None));
        let engine = Engine::new(&fake);
        assert_eq!(Gpu::current_ordinal(), Ok(Some(0)));
        let managed = engine.managed(4096);
        assert_eq!(text(foreign(&gpu, managed, 4096)), "allocation 0 is managed memory, not memory of a CUDA device");
        // SAFETY: the driver knows its streams, and compares.
        let mark = unsafe { Mark::new(&other, engine.stream()) };
        let mark = mark.unwrap_err().to_string();
        assert!(mark.starts_with("the stream does not belong to device 1, or was destroyed: cuEventRecord"), "{mark}");

        let theirs = DeviceMemory::allocate(&other, &[4096]).unwrap();
        let too_far = strided(4096, 2048);
        for to in [&memory, &theirs] {
            let error = copy(&too_far, &memory, to, &CopyOptions::default()).unwrap_err();
            assert!(error.to_string().contains("needs bytes 4096 to 6144"), "{error}");
            let summed = CopyOptions { checksum: true, ..CopyOptions::default() };
            let error = copy(&strided(2048, 512), &memory, to, &summed).unwrap_err();
            assert_eq!(error, DeviceError::NoSum);
        }
        drop(memory);
        let freed = text(foreign(&gpu, start, 4096));
        assert!(freed.contains("does not know"), "{freed}");
        let missing = Gpu::open(2).unwrap_err().to_string();
        assert_eq!(missing, "no device 2: this process sees 2");
    });
}

/// If one of several allocations fails, a GPU gets back the earlier ones.
#[test]
fn allocations_before_one_that_fails_are_given_back() {
    run("failures::allocations_before_one_that_fails_are_given_back", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let before = fake.live();
        const OUT_OF_MEMORY: u32 = 2;
        for nth in 1..=3 {
            fake.fail("cuMemAlloc_v2", nth, OUT_OF_MEMORY);
            let error = DeviceMemory::allocate(&gpu, &[4096; 3]).unwrap_err();
            let said = "cuMemAlloc_v2 gives CUDA_ERROR_OUT_OF_MEMORY (2)";
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(fake.live(), before, "allocation {nth}");
        }
    });
}

/// A measurement that cannot work is refused before the GPU is asked for anything.
#[test]
fn measuring_checks_what_it_is_given() {
    let name = "failures::measuring_checks_what_it_is_given";
    run(name, &[("FAKE_CUDA_DEVICES", "2")], |_| {
        let (gpu, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let meter = Meter::new(&gpu).unwrap();
        let memory = |gpu: &Gpu| DeviceMemory::allocate(gpu, &[4096]).unwrap();
        let (here, there) = (memory(&gpu), memory(&other));
        let (start, _) = here.allocation(0).unwrap();
        let parts = [(start, 4096)];
        // SAFETY: the memory is there until the end of this test.
        let read_only = unsafe { DeviceMemory::from_raw_parts(&gpu, &parts, Access::Read, None) }.unwrap();
        let mut pinned = PinnedMemory::allocate(&gpu, 2048).unwrap();
        let program = strided(2048, 512);

        let elsewhere = DeviceError::OtherDevice { allocation: 0, found: 1, expected: 0 };
        let refused = meter.prepare(&program, &here, &there).unwrap_err();
        assert_eq!(refused, elsewhere);
        let past = |len, available| DeviceError::PastEnd { allocation: 0, len, available };
        let refused = meter.one_copy(&here, &here, 4097).unwrap_err();
        assert_eq!(refused, past(4097, 4096));
        let refused = meter.one_crossing(&here, &mut pinned, 4096, true).unwrap_err();
        assert_eq!(refused, past(4096, 2048));
        let unwritable = DeviceError::Check(CheckError::ReadOnly);
        let refused = meter.one_copy(&here, &read_only, 512).unwrap_err();
        assert_eq!(refused, unwritable);
        let refused = meter.one_crossing(&read_only, &mut pinned, 512, false).unwrap_err();
        assert_eq!(refused, unwritable);
        let refused = meter.to_device(&program, &read_only, 0).unwrap_err();
        assert_eq!(refused, unwritable);
        for (to, why) in [(&read_only, unwritable), (&there, elsewhere)] {
            let refused = meter.through_slots(&[(&program, [&here, to])]).unwrap_err();
            assert_eq!(refused, why);
        }
        meter.one_crossing(&read_only, &mut pinned, 512, true).unwrap();
    });
}

/// Uses every function of the driver that the crate needs, on a small scale.
fn use_all() -> Result<Vec<u8>, DeviceError> {
    let (gpu, other) = (Gpu::open(0)?, Gpu::open(1)?);
    let (program, dense) = (strided(4096, 512), dense(4096));
    let host = Memory::allocate(&[8192])?;
    for page in 0..8 {
        host.write(1024 * page, &[page as u8 + 1; 512]).unwrap();
    }
    let (first, second) = (DeviceMemory::allocate(&gpu, &[4096])?, DeviceMemory::allocate(&gpu, &[4096])?);
    let (start, _) = second.allocation(0).unwrap();
    // SAFETY: the memory is kept.
    let second = unsafe {
        let keeper = Some(std::sync::Arc::new(second) as _);
        DeviceMemory::from_raw_parts(&gpu, &[(start, 4096)], Access::ReadWrite, keeper)?
    };
    let options = CopyOptions::default();
    copy(&program, &host, &first, &options)?;
    copy(&dense, &first, &second, &options)?;
    // SAFETY: the default stream is always there.
    let mark = unsafe { Mark::new(&gpu, 0)? };
    let (tell, told) = mpsc::channel();
    mark.when_done(move |done| tell.send(done).unwrap());
    told.recv().unwrap()?;
    let theirs = DeviceMemory::allocate(&other, &[4096])?;
    copy(&dense, &second, &theirs, &options)?;
    copy(&dense, &theirs, &host, &options)?;
    let mut bytes = vec![0; 4096];
    host.read(0, &mut bytes).unwrap();
    Ok(bytes)
}

/// Returns whether these are the bytes that [`use_all`] returns.
fn is_right(bytes: &[u8]) -> bool {
    (1..).zip(bytes.chunks(512)).all(|(page, chunk)| chunk.iter().all(|byte| *byte == page))
}

/// Each function fails once at each of its calls. Every reported success is correct, every error names the function, and
/// nothing leaks except what that call should have released.
#[test]
fn each_call_may_fail() {
    run("failures::each_call_may_fail", &[("FAKE_CUDA_DELAY_US", "0"), ("FAKE_CUDA_DEVICES", "2")], |fake| {
        assert!(is_right(&use_all().unwrap()));
        let (mut left, mut failed) = (settled(&fake, 0), 0);
        for function in Fake::functions() {
            let (before, _) = (fake.calls(function), use_all().unwrap());
            let calls = fake.calls(function) - before;
            // Each call of the first few, then some of the rest.
            for nth in (1..=calls).filter(|nth| *nth <= 3 || nth % 16 == 0) {
                const OUT_OF_MEMORY: u32 = 2;
                fake.fail(function, nth as u32, OUT_OF_MEMORY);
                match use_all() {
                    Ok(bytes) => {
                        assert!(is_right(&bytes), "{function}, call {nth}: wrong bytes")
                    }
                    Err(error) => {
                        failed += 1;
                        let error = error.to_string();
                        let named = error.contains(function) || error.contains("mapped");
                        let known = error.contains("does not know");
                        assert!(named || known, "{function}, call {nth}: {error}");
                    }
                }
                // Threads may still come to it. One that was not reached must not meet the next.
                let stays = settled(&fake, left);
                fake.fail(function, 0, 0);
                assert!(stays <= left + 1, "{function}, call {nth}: something stays behind");
                left = stays;
            }
        }
        assert!(failed > 40, "only {failed} failures");
    });
}

/// Returns how much there is of the driver's once threads have ended, or after a while, where it is more than that.
fn settled(fake: &Fake, most: u64) -> u64 {
    for _ in 0..500 {
        if fake.live() <= most {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    fake.live()
}

/// After a sticky error, every call reports it.
#[test]
fn a_lost_device_is_reported() {
    run("failures::a_lost_device_is_reported", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let (host, memory) = (Memory::allocate(&[4096]).unwrap(), DeviceMemory::allocate(&gpu, &[4096]).unwrap());
        let program = strided(2048, 512);
        const LAUNCH_FAILED: u32 = 719;
        fake.fail("cuLaunchKernel", 1, LAUNCH_FAILED);
        for _ in 0..2 {
            let error = copy(&program, &memory, &host, &CopyOptions::default()).unwrap_err();
            assert!(matches!(error, DeviceError::Lost { ordinal: 0, .. }), "{error}");
        }
        let error = Gpu::open(0).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
    });
}

/// A driver that has been shut down, or keeps reporting unknown errors for an event, gets no more calls.
#[test]
fn a_driver_that_is_gone_is_left_alone() {
    const SHUT_DOWN: u32 = 4;
    const UNKNOWN: u32 = 999;
    let name = "failures::a_driver_that_is_gone_is_left_alone";
    run(name, &[("FAKE_CUDA_DEVICES", "3")], |fake| {
        for (ordinal, function, code) in
            [(0, "cuEventQuery", UNKNOWN), (1, "cuEventRecord", UNKNOWN), (2, "cuEventQuery", SHUT_DOWN)]
        {
            let gpu = Gpu::open(ordinal).unwrap();
            let host = Memory::allocate(&[4096]).unwrap();
            let memory = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
            let copied = || copy(&strided(2048, 512), &memory, &host, &CopyOptions::default());
            if code == UNKNOWN {
                // One that passes is none of it, however often it is given until then.
                (1..=50).for_each(|nth| fake.fail(function, nth, code));
                copied().unwrap();
            }
            fake.fail_always(function, code);
            let error = copied().unwrap_err();
            assert!(matches!(&error, DeviceError::Lost { why, .. } if why.code == code), "{error}");
            let calls = fake.calls(function);
            assert_eq!(copied().unwrap_err(), error);
            assert_eq!(fake.calls(function), calls);
            fake.fail(function, 0, 0);
        }
    });
}

/// Those who wait for a mark learn that the device is lost, although the driver keeps the waiting thread.
#[test]
fn a_mark_is_told_of_a_loss_that_the_driver_keeps_to_itself() {
    run("failures::a_mark_is_told_of_a_loss_that_the_driver_keeps_to_itself", &[], |fake| {
        const LAUNCH_FAILED: u32 = 719;
        // Long enough that a thread which waits for the device would hang.
        let options = GpuOptions { stall: Duration::from_secs(3600) };
        let gpu = Gpu::open_with(0, &options).unwrap();
        let memory = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
        fake.hang("cuEventSynchronize");
        // SAFETY: the default stream is always there.
        let mark = || unsafe { Mark::new(&gpu, 0).unwrap() };
        let (tell, told) = mpsc::channel();
        for mark in [mark(), mark()] {
            let tell = tell.clone();
            mark.when_done(move |done| tell.send(done).unwrap());
        }
        while fake.calls("cuEventSynchronize") == 0 {
            std::thread::yield_now();
        }
        fake.fail("cuLaunchKernel", 1, LAUNCH_FAILED);
        copy(&dense(2048), &memory, &memory, &CopyOptions::default()).unwrap_err();
        for _ in 0..2 {
            let error = told.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(matches!(error, Err(DeviceError::Lost { .. })), "{error:?}");
        }
        drop((memory, gpu));
    });
}

/// When the last clone is dropped, everything is released and no thread calls the driver any more, so the process may
/// end.
#[test]
fn a_gpu_that_is_dropped_has_given_all_back() {
    run("failures::a_gpu_that_is_dropped_has_given_all_back", &[], |fake| {
        for _ in 0..8 {
            let gpu = Gpu::open(0).unwrap();
            // SAFETY: the default stream is always there.
            let mark = unsafe { Mark::new(&gpu, 0).unwrap() };
            let (tell, told) = mpsc::channel();
            mark.when_done(move |done| tell.send(done).unwrap());
            told.recv().unwrap().unwrap();
            drop((mark, gpu));
            assert_eq!(fake.live(), 0);
        }
    });
}

/// A stalled stream delays the release of a GPU only for a limited time. Those who wait for a mark are notified when the
/// stream continues.
#[test]
fn a_gpu_is_dropped_while_a_stream_stands_still() {
    run("failures::a_gpu_is_dropped_while_a_stream_stands_still", &[], |fake| {
        let options = GpuOptions { stall: Duration::from_millis(100) };
        let gpu = Gpu::open_with(0, &options).unwrap();
        let engine = Engine::new(&fake);
        fake.hold_stream(engine.stream() as usize, true);
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let (tell, told) = mpsc::channel();
        mark.when_done(move |done| tell.send(done).unwrap());
        drop((mark, gpu));
        assert!(told.try_recv().is_err());
        fake.hold_stream(engine.stream() as usize, false);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
        // The engine's stream, module and pinned memory.
        assert_eq!(settled(&fake, 3), 3);
    });
}

/// A missing, an empty and an outdated driver each get an error that says what is missing.
#[test]
fn without_cuda_it_says_why() {
    const NAME: &str = "failures::without_cuda_it_says_why";
    let body = || {
        let _driver = Fake::load();
        let why = available().unwrap_err();
        let expected = std::env::var("EXPECTED_WHY").unwrap();
        assert_eq!(why.to_string(), expected);
        assert_eq!(Gpu::open(0).unwrap_err(), DeviceError::NoCuda(why));
    };
    let expect = |library: &std::path::Path, variables: &[(&str, &str)], why: &str| {
        let mut variables = variables.to_vec();
        variables.push(("EXPECTED_WHY", why));
        assert!(fake_cuda::status(NAME, library, &variables, body).success(), "{why}");
    };
    let fake = fake_cuda::library();
    let lacks = |name| NoCuda::NoFunction { name }.to_string();
    let (_folder, old) = without(&fake, &["cuEventQuery"]);
    expect(&old, &[], &lacks("cuEventQuery"));
    if let Some((_folder, empty)) = fake_cuda::empty() {
        expect(&empty, &[], &lacks(Fake::functions()[0]));
    }
    expect(&fake, &[("FAKE_CUDA_DEVICES", "0")], "no CUDA here: the driver knows no device");
    let file = fake.to_str().unwrap().to_owned();
    for (code, why) in [
        (999, "no CUDA here: cuInit gives CUDA_ERROR_UNKNOWN (999)"),
        (917, "no CUDA here: cuInit gives an unknown error (917)"),
        (34, &NoCuda::Stub { file }.to_string()),
    ] {
        let refused = [("FAKE_CUDA_FAIL", &*format!("cuInit:1:{code}"))];
        expect(&fake, &refused, why);
    }
}

/// The error includes the loader's reason why a file cannot be loaded.
#[test]
fn a_driver_that_cannot_be_loaded_is_told_with_the_reason() {
    let name = "failures::a_driver_that_cannot_be_loaded_is_told_with_the_reason";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libcuda.so.1"), "nonsense").unwrap();
    let variables = [("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    let status = fake_cuda::status(name, &fake_cuda::library(), &variables, || {
        let why = available().unwrap_err().to_string();
        assert!(why.contains("libcuda.so.1: file too short"), "{why}");
    });
    assert!(status.success());
}

/// The stub `libcuda.so` of a toolkit is not used, even if it is found first.
#[test]
fn a_stub_beside_the_driver_is_not_loaded() {
    let Some((folder, stub)) = fake_cuda::empty() else {
        return;
    };
    fs::rename(stub, folder.path().join("libcuda.so")).unwrap();
    let variables = [("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    run("failures::a_stub_beside_the_driver_is_not_loaded", &variables, |_| assert_eq!(available(), Ok(())));
}

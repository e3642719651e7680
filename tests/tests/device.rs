//! GPU memory, on the fake driver: plans against the oracle, what is refused, and what is left behind.
#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use smallvec::smallvec;
use transload_tests::cases::{Case, Reach, cases, kept};
use transload_tests::fake_cuda::{self, Engine, Fake, run, run_anywhere, without};
use transload_tests::on_device::{OnDevice, Sides};
use transload_tests::planner::{Demand, check};
use transload_transfer::copy::{CopyOptions, Crc32c};
use transload_transfer::device::measure::{Meter, PinnedMemory};
use transload_transfer::device::{DeviceError, DeviceMemory, Gpu, Mark, NoCuda, available, copy};
use transload_transfer::memory::{Access, CheckError, Memory};
use transload_transfer::plan::program::{Loop, Nest, Placed, Program};

/// Every byte of a case once, from the right place, whichever side is on the GPU.
fn agree(gpu: &Gpu, case: &Case, programs: &Cell<u64>) -> Result<(), String> {
    for sides in [Sides::Both, Sides::Source, Sides::Destination] {
        let planner = OnDevice {
            gpu,
            sides,
            programs,
        };
        check(Demand::Bytes, &planner, &case.from, &case.to, &case.request)
            .map_err(|fault| format!("{sides:?}: {fault}\n{case:?}"))?;
    }
    Ok(())
}

/// Random plans; `PROPTEST_CASES` asks for more, `PROPTEST_RNG_SEED` for others.
#[test]
fn plans_move_what_the_oracle_says() {
    let name = "plans_move_what_the_oracle_says";
    run_anywhere(name, &[("FAKE_CUDA_DELAY_US", "5")], |_| {
        let gpu = Gpu::open(0).unwrap();
        let mut config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 24;
        }
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            config.rng_seed = RngSeed::Fixed(18);
        }
        let programs = Cell::new(0);
        let test = |case: Case| agree(&gpu, &case, &programs).map_err(TestCaseError::fail);
        TestRunner::new(config)
            .run(&cases(Reach::Settled), test)
            .unwrap();
        println!("{} programs", programs.get());
    });
}

#[test]
fn cases_that_are_kept_move_too() {
    let name = "cases_that_are_kept_move_too";
    run_anywhere(name, &[("FAKE_CUDA_DELAY_US", "5")], |_| {
        let gpu = Gpu::open(0).unwrap();
        for (name, case) in kept() {
            agree(&gpu, &case, &Cell::new(0)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        }
    });
}

/// So many bytes, in chunks of `run` at twice that distance on one side.
fn strided(bytes: u64, run: u64) -> Program {
    let loops = smallvec![Loop {
        count: bytes / run,
        src: 2 * run,
        dst: run
    }];
    Program {
        nests: vec![Nest { loops, run }],
        placed: vec![Placed {
            nest: 0,
            src: 0,
            dst: 0,
        }],
    }
}

/// So many bytes, contiguous on both sides.
fn dense(bytes: u64) -> Program {
    Program {
        nests: vec![Nest {
            loops: smallvec![],
            run: bytes,
        }],
        ..strided(bytes, bytes)
    }
}

/// Copies of many pieces, from the host and back to it, with the sum that the host makes of them.
#[test]
fn long_copies_go_in_pieces() {
    run_anywhere("long_copies_go_in_pieces", &[], |_| {
        let (gpu, len) = (Gpu::open(0).unwrap(), 5 * (1 << 20) + 512);
        let (there, back) = (strided(len, 512), dense(len));
        let source = Memory::allocate(&[2 * len as usize]).unwrap();
        let destination = Memory::allocate(&[len as usize]).unwrap();
        let device = DeviceMemory::allocate(&gpu, &[len as usize]).unwrap();
        let bytes: Vec<u8> = (0..2 * len).map(|i| (i * 7 / 64) as u8).collect();
        source.write(0, &bytes).unwrap();

        let options = CopyOptions::new().with_checksum();
        let sent = copy(&there, &source, &device, &options).unwrap();
        let got = copy(&back, &device, &destination, &options).unwrap();

        let expected: Vec<u8> = bytes
            .chunks(1024)
            .flat_map(|two| &two[..512])
            .copied()
            .collect();
        let mut copied = vec![0; len as usize];
        destination.read(0, &mut copied).unwrap();
        assert!(copied == expected);
        assert_eq!((sent.bytes, sent.chunks), (len, len / 512));
        assert_eq!(sent.checksum, Some(Crc32c::of(&expected)));
        assert_eq!(got.checksum, sent.checksum);
    });
}

/// Many copies at a time share the pieces of a GPU, in either direction, and none waits for ever.
#[test]
fn copies_that_share_a_gpu_all_end() {
    let variables = [("FAKE_CUDA_DELAY_US", "500")];
    run_anywhere("copies_that_share_a_gpu_all_end", &variables, |_| {
        let (gpu, len) = (&Gpu::open(0).unwrap(), 6 << 20);
        let program = &dense(len);
        std::thread::scope(|scope| {
            for number in 0..24 {
                scope.spawn(move || {
                    let host = Memory::allocate(&[len as usize]).unwrap();
                    host.write(len - 1, &[number]).unwrap();
                    let device = DeviceMemory::allocate(gpu, &[len as usize]).unwrap();
                    copy(program, &host, &device, &CopyOptions::new()).unwrap();
                    host.write(len - 1, &[0]).unwrap();
                    copy(program, &device, &host, &CopyOptions::new()).unwrap();
                    let mut last = [0];
                    host.read(len - 1, &mut last).unwrap();
                    assert_eq!(last, [number]);
                });
            }
        });
    });
}

/// Copies between two GPUs, in both directions at once and several in each: every byte once, none waits for ever, and
/// what a direction needs is made once.
#[test]
fn two_gpus_copy_to_each_other() {
    let variables = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_DELAY_US", "500")];
    run("two_gpus_copy_to_each_other", &variables, |fake| {
        let gpus = [Gpu::open(0).unwrap(), Gpu::open(1).unwrap()];
        // More pieces than there are slots, and the last one short.
        let len = (4 << 22) + 512;
        let bytes: Vec<u8> = (0..2 * len as u64).map(|i| (i * 7 / 64) as u8).collect();
        let expected: Vec<u8> = bytes
            .chunks(1024)
            .flat_map(|two| &two[..512])
            .copied()
            .collect();
        let round = |from: &Gpu, to: &Gpu| {
            let (host, back) = (
                Memory::allocate(&[2 * len]).unwrap(),
                Memory::allocate(&[len]).unwrap(),
            );
            host.write(0, &bytes).unwrap();
            let source = DeviceMemory::allocate(from, &[2 * len]).unwrap();
            let destination = DeviceMemory::allocate(to, &[len]).unwrap();
            let options = CopyOptions::new();
            copy(&dense(2 * len as u64), &host, &source, &options).unwrap();
            let report = copy(&strided(len as u64, 512), &source, &destination, &options).unwrap();
            assert_eq!(report.bytes, len as u64);
            copy(&dense(len as u64), &destination, &back, &options).unwrap();
            let mut copied = vec![0; len];
            back.read(0, &mut copied).unwrap();
            assert!(copied == expected);
        };
        let made = |fake: &Fake| fake.calls("cuMemAlloc_v2");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| round(&gpus[0], &gpus[1]));
                scope.spawn(|| round(&gpus[1], &gpus[0]));
            }
        });
        let before = made(&fake);
        round(&gpus[0], &gpus[1]);
        assert_eq!(made(&fake) - before, 2, "the two memories, and no buffer");
    });
}

#[test]
fn what_is_no_memory_of_the_gpu_is_refused() {
    let name = "what_is_no_memory_of_the_gpu_is_refused";
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
        assert_eq!(
            past,
            "allocation 0 of 4097 bytes has only 4096 mapped from its start on"
        );
        let elsewhere = text(foreign(&other, start, 4096));
        assert_eq!(
            elsewhere,
            "allocation 0 is memory of device 0, not of device 1"
        );
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
        assert_eq!(
            text(foreign(&gpu, managed, 4096)),
            "allocation 0 is managed memory, not memory of a CUDA device"
        );
        // SAFETY: the driver knows its streams, and compares.
        let mark = unsafe { Mark::new(&other, engine.stream()) };
        let mark = mark.unwrap_err().to_string();
        assert!(
            mark.starts_with("the stream is none of device 1, or was destroyed: cuEventRecord"),
            "{mark}"
        );

        let theirs = DeviceMemory::allocate(&other, &[4096]).unwrap();
        let too_far = strided(4096, 2048);
        for to in [&memory, &theirs] {
            let error = copy(&too_far, &memory, to, &CopyOptions::new()).unwrap_err();
            assert!(
                error.to_string().contains("needs bytes 4096 to 6144"),
                "{error}"
            );
            let summed = CopyOptions::new().with_checksum();
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

/// A GPU that has no room for one of several allocations has those before it back.
#[test]
fn allocations_before_one_that_fails_are_given_back() {
    run(
        "allocations_before_one_that_fails_are_given_back",
        &[],
        |fake| {
            let gpu = Gpu::open(0).unwrap();
            drop(DeviceMemory::allocate(&gpu, &[4096; 3]).unwrap());
            let before = fake.live();
            const OUT_OF_MEMORY: u32 = 2;
            for nth in 1..=3 {
                fake.fail("cuMemAlloc_v2", nth, OUT_OF_MEMORY);
                let error = DeviceMemory::allocate(&gpu, &[4096; 3]).unwrap_err();
                let said = "cuMemAlloc_v2 gives CUDA_ERROR_OUT_OF_MEMORY (2)";
                assert!(error.to_string().contains(said), "{error}");
                assert_eq!(fake.live(), before, "allocation {nth}");
            }
        },
    );
}

/// Allocations of an engine may begin anywhere: what is copied is right, by shorter units. The fake driver's kernel, like a GPU's,
/// takes no unit from an address that is none of its multiples.
#[test]
fn memory_may_begin_anywhere() {
    run_anywhere("memory_may_begin_anywhere", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        let (len, options) = (4096, CopyOptions::new());
        let room = DeviceMemory::allocate(&gpu, &[2 * len + 32]).unwrap();
        let (start, _) = room.allocation(0).unwrap();
        let at = |offset: u64, len: usize| {
            let ranges = [(start + offset, len)];
            // SAFETY: `room` outlives what is registered in it.
            unsafe { DeviceMemory::from_raw_parts(&gpu, &ranges, Access::ReadWrite, None) }.unwrap()
        };
        let host = Memory::allocate(&[len]).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 / 64) as u8).collect();
        let expected: Vec<u8> = bytes
            .chunks(1024)
            .flat_map(|two| &two[..512])
            .copied()
            .collect();
        for offset in [1, 2, 4, 8, 15] {
            let (source, destination) = (at(offset, len), at(len as u64 + 16, len / 2));
            host.write(0, &bytes).unwrap();
            copy(&dense(len as u64), &host, &source, &options).unwrap();
            let half = strided(len as u64 / 2, 512);
            copy(&half, &source, &destination, &options).unwrap();
            copy(&dense(len as u64 / 2), &destination, &host, &options).unwrap();
            let mut copied = vec![0; len / 2];
            host.read(0, &mut copied).unwrap();
            assert!(copied == expected, "from {offset} on");
        }
    });
}

/// What cannot be measured on is refused before the GPU is asked for anything.
#[test]
fn measuring_checks_what_it_is_given() {
    let name = "measuring_checks_what_it_is_given";
    run(name, &[("FAKE_CUDA_DEVICES", "2")], |_| {
        let (gpu, other) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
        let meter = Meter::new(&gpu).unwrap();
        let memory = |gpu: &Gpu| DeviceMemory::allocate(gpu, &[4096]).unwrap();
        let (here, there) = (memory(&gpu), memory(&other));
        let (start, _) = here.allocation(0).unwrap();
        let parts = [(start, 4096)];
        // SAFETY: the memory is there until the end of this test.
        let read_only =
            unsafe { DeviceMemory::from_raw_parts(&gpu, &parts, Access::Read, None) }.unwrap();
        let mut pinned = PinnedMemory::allocate(&gpu, 2048).unwrap();
        let program = strided(2048, 512);

        let elsewhere = DeviceError::OtherDevice {
            allocation: 0,
            found: 1,
            expected: 0,
        };
        let refused = meter.prepare(&program, &here, &there).unwrap_err();
        assert_eq!(refused, elsewhere);
        let past = |len, available| DeviceError::PastEnd {
            allocation: 0,
            len,
            available,
        };
        let refused = meter.one_copy(&here, &here, 4097).unwrap_err();
        assert_eq!(refused, past(4097, 4096));
        let refused = meter
            .one_crossing(&here, &mut pinned, 4096, true)
            .unwrap_err();
        assert_eq!(refused, past(4096, 2048));
        let unwritable = DeviceError::Check(CheckError::ReadOnly);
        let refused = meter.one_copy(&here, &read_only, 512).unwrap_err();
        assert_eq!(refused, unwritable);
        let refused = meter
            .one_crossing(&read_only, &mut pinned, 512, false)
            .unwrap_err();
        assert_eq!(refused, unwritable);
        let refused = meter.to_device(&program, &read_only).unwrap_err();
        assert_eq!(refused, unwritable);
        for (to, why) in [(&read_only, unwritable), (&there, elsewhere)] {
            let refused = meter.through_slots(&program, [&here, to]).unwrap_err();
            assert_eq!(refused, why);
        }
        meter
            .one_crossing(&read_only, &mut pinned, 512, true)
            .unwrap();
    });
}

/// Everything that is used of the driver, on a small scale.
fn use_all() -> Result<Vec<u8>, DeviceError> {
    let (gpu, other) = (Gpu::open(0)?, Gpu::open(1)?);
    let (program, dense) = (strided(4096, 512), dense(4096));
    let host = Memory::allocate(&[8192])?;
    for page in 0..8 {
        host.write(1024 * page, &[page as u8 + 1; 512]).unwrap();
    }
    let (first, second) = (
        DeviceMemory::allocate(&gpu, &[4096])?,
        DeviceMemory::allocate(&gpu, &[4096])?,
    );
    let (start, _) = second.allocation(0).unwrap();
    // SAFETY: the memory is kept.
    let second = unsafe {
        let keeper = Some(std::sync::Arc::new(second) as _);
        DeviceMemory::from_raw_parts(&gpu, &[(start, 4096)], Access::ReadWrite, keeper)?
    };
    let options = CopyOptions::new();
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

/// What [`use_all`] has to give.
fn is_right(bytes: &[u8]) -> bool {
    (1..)
        .zip(bytes.chunks(512))
        .all(|(page, chunk)| chunk.iter().all(|byte| *byte == page))
}

/// The functions of the driver that the device room calls, as it lists them itself.
fn functions() -> Vec<&'static str> {
    let source = include_str!("../../crates/transfer/src/device/driver.rs");
    let list = source
        .split("functions! {")
        .nth(1)
        .unwrap()
        .split('}')
        .next()
        .unwrap();
    list.split_whitespace().collect()
}

/// Each function fails at each of its calls once. Whatever is reported good is right, what fails names the function, and
/// nothing stays behind but what that call was to give back.
#[test]
fn each_call_may_fail() {
    run(
        "each_call_may_fail",
        &[("FAKE_CUDA_DELAY_US", "0"), ("FAKE_CUDA_DEVICES", "2")],
        |fake| {
            assert!(is_right(&use_all().unwrap()));
            let (mut left, mut failed) = (settled(&fake, 0), 0);
            for function in functions() {
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
                    assert!(
                        stays <= left + 1,
                        "{function}, call {nth}: something stays behind"
                    );
                    left = stays;
                }
            }
            assert!(failed > 40, "only {failed} failures");
        },
    );
}

/// How much there is of the driver's once threads have ended, or after a while, where it is more than that.
fn settled(fake: &Fake, most: u64) -> u64 {
    for _ in 0..500 {
        if fake.live() <= most {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    fake.live()
}

/// After a sticky error all that is left is to say so.
#[test]
fn a_lost_device_is_reported() {
    run("a_lost_device_is_reported", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let (host, memory) = (
            Memory::allocate(&[4096]).unwrap(),
            DeviceMemory::allocate(&gpu, &[4096]).unwrap(),
        );
        let program = strided(2048, 512);
        const LAUNCH_FAILED: u32 = 719;
        fake.fail("cuLaunchKernel", 1, LAUNCH_FAILED);
        for _ in 0..2 {
            let error = copy(&program, &memory, &host, &CopyOptions::new()).unwrap_err();
            assert!(
                matches!(error, DeviceError::Lost { ordinal: 0, .. }),
                "{error}"
            );
        }
        let error = Gpu::open(0).unwrap_err();
        assert!(
            error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"),
            "{error}"
        );
    });
}

/// An illegal address that a kernel of the engine reads is the end of the device: all that is asked of it afterwards
/// says so, and so does a mark that waits.
#[test]
fn an_illegal_address_loses_the_device() {
    run_anywhere("an_illegal_address_loses_the_device", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&driver);
        let (host, memory) = (
            Memory::allocate(&[4096]).unwrap(),
            DeviceMemory::allocate(&gpu, &[4096]).unwrap(),
        );
        engine.stray();
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let (tell, told) = mpsc::channel();
        mark.when_done(move |done| tell.send(done).unwrap());
        let done = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let copied = copy(&strided(2048, 512), &memory, &host, &CopyOptions::new());
        for error in [done.unwrap_err(), copied.unwrap_err()] {
            assert!(
                matches!(&error, DeviceError::Lost { ordinal: 0, why } if why.code == 700),
                "{error}"
            );
        }
        std::process::exit(0);
    });
}

/// An engine captures its work as a graph while copies run, and each knows nothing of the other.
#[test]
fn a_graph_is_captured_while_copies_run() {
    const GRAPHS: u32 = 200;
    run_anywhere("a_graph_is_captured_while_copies_run", &[], |driver| {
        if !driver.has("cuStreamBeginCapture_v2") {
            eprintln!("NOT RUN: this driver captures no graphs");
            return;
        }
        let (gpu, len) = (Gpu::open(0).unwrap(), 4 << 20);
        let engine = Engine::new(&driver);
        let cache = DeviceMemory::allocate(&gpu, &[4096]).unwrap();
        let (start, _) = cache.allocation(0).unwrap();
        let program = Program {
            nests: vec![Nest {
                loops: smallvec![],
                run: len,
            }],
            ..strided(len, len)
        };
        let capture = |step: u32| {
            let bytes = [step as u8; 64];
            let mut read: &[u8] = &[];
            engine.graph(|| {
                for _ in 0..20 {
                    engine.spin(50);
                }
                engine.write(start, &bytes);
                read = engine.read(start, 64);
            });
            assert_eq!(read, bytes);
        };
        std::thread::scope(|scope| {
            let captures = scope.spawn(|| (0..GRAPHS).for_each(capture));
            let mut count = 0u8;
            while !captures.is_finished() {
                // A new memory each time, since that asks most of the driver.
                let device = DeviceMemory::allocate(&gpu, &[len as usize]).unwrap();
                let host = Memory::allocate(&[len as usize]).unwrap();
                host.write(len - 1, &[count]).unwrap();
                copy(&program, &host, &device, &CopyOptions::new()).unwrap();
                host.write(len - 1, &[!count]).unwrap();
                copy(&program, &device, &host, &CopyOptions::new()).unwrap();
                let mut last = [0];
                host.read(len - 1, &mut last).unwrap();
                assert_eq!(last, [count]);
                count = count.wrapping_add(1);
            }
            captures.join().unwrap();
        });
        println!("{GRAPHS} graphs");
    });
}

/// Nothing is told of a mark before its stream has come there, and nothing else waits for it.
#[test]
fn marks_hold_up_nobody_else() {
    run_anywhere("marks_hold_up_nobody_else", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&driver);
        let (host, memory) = (
            Memory::allocate(&[4096]).unwrap(),
            DeviceMemory::allocate(&gpu, &[4096]).unwrap(),
        );
        // Once before: a driver may wait for all that runs when it loads a kernel or makes a table's memory.
        copy(&strided(2048, 512), &host, &memory, &CopyOptions::new()).unwrap();
        engine.spin(200_000);
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let (tell, told) = mpsc::channel();
        mark.when_done(move |done| tell.send(done).unwrap());
        copy(&strided(2048, 512), &host, &memory, &CopyOptions::new()).unwrap();
        assert!(
            told.try_recv().is_err(),
            "the mark was done before its stream"
        );
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
    });
}

/// A machine without a driver, with an empty one, and with one that is too old: each says what is missing.
#[test]
fn without_cuda_it_says_why() {
    const NAME: &str = "without_cuda_it_says_why";
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
        assert!(
            fake_cuda::status(NAME, library, &variables, body).success(),
            "{why}"
        );
    };
    let fake = fake_cuda::library();
    let lacks = |name| NoCuda::NoFunction { name }.to_string();
    let (_folder, old) = without(&fake, &["cuEventQuery"]);
    expect(&old, &[], &lacks("cuEventQuery"));
    if let Some((_folder, empty)) = fake_cuda::empty() {
        expect(&empty, &[], &lacks(functions()[0]));
    }
    expect(
        &fake,
        &[("FAKE_CUDA_DEVICES", "0")],
        "no CUDA here: the driver knows no device",
    );
    let refused = [("FAKE_CUDA_FAIL", "cuInit:1:999")];
    let why = "no CUDA here: cuInit gives CUDA_ERROR_UNKNOWN (999)";
    expect(&fake, &refused, why);
}

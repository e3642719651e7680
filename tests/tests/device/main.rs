//! GPU memory, on the fake driver: plans against the oracle, copies that share a GPU, and what else an engine does there.
//!
//! - [`failures`]: what is refused, what fails, and what is left behind by that.
#![cfg(target_os = "linux")]

mod failures;

use std::cell::Cell;
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use smallvec::smallvec;
use transload_tests::cases::{Case, Reach, cases, kept};
use transload_tests::fake_cuda::{Engine, Fake, run, run_anywhere};
use transload_tests::on_device::{OnDevice, Sides};
use transload_tests::planner::{Demand, check};
use transload_transfer::Memory;
use transload_transfer::device::internal::measure::Meter;
use transload_transfer::device::{DeviceError, DeviceMemory, Gpu, Mark, copy};
use transload_transfer::memory::Access;
use transload_transfer::memory::copy::{CopyOptions, Crc32c};
use transload_transfer::plan::program::{Loop, Nest, Placed, Program};

/// Checks that every byte of a case comes once, from the right place, with either side on the GPU.
fn agree(gpu: &Gpu, case: &Case, programs: &Cell<u64>) -> Result<(), String> {
    for sides in [Sides::Both, Sides::Source, Sides::Destination] {
        let planner = OnDevice { gpu, sides, programs };
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
        let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 24;
        }
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            config.rng_seed = RngSeed::Fixed(18);
        }
        let programs = Cell::new(0);
        let test = |case: Case| agree(&gpu, &case, &programs).map_err(TestCaseError::fail);
        TestRunner::new(config).run(&cases(Reach::Settled), test).unwrap();
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

/// Returns a program for this many bytes, in chunks of `run` at twice that distance on one side.
fn strided(bytes: u64, run: u64) -> Program {
    let loops = smallvec![Loop { count: bytes / run, src: 2 * run, dst: run }];
    Program { nests: vec![Nest { loops, run }], placed: vec![Placed { nest: 0, src: 0, dst: 0 }] }
}

/// Returns a program for this many bytes, contiguous on both sides.
fn dense(bytes: u64) -> Program {
    Program { nests: vec![Nest { loops: smallvec![], run: bytes }], ..strided(bytes, bytes) }
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

        let options = CopyOptions { checksum: true, ..CopyOptions::default() };
        let sent = copy(&there, &source, &device, &options).unwrap();
        let got = copy(&back, &device, &destination, &options).unwrap();

        let expected: Vec<u8> = bytes.chunks(1024).flat_map(|two| &two[..512]).copied().collect();
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
                    let mut bytes = vec![number; len as usize];
                    for (block, bytes) in (0u8..).zip(bytes.chunks_mut(4096 * 7)) {
                        bytes[..4096].fill(number ^ block);
                    }
                    host.write(0, &bytes).unwrap();
                    let device = DeviceMemory::allocate(gpu, &[len as usize]).unwrap();
                    copy(program, &host, &device, &CopyOptions::default()).unwrap();
                    host.write(0, &vec![0; len as usize]).unwrap();
                    copy(program, &device, &host, &CopyOptions::default()).unwrap();
                    let mut copied = vec![0; len as usize];
                    host.read(0, &mut copied).unwrap();
                    assert!(copied == bytes);
                });
            }
        });
    });
}

/// Pieces that wait are submitted two at a time where they are neighbours, and all of them are cut from two allocations. These are made when the
/// GPU is opened, and so is the memory of tables.
#[test]
fn neighbours_are_submitted_as_one() {
    let slow = [("FAKE_CUDA_DELAY_US", "20000")];
    run("neighbours_are_submitted_as_one", &slow, |fake| {
        const CALLS: [&str; 3] = ["runs_16", "cuMemcpyDtoHAsync_v2", "cuEventRecord"];
        const PIECES: u64 = 16;
        let (gpu, len) = (Gpu::open(0).unwrap(), PIECES << 20);
        let made = ["cuMemAlloc_v2", "cuMemHostAlloc"].map(|call| fake.calls(call));
        assert_eq!(made, [2, 1]);
        let (meter, memory) = (Meter::new(&gpu).unwrap(), DeviceMemory::allocate(&gpu, &[len as usize]).unwrap());
        // Each entry is launched once when a GPU is opened.
        let before = CALLS.map(|call| fake.calls(call));
        std::thread::scope(|scope| {
            fake.hold_at("cuLaunchKernel");
            let asked = scope.spawn(|| meter.to_host(&dense(len), &memory, 0).unwrap());
            // Until all are asked for.
            std::thread::sleep(Duration::from_millis(200));
            fake.hold(false);
            asked.join().unwrap();
        });
        let [launched, copied, recorded] = [0, 1, 2].map(|at| fake.calls(CALLS[at]) - before[at]);
        // 4 MiB were submitted as they came; an event is recorded behind each upload as well.
        assert!((PIECES / 2..=PIECES / 2 + 2).contains(&launched), "{launched}");
        assert_eq!(copied, launched);
        assert!(recorded < launched + 4, "{recorded} events");
        println!("{launched} launches, {copied} copies, {recorded} events");
        // Besides those, the meter's pieces and the memory.
        assert_eq!(fake.calls("cuMemAlloc_v2"), 2 + 2);
    });
}

/// An engine's own work and small copies do not wait for ours: streams for the bus have the greatest priority and few multiprocessors, the
/// one for copies within the GPU the normal one and all, and a copy engine has 4 MiB of each direction at most.
#[test]
fn an_engine_goes_first() {
    let slow = [("FAKE_CUDA_DELAY_US", "4000")];
    run("an_engine_goes_first", &slow, |fake| {
        const COPIES: [&str; 2] = ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"];
        const AT_A_TIME: usize = 4;
        let (gpu, len) = (Gpu::open(0).unwrap(), 8 << 20);
        let program = dense(len);
        let under_way = || {
            let submitted: u64 = COPIES.iter().map(|copy| fake.calls(copy)).sum();
            submitted.saturating_sub(fake.calls("copy done"))
        };
        for to_host in [true, false] {
            let most = std::thread::scope(|scope| {
                let copies = [(); AT_A_TIME].map(|()| {
                    scope.spawn(|| {
                        let host = Memory::allocate(&[len as usize]).unwrap();
                        let device = DeviceMemory::allocate(&gpu, &[len as usize]).unwrap();
                        let options = CopyOptions::default();
                        match to_host {
                            true => copy(&program, &device, &host, &options).unwrap(),
                            false => copy(&program, &host, &device, &options).unwrap(),
                        }
                    })
                });
                let mut most = 0;
                while !copies.iter().all(|copy| copy.is_finished()) {
                    most = most.max(under_way());
                }
                most
            });
            // Each copy asks for four pieces at once, of which two may go as one, and what it uploads before may be under way too.
            let expected = 2..=4 + 2 * AT_A_TIME as u64;
            assert!(expected.contains(&most), "{most} copies at a time");
        }
        assert_eq!(fake.calls("cuStreamCreate"), 0);
        let ours = fake.calls("cuStreamCreateWithPriority");
        assert_eq!(fake.calls("greatest priority"), ours - 1);
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
        let expected: Vec<u8> = bytes.chunks(1024).flat_map(|two| &two[..512]).copied().collect();
        let round = |from: &Gpu, to: &Gpu| {
            let (host, back) = (Memory::allocate(&[2 * len]).unwrap(), Memory::allocate(&[len]).unwrap());
            host.write(0, &bytes).unwrap();
            let source = DeviceMemory::allocate(from, &[2 * len]).unwrap();
            let destination = DeviceMemory::allocate(to, &[len]).unwrap();
            let options = CopyOptions::default();
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

/// An engine's allocations may begin anywhere: unaligned ones are copied correctly, in shorter units. Like a GPU's
/// kernel, that of the fake driver refuses a unit at an address that is no multiple of it.
#[test]
fn memory_may_begin_anywhere() {
    run_anywhere("memory_may_begin_anywhere", &[], |_| {
        let gpu = Gpu::open(0).unwrap();
        let (len, options) = (4096, CopyOptions::default());
        let room = DeviceMemory::allocate(&gpu, &[2 * len + 32]).unwrap();
        let (start, _) = room.allocation(0).unwrap();
        let at = |offset: u64, len: usize| {
            let ranges = [(start + offset, len)];
            // SAFETY: `room` outlives what is registered in it.
            unsafe { DeviceMemory::from_raw_parts(&gpu, &ranges, Access::ReadWrite, None) }.unwrap()
        };
        let host = Memory::allocate(&[len]).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 / 64) as u8).collect();
        let expected: Vec<u8> = bytes.chunks(1024).flat_map(|two| &two[..512]).copied().collect();
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

/// An illegal address in an engine's kernel ends the device: every later call reports it, and so does a waiting mark.
#[test]
fn an_illegal_address_loses_the_device() {
    run_anywhere("an_illegal_address_loses_the_device", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&driver);
        let (host, memory) = (Memory::allocate(&[4096]).unwrap(), DeviceMemory::allocate(&gpu, &[4096]).unwrap());
        engine.stray();
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let (tell, told) = mpsc::channel();
        mark.when_done(move |done| tell.send(done).unwrap());
        let done = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let copied = copy(&strided(2048, 512), &memory, &host, &CopyOptions::default());
        for error in [done.unwrap_err(), copied.unwrap_err()] {
            assert!(matches!(&error, DeviceError::Lost { ordinal: 0, why } if why.code == 700), "{error}");
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
        let program = Program { nests: vec![Nest { loops: smallvec![], run: len }], ..strided(len, len) };
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
                copy(&program, &host, &device, &CopyOptions::default()).unwrap();
                host.write(len - 1, &[!count]).unwrap();
                copy(&program, &device, &host, &CopyOptions::default()).unwrap();
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

/// A mark is done only after its stream has reached it, and nothing else waits for it.
#[test]
fn marks_hold_up_nobody_else() {
    run_anywhere("marks_hold_up_nobody_else", &[], |driver| {
        let gpu = Gpu::open(0).unwrap();
        let engine = Engine::new(&driver);
        let (host, memory) = (Memory::allocate(&[4096]).unwrap(), DeviceMemory::allocate(&gpu, &[4096]).unwrap());
        // Once before: a driver may wait for all that runs when it loads a kernel or makes a table's memory.
        copy(&strided(2048, 512), &host, &memory, &CopyOptions::default()).unwrap();
        engine.spin(200_000);
        // SAFETY: the stream is there until this process ends.
        let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
        let (tell, told) = mpsc::channel();
        mark.when_done(move |done| tell.send(done).unwrap());
        copy(&strided(2048, 512), &host, &memory, &CopyOptions::default()).unwrap();
        assert!(told.try_recv().is_err(), "the mark was done before its stream");
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
    });
}

/// A mark is not polled while it is awaited, and a stalled stream does not delay the marks of others.
#[test]
fn the_driver_wakes_who_waits_for_marks() {
    run("the_driver_wakes_who_waits_for_marks", &[], |fake| {
        let gpu = Gpu::open(0).unwrap();
        let (still, busy) = (Engine::new(&fake), Engine::new(&fake));
        let (tell, told) = mpsc::channel();
        let mark = |engine: &Engine, number: u32| {
            // SAFETY: the stream is there until this process ends.
            let mark = unsafe { Mark::new(&gpu, engine.stream()).unwrap() };
            let tell = tell.clone();
            mark.when_done(move |done| tell.send((number, done)).unwrap());
        };
        let next = || told.recv_timeout(Duration::from_secs(20)).unwrap();
        fake.hold_stream(still.stream() as usize, true);
        let asked = fake.calls("cuEventQuery");
        (0..8).for_each(|number| mark(&still, number));
        for number in 100..200 {
            busy.spin(1000);
            mark(&busy, number);
            assert_eq!(next(), (number, Ok(())));
        }
        // For the device itself it is asked once a second.
        assert!(fake.calls("cuEventQuery") < asked + 100);
        fake.hold_stream(still.stream() as usize, false);
        (0..8).for_each(|number| assert_eq!(next(), (number, Ok(()))));
    });
}

/// A mark in a captured graph is refused: it would be reached at each launch of the graph, or never.
#[test]
fn a_stream_that_is_captured_has_no_marks() {
    run("a_stream_that_is_captured_has_no_marks", &[], |fake| {
        let (gpu, engine) = (Gpu::open(0).unwrap(), Engine::new(&fake));
        // SAFETY: the stream is there until this process ends.
        let mark = || unsafe { Mark::new(&gpu, engine.stream()) };
        fake.capture(engine.stream(), true);
        assert_eq!(mark().unwrap_err(), DeviceError::Capturing);
        fake.capture(engine.stream(), false);
        assert!(mark().is_ok());
    });
}

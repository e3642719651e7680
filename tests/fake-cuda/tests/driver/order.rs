//! The order of operations in streams, and events.

use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys::*;

use crate::program::*;

const SIZE: usize = 4096;

#[test]
fn a_stream_keeps_its_order() {
    run("order::a_stream_keeps_its_order", &[("FAKE_CUDA_SEED", "7")], || {
        start();
        let (on, memory, bytes) = (stream(false), allocate(SIZE), pinned(SIZE));
        for value in 0..100 {
            good!(cuMemsetD8Async(memory, value, SIZE, on));
        }
        good!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), memory, SIZE, on));
        good!(cuStreamSynchronize(on));
        assert!(bytes.iter().all(|byte| *byte == 99));
    });
}

/// Either of two streams may run first, depending on the seed.
#[test]
fn streams_have_no_order_among_them() {
    run("order::streams_have_no_order_among_them", &[], || {
        start();
        let (one, other) = (stream(false), stream(false));
        let memory = allocate(1);
        let mut seen = [false; 2];
        for _ in 0..1000 {
            good!(cuMemsetD8Async(memory, 0, 1, one));
            good!(cuMemsetD8Async(memory, 1, 1, other));
            seen[usize::from(download(memory, 1)[0])] = true;
            if seen == [true; 2] {
                return;
            }
        }
        panic!("always the same order");
    });
}

#[test]
fn calls_return_before_the_work_is_done() {
    run("order::calls_return_before_the_work_is_done", &[], || {
        let fake = start();
        let (on, memory, bytes) = (stream(false), allocate(SIZE), pinned(SIZE));
        let event = get!(CUevent: cuEventCreate(_, 0));
        // Nothing was recorded in the event yet.
        good!(cuEventQuery(event));
        good!(cuEventSynchronize(event));
        good!(cuStreamQuery(on));

        fake.hold(true);
        bytes.fill(1);
        good!(cuMemcpyHtoDAsync_v2(memory, bytes.as_ptr().cast(), SIZE, on));
        good!(cuEventRecord(event, on));
        assert_eq!(call!(cuEventQuery(event)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(call!(cuStreamQuery(on)), CUresult::CUDA_ERROR_NOT_READY);
        // Pinned memory is read when the copy starts.
        bytes.fill(2);
        // Pageable memory was read before the call returned.
        let mut pageable = vec![3u8; SIZE];
        good!(cuMemcpyHtoDAsync_v2(memory + 1, pageable.as_ptr().cast(), SIZE - 1, on));
        pageable.fill(4);
        // An event may be destroyed while a stream waits for it.
        let other = stream(false);
        good!(cuStreamWaitEvent(other, event, 0));
        good!(cuEventDestroy_v2(event));
        assert_eq!(call!(cuEventQuery(event)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(call!(cuStreamQuery(other)), CUresult::CUDA_ERROR_NOT_READY);

        fake.hold(false);
        good!(cuStreamSynchronize(other));
        let found = download(memory, SIZE);
        assert_eq!((found[0], found[1], found[SIZE - 1]), (2, 3, 3));
    });
}

#[test]
fn a_stream_is_held_alone() {
    run("order::a_stream_is_held_alone", &[], || {
        let fake = start();
        let (held, free, memory, found) = (stream(false), stream(false), allocate(2), pinned(2));
        fake.hold_stream(held.addr(), true);
        good!(cuMemsetD8Async(memory, 1, 1, held));
        good!(cuMemsetD8Async(memory + 1, 2, 1, free));
        good!(cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), memory, 2, free));
        good!(cuStreamSynchronize(free));
        assert_eq!(found, [0, 2]);
        assert_eq!(call!(cuStreamQuery(held)), CUresult::CUDA_ERROR_NOT_READY);
        fake.hold_stream(held.addr(), false);
        good!(cuStreamSynchronize(held));
        assert_eq!(download(memory, 2), [1, 2]);
    });
}

#[test]
fn a_kernel_holds_its_stream_until_a_flag_is_set() {
    run("order::a_kernel_holds_its_stream_until_a_flag_is_set", &[], || {
        start();
        let (on, flag) = (stream(false), pinned(4).as_mut_ptr().cast::<u32>());
        launch(function("hold"), 1, 1, on, &(flag.expose_provenance() as u64));
        // Memory can be allocated while the kernel waits.
        std::thread::sleep(Duration::from_millis(2));
        allocate(1);
        assert_eq!(call!(cuStreamQuery(on)), CUresult::CUDA_ERROR_NOT_READY);
        // SAFETY: the flag is in pinned memory, which is never freed.
        unsafe { flag.write_volatile(1) };
        good!(cuStreamSynchronize(on));
        // An address without a flag is an illegal access.
        launch(function("hold"), 1, 1, on, &64u64);
        assert_eq!(call!(cuStreamSynchronize(on)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn streams_share_hardware_queues() {
    let two = [("FAKE_CUDA_QUEUES", "2"), ("FAKE_CUDA_DELAY_US", "0")];
    run("order::streams_share_hardware_queues", &two, || {
        start();
        let (one, other, memory) = (stream(false), stream(false), allocate(3));
        // The third stream shares a queue with the first, whatever its priority.
        let third = get!(CUstream: cuStreamCreateWithPriority(_, 1, -5));
        let spin = function("spin");
        launch(spin, 1, 1, one, &300_000_000u32);
        // An operation that has begun delays no other stream.
        good!(cuMemsetD8Async(memory, 1, 1, third));
        good!(cuStreamSynchronize(third));
        // An operation that waits for it delays those behind it in the queue.
        good!(cuMemsetD8Async(memory, 1, 1, one));
        good!(cuMemsetD8Async(memory, 1, 1, third));
        good!(cuMemsetD8Async(memory, 1, 1, other));
        good!(cuStreamSynchronize(other));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(call!(cuStreamQuery(third)), CUresult::CUDA_ERROR_NOT_READY);
    });
}

#[test]
fn allocating_waits_for_work() {
    let waits = [("FAKE_CUDA_ALLOC_WAITS", "1")];
    run("order::allocating_waits_for_work", &waits, || {
        start();
        let (on, spin, mut bytes) = (stream(false), function("spin"), [0u8; 100]);
        let allocations: [&mut dyn FnMut(); 5] = [
            &mut || good!(cuMemAlloc_v2(&mut 0, 1)),
            &mut || good!(cuMemAllocManaged(&mut 0, 1, 1)),
            &mut || good!(cuMemHostAlloc(&mut null_mut(), 1, 0)),
            &mut || good!(cuMemHostRegister_v2(bytes.as_mut_ptr().cast(), 100, 0)),
            &mut || assert!(!function("spin").is_null()),
        ];
        for (which, allocate) in allocations.into_iter().enumerate() {
            launch(spin, 1, 1, on, &50_000u32);
            allocate();
            assert_eq!(call!(cuStreamQuery(on)), CUresult::CUDA_SUCCESS, "{which}");
        }
    });
}

#[test]
fn a_stream_waits_for_an_event() {
    run("order::a_stream_waits_for_an_event", &[], || {
        start();
        let (first, second, memory) = (stream(false), stream(false), allocate(SIZE));
        let event = get!(CUevent: cuEventCreate(_, 0));
        let end = get!(CUevent: cuEventCreate(_, 0));
        let spin = function("spin");
        launch(spin, 1, 1, first, &20_000u32);
        good!(cuMemsetD8Async(memory, 1, SIZE, first));
        good!(cuEventRecord(event, first));
        good!(cuStreamWaitEvent(second, event, 0));
        // Recording it again does not change what the second stream waits for.
        good!(cuEventRecord(event, second));
        good!(cuMemsetD8Async(memory, 2, SIZE, second));
        good!(cuEventRecord(end, second));
        // The work of a destroyed stream is still done.
        good!(cuStreamDestroy_v2(second));
        assert_eq!(call!(cuStreamQuery(second)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        good!(cuEventSynchronize(end));
        assert!(download(memory, SIZE) == [2; SIZE]);
        assert!(get!(f32: cuEventElapsedTime(_, event, end)) >= 0.0);
    });
}

#[test]
fn the_null_stream_waits_for_blocking_streams() {
    run("order::the_null_stream_waits_for_blocking_streams", &[], || {
        let fake = start();
        let (blocking, free, memory) = (stream(true), stream(false), allocate(SIZE));
        let spin = function("spin");
        for _ in 0..10 {
            launch(spin, 1, 1, blocking, &2000u32);
            good!(cuMemsetD8Async(memory, 1, SIZE, blocking));
            good!(cuMemsetD8Async(memory, 2, SIZE, null_mut()));
            good!(cuMemsetD8Async(memory, 3, SIZE, blocking));
            let mut bytes = [0u8; SIZE];
            good!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, SIZE));
            assert!(bytes == [3; SIZE]);
        }
        // The NULL stream does not wait for non-blocking streams. This returns, though such a stream has an endless
        // operation.
        let event = get!(CUevent: cuEventCreate(_, 0));
        launch(spin, 1, 1, free, &300_000_000u32);
        good!(cuEventRecord(event, free));
        good!(cuStreamSynchronize(null_mut()));
        good!(cuMemsetD8_v2(memory, 4, SIZE));
        let mut bytes = [0u8; SIZE];
        good!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, SIZE));
        assert!(bytes == [4; SIZE]);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(call!(cuEventQuery(event)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(fake.calls("cuLaunchKernel"), 11);
    });
}

#[test]
fn threads_use_the_driver_at_once() {
    let two = [("FAKE_CUDA_DEVICES", "2")];
    run("order::threads_use_the_driver_at_once", &two, || {
        let fake = start();
        let program = |thread: i32| {
            context(thread % 2);
            for value in 0..40 {
                let on = stream(thread % 3 == 0);
                let event = get!(CUevent: cuEventCreate(_, 0));
                let (memory, bytes) = (allocate(SIZE), pinned(SIZE));
                let pointer = bytes.as_mut_ptr().cast();
                good!(cuMemsetD8Async(memory, value, SIZE, on));
                good!(cuMemcpyDtoHAsync_v2(pointer, memory, SIZE, on));
                good!(cuEventRecord(event, on));
                good!(cuStreamWaitEvent(null_mut(), event, 0));
                good!(cuEventSynchronize(event));
                assert!(bytes.iter().all(|byte| *byte == value));
                good!(cuStreamDestroy_v2(on));
                good!(cuEventDestroy_v2(event));
                good!(cuMemFree_v2(memory));
                good!(cuMemFreeHost(pointer));
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| std::thread::spawn(move || program(thread))).collect();
        for time in 0..200 {
            fake.hold(time % 2 == 0);
            std::thread::sleep(Duration::from_micros(500));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(fake.live(), 0);
    });
}

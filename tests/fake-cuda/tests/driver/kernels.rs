//! Launches of the one kernel.

use cudarc::driver::sys::*;

use crate::program::*;

/// `struct division` of `walk.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Division {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Loop {
    src: u64,
    dst: u64,
    inner: Division,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Edge {
    number: u32,
    skip: u16,
    bytes: u16,
}

#[repr(C)]
struct Launch {
    places: u64,
    src_bases: u64,
    dst_bases: u64,
    dst_buffer: u64,
    edges: [Edge; 2],
    first: u32,
    count: u32,
    place: Division,
    reverse: u32,
    loops: u32,
    runs: [u32; 3],
    nest: [Loop; 8],
}

/// Returns the constants of a division. They are right for numbers below 2^31.
fn division(divisor: u32) -> Division {
    let shift = divisor.next_power_of_two().trailing_zeros();
    Division { divisor, multiplier: (1u64 << (31 + shift)).div_ceil(u64::from(divisor)) as u32, shift }
}

const SIZE: usize = 1024;

/// A nest of two places, one in each of two allocations, with three chunks of two units each, and a dense buffer.
struct Nest {
    unit: u64,
    allocations: [CUdeviceptr; 2],
    buffer: CUdeviceptr,
    launch: Launch,
}

impl Nest {
    fn new(unit: u64) -> Self {
        let allocations = [allocate(SIZE), allocate(SIZE)];
        let buffer = allocate(SIZE);
        let bases = allocate(16);
        // The list of places may be in pinned memory.
        let places = pinned(32);
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        upload(bases, &words(&allocations));
        places.copy_from_slice(&words(&[2 * unit, 0, (1 << 44) | (4 * unit), 6 * unit]));
        let places = places.as_ptr() as u64;
        // The next chunk begins three units behind the end of this one in an allocation, and directly behind it in the
        // buffer.
        let nest = Loop { src: 3 * unit, dst: 0, inner: division(2), unused: 0 };
        let edge = |number, skip, bytes| Edge { number, skip: skip as u16, bytes: bytes as u16 };
        let launch = Launch {
            places,
            src_bases: bases,
            dst_bases: 0,
            dst_buffer: buffer,
            // The first edge is half of the second unit, and the last edge is all but a byte of the last unit.
            edges: [edge(1, unit / 2, unit - unit / 2), edge(11, 0, unit - 1)],
            first: 2,
            count: 9,
            place: division(6),
            reverse: 0,
            loops: 1,
            runs: [0; 3],
            nest: [nest; 8],
        };
        Self { unit, allocations, buffer, launch }
    }

    /// Lists the bytes that the launch moves. Each has the number of its allocation, its offset there, and its offset
    /// in the buffer.
    fn moves(&self) -> Vec<(usize, usize, usize)> {
        let mut moves = Vec::new();
        let unit = self.unit;
        for (place, start) in [2 * unit, 4 * unit].into_iter().enumerate() {
            for byte in 0..6 * unit {
                let (chunk, within) = (byte / (2 * unit), byte % (2 * unit));
                let dst = place as u64 * 6 * unit + byte;
                if (unit + unit / 2..12 * unit - 1).contains(&dst) {
                    moves.push((place, (start + chunk * 5 * unit + within) as usize, dst as usize));
                }
            }
        }
        moves
    }

    fn run(&self) {
        launch(function(&format!("walk_{}", self.unit)), 2, 16, stream(false), &self.launch);
    }
}

#[test]
fn each_entry_moves_the_bytes_of_a_nest() {
    run("kernels::each_entry_moves_the_bytes_of_a_nest", &[], || {
        start();
        for unit in [16, 8, 4, 2, 1] {
            let mut nest = Nest::new(unit);
            let full = |salt: usize| (0..SIZE).map(|at| (at * 7 + salt * 91) as u8).collect::<Vec<_>>();
            let (mut sides, mut dense) = ([full(1), full(2)], full(3));
            for (allocation, bytes) in nest.allocations.iter().zip(&sides) {
                upload(*allocation, bytes);
            }
            upload(nest.buffer, &dense);
            nest.run();
            for (place, src, dst) in nest.moves() {
                dense[dst] = sides[place][src];
            }
            assert_eq!(download(nest.buffer, SIZE), dense, "unit {unit}");
            // The reverse direction scatters the buffer into other bytes.
            sides = [full(4), full(5)];
            for (allocation, bytes) in nest.allocations.iter().zip(&sides) {
                upload(*allocation, bytes);
            }
            nest.launch.reverse = 1;
            nest.run();
            for (place, src, dst) in nest.moves() {
                sides[place][src] = dense[dst];
            }
            let found = nest.allocations.map(|allocation| download(allocation, SIZE));
            assert_eq!(found, sides, "unit {unit}, reverse");
        }
    });
}

fn loses_the_context(nest: &Nest, code: CUresult) {
    nest.run();
    assert_eq!(call!(cuCtxSynchronize()), code);
    assert_eq!(call!(cuMemAlloc_v2(&mut 0, 1)), code);
    assert_eq!(call!(cuMemFree_v2(nest.buffer)), code);
    assert_eq!(call!(cuStreamCreate(&mut std::ptr::null_mut(), 0)), code);
    assert_eq!(call!(cuMemRelease(1)), code);
    // Calls that only query the device still work.
    assert_eq!(get!(i32: cuDeviceGetCount(_)), 1);
}

#[test]
fn an_illegal_address_is_sticky() {
    run("kernels::an_illegal_address_is_sticky", &[], || {
        start();
        let mut nest = Nest::new(4);
        nest.launch.dst_buffer += SIZE as u64 - 4 * 11;
        loses_the_context(&nest, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn a_table_ends_where_its_allocation_does() {
    run("kernels::a_table_ends_where_its_allocation_does", &[], || {
        start();
        let nest = Nest::new(8);
        let place = ((1u64 << 20) - 1) << 44;
        upload(nest.launch.places, &place.to_le_bytes());
        loses_the_context(&nest, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn places_are_checked() {
    run("kernels::places_are_checked", &[], || {
        start();
        let mut nest = Nest::new(8);
        nest.launch.count = 12;
        loses_the_context(&nest, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn a_misaligned_access_is_sticky() {
    run("kernels::a_misaligned_access_is_sticky", &[], || {
        start();
        let mut nest = Nest::new(16);
        nest.launch.dst_buffer += 8;
        loses_the_context(&nest, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
    });
}

/// Returns a nest with its buffer on the second device. With `access`, a kernel of the first device may use it.
fn on_two_devices(access: bool) -> Nest {
    start();
    let mut nest = Nest::new(4);
    let (first, second) = (get!(CUcontext: cuCtxGetCurrent(_)), context(1));
    nest.launch.dst_buffer = allocate(SIZE);
    good!(cuMemsetD8_v2(nest.launch.dst_buffer, 0, SIZE));
    good!(cuCtxSynchronize());
    good!(cuCtxSetCurrent(first));
    if access {
        good!(cuCtxEnablePeerAccess(second, 0));
        let again = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        assert_eq!(call!(cuCtxEnablePeerAccess(second, 0)), again);
    }
    good!(cuMemsetD8_v2(nest.allocations[0], 1, SIZE));
    good!(cuCtxSynchronize());
    nest.run();
    nest
}

const TWO: [(&str, &str); 1] = [("FAKE_CUDA_DEVICES", "2")];

#[test]
fn peers_share_memory_once_that_is_enabled() {
    run("kernels::peers_share_memory_once_that_is_enabled", &TWO, || {
        let nest = on_two_devices(true);
        good!(cuCtxSynchronize());
        let (first, second) = (get!(CUcontext: cuCtxGetCurrent(_)), context(1));
        let (to, from) = (nest.buffer, nest.launch.dst_buffer);
        good!(cuMemcpyPeerAsync(to, first, from, second, SIZE, std::ptr::null_mut()));
        let ones = download(to, SIZE).iter().filter(|byte| **byte == 1).count();
        assert_eq!(ones, nest.moves().iter().filter(|at| at.0 == 0).count());
    });
}

#[test]
fn peers_share_nothing_before() {
    run("kernels::peers_share_nothing_before", &TWO, || {
        on_two_devices(false);
        assert_eq!(call!(cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        // The other device has its own context.
        context(1);
        allocate(1);
    });
}

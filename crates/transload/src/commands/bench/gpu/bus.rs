//! Transfers over the bus, gathered and scattered by few multiprocessors and carried by copy engines, compared with one
//! copy of as many bytes.

use std::cell::RefCell;
use std::time::Duration;

use transload::transfer::device::DeviceError;
use transload::transfer::device::internal::measure::PinnedMemory;

use super::Bench;
use super::buffers::{Buffers, Method};
use crate::commands::bench::schedule::timed;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// The start positions of the streams: data after a header is not aligned to 16 bytes, and a network delivers data at
/// any position.
const POSITIONS: [(u64, &str); 3] = [(0, ""), (8, ", from position 8"), (1402, ", from position 1402")];

pub(super) const CASES: usize = POSITIONS.len();

pub(super) fn run(bench: &mut Bench, buffers: &mut Buffers) {
    for (begin, position) in POSITIONS {
        let name = format!("the bus, runs of 512 B{position}");
        bench.case(&name, |bench| from(bench, buffers, &name, begin, position));
    }
}

fn from(bench: &mut Bench, buffers: &mut Buffers, name: &str, begin: u64, position: &str) -> Result<(), Failure> {
    let program = &bench.verified(buffers, 512, &[Method::ToHost, Method::FromHost])?;
    let Buffers { gpu, meter, source, destination, .. } = &*buffers;
    let bytes = program.bytes() - begin;
    let pinned = || PinnedMemory::allocate(gpu, bytes as usize);
    // Several of the functions below need the buffers mutably, though never at the same time.
    let (out, back) = (RefCell::new(pinned()?), RefCell::new(pinned()?));
    let rate = |took: Duration| gigabytes_per_second(bytes, took);
    let both = || -> Result<Duration, DeviceError> {
        let (done, took) = timed(|| {
            std::thread::scope(|scope| {
                let out = scope.spawn(|| meter.to_host(program, source, begin));
                let back = meter.to_device(program, destination, begin);
                let out = out.join().unwrap_or(Err(DeviceError::ThreadGone));
                out.and(back)
            })
        });
        done.map(|_| took)
    };
    let rounds = bench.in_turns(
        name,
        [
            &mut || Ok(rate(meter.to_host(program, source, begin)?)),
            &mut || Ok(rate(meter.one_crossing(source, &mut out.borrow_mut(), bytes, true)?.doing)),
            &mut || Ok(rate(meter.to_device(program, destination, begin)?)),
            &mut || Ok(rate(meter.one_crossing(destination, &mut back.borrow_mut(), bytes, false)?.doing)),
            &mut || Ok(2.0 * rate(both()?)),
            &mut || {
                let pinned = [&mut *out.borrow_mut(), &mut *back.borrow_mut()];
                let took = meter.both_crossings([source, destination], pinned, bytes)?;
                Ok(2.0 * rate(took))
            },
        ],
    );
    for (name, baseline, which) in [
        ("gather to pinned memory", "one copy to it", [0, 1]),
        ("scatter from pinned memory", "one copy from it", [2, 3]),
        ("both at once", "one copy each way", [4, 5]),
    ] {
        let name = format!("{name}, runs of 512 B{position}");
        bench.add(rounds.figure(name, "GB/s", baseline, which));
    }
    Ok(())
}

//! Over the bus: gathered and scattered by few multiprocessors, carried by copy engines, beside one copy of as many bytes.

use std::cell::RefCell;
use std::time::Duration;

use transload::transfer::device::DeviceError;
use transload::transfer::device::measure::PinnedMemory;
use transload::transfer::plan::program::Program;

use super::ground::{Ground, transposing};
use crate::commands::bench::course::{Course, timed};
use crate::commands::bench::measure::Figure;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// Where the streams begin: what is behind a header begins at no multiple of 16, and what a network delivers at any position.
const POSITIONS: [(u64, &str); 3] = [
    (0, ""),
    (8, ", from position 8"),
    (1402, ", from position 1402"),
];

pub(super) const CASES: usize = POSITIONS.len();

pub(super) fn run(course: &mut Course, ground: &Ground) -> Result<Vec<Figure>, Failure> {
    let program = transposing(512, ground.bytes);
    course.prepare("the bus, runs of 512 B");
    ground.check(&program)?;
    let mut figures = Vec::new();
    for (begin, position) in POSITIONS {
        figures.extend(from(course, ground, &program, begin, position)?);
    }
    Ok(figures)
}

fn from(
    course: &mut Course,
    ground: &Ground,
    program: &Program,
    begin: u64,
    position: &str,
) -> Result<Vec<Figure>, Failure> {
    let Ground {
        gpu,
        meter,
        source,
        destination,
        ..
    } = ground;
    let bytes = program.bytes() - begin;
    let pinned = || PinnedMemory::allocate(gpu, bytes as usize);
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
    let rounds = course.in_turns::<Failure, 6>(
        &format!("the bus, runs of 512 B{position}"),
        [
            &mut || Ok(rate(meter.to_host(program, source, begin)?)),
            &mut || {
                Ok(rate(
                    meter
                        .one_crossing(source, &mut out.borrow_mut(), bytes, true)?
                        .doing,
                ))
            },
            &mut || Ok(rate(meter.to_device(program, destination, begin)?)),
            &mut || {
                Ok(rate(
                    meter
                        .one_crossing(destination, &mut back.borrow_mut(), bytes, false)?
                        .doing,
                ))
            },
            &mut || Ok(2.0 * rate(both()?)),
            &mut || {
                let pinned = [&mut *out.borrow_mut(), &mut *back.borrow_mut()];
                let took = meter.both_crossings([source, destination], pinned, bytes)?;
                Ok(2.0 * rate(took))
            },
        ],
    )?;
    let figure = |name: &str, baseline: &str, which| {
        Figure::new(
            format!("{name}, runs of 512 B{position}"),
            "GB/s",
            baseline,
            &rounds,
            which,
        )
    };
    Ok(vec![
        figure("gather to pinned memory", "one copy to it", [0, 1]),
        figure("scatter from pinned memory", "one copy from it", [2, 3]),
        figure("both at once", "one copy each way", [4, 5]),
    ])
}

//! What is short: submitting, the first piece behind a mark, loading the kernels.

use std::cell::RefCell;
use std::time::Duration;

use transload::transfer::device::measure::{ChunkList, PinnedMemory, SUBMITTED, chunk_copies};

use super::ground::{Ground, transposing};
use crate::commands::bench::course::Course;
use crate::commands::bench::measure::Figure;
use crate::failure::Failure;

pub(super) const CASES: usize = RUNS.len() + 2;

const RUNS: [(u64, &str); 2] = [(512, "512 B"), (1 << 20, "1 MiB")];

/// Bytes of the piece that is waited for.
const PIECE: u64 = 1 << 20;

pub(super) fn run(course: &mut Course, ground: &mut Ground) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for (run, called) in RUNS {
        figures.extend(submitting(course, ground, run, called)?);
    }
    figures.push(behind_a_mark(course, ground)?);
    figures.push(loading(course, ground)?);
    Ok(figures)
}

/// The processor's time for 16 MiB, within the GPU and to the host.
fn submitting(
    course: &mut Course,
    ground: &mut Ground,
    run: u64,
    called: &str,
) -> Result<[Figure; 2], Failure> {
    let (mib, name) = (
        SUBMITTED.min(ground.bytes) >> 20,
        format!("submitting, runs of {called}"),
    );
    course.prepare(&name);
    let program = transposing(run, mib << 20);
    let Ground {
        meter,
        source,
        destination,
        ..
    } = ground;
    let relayout = meter.prepare(&program, source, destination)?;
    let mut chunks = ChunkList::new(&program, source, destination, usize::MAX)?;
    let meter = RefCell::new(meter);
    let rounds = course.in_turns::<Failure, 3>(
        &name,
        [
            &mut || Ok(us(meter.borrow().relayout(&relayout)?.submitting)),
            &mut || Ok(us(meter.borrow_mut().submit_to_host(&program, source)?)),
            &mut || Ok(us(meter.borrow().chunk_copies(&mut chunks)?.submitting)),
        ],
    )?;
    let figure = |what: &str, which| {
        let name = format!("submitting {mib} MiB {what}, runs of {called}");
        let others = format!("a descriptor a chunk ({})", chunk_copies());
        Figure::new(name, "us", others, &rounds, which)
    };
    Ok([
        figure("within the GPU", [0, 2]),
        figure("to the host", [1, 2]),
    ])
}

fn behind_a_mark(course: &mut Course, ground: &Ground) -> Result<Figure, Failure> {
    const NAME: &str = "from a mark to its first piece of 1 MiB in pinned memory";
    course.prepare(NAME);
    let Ground {
        gpu,
        meter,
        source,
        destination,
        bytes,
        ..
    } = ground;
    let program = transposing(512, *bytes);
    let mut pinned = PinnedMemory::allocate(gpu, PIECE as usize)?;
    let rounds = course.in_turns::<Failure, 2>(
        NAME,
        [
            &mut || {
                let busy = [source, destination];
                Ok(us(meter.mark_to_piece(&program, source, busy, *bytes)?))
            },
            &mut || {
                Ok(us(meter
                    .one_crossing(source, &mut pinned, PIECE, true)?
                    .doing))
            },
        ],
    )?;
    Ok(Figure::new(
        NAME,
        "us",
        "one copy of 1 MiB",
        &rounds,
        [0, 1],
    ))
}

fn loading(course: &mut Course, ground: &Ground) -> Result<Figure, Failure> {
    const NAME: &str = "loading the kernels for the first time";
    course.prepare(NAME);
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    let rounds = course.in_turns::<Failure, 2>(
        NAME,
        [
            &mut || Ok(ms(ground.meter.load_kernels(true)?)),
            &mut || Ok(ms(ground.meter.load_kernels(false)?)),
        ],
    )?;
    Ok(Figure::new(NAME, "ms", "loading it again", &rounds, [0, 1]))
}

fn us(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

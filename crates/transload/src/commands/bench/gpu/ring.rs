//! Between two agents of one process over a ring in device memory, beside the same copies without sums and agents.

use std::time::Duration;

use transload::transfer::wire::Path;

use super::ground::{Ground, transposing};
use crate::commands::bench::course::Course;
use crate::commands::bench::measure::Figure;
use crate::commands::engines::{Together, runtime};
use crate::commands::shapes::CANONICAL_TOKENS;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

pub(super) const CASES: usize = 1;

/// Decides contents and block tables.
const SEED: u64 = 1;

pub(super) fn run(course: &mut Course, ground: &Ground, mib: u64) -> Result<Vec<Figure>, Failure> {
    const NAME: &str = "a ring in device memory, runs of 512 B";
    const SLOTS: &str = "through its slots without sums, runs of 512 B";
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
    ground.check(&program)?;
    let bytes = program.bytes();
    let case = super::agents::case(mib);
    let runtime = runtime()?;
    let start = async { Together::start([case.src, case.dst], CANONICAL_TOKENS, SEED, gpu) };
    let mut agents = runtime.block_on(start)?;
    let rate = |took: Duration| gigabytes_per_second(bytes, took);
    let rounds = course.in_turns::<Failure, 3>(
        NAME,
        [
            &mut || {
                let report = runtime.block_on(agents.pull(Path::DEVICE))?;
                Ok(gigabytes_per_second(report.bytes, report.took))
            },
            &mut || {
                let took = meter.through_slots(&program, [source, destination])?;
                Ok(rate(took.doing))
            },
            &mut || Ok(rate(meter.one_copy(source, destination, bytes)?.doing)),
        ],
    )?;
    runtime.block_on(agents.finish())?;
    Ok(vec![
        Figure::new(NAME, "GB/s", SLOTS, &rounds, [0, 1]),
        Figure::new(SLOTS, "GB/s", "one device copy", &rounds, [1, 2]),
    ])
}

//! Between two agents of one process over a ring in device memory, beside the same copies without sums and agents.

use std::time::Duration;

use transload::transfer::wire::Path;

use super::ground::{Ground, transposing};
use crate::commands::bench::course::Course;
use crate::commands::bench::measure::Figure;
use crate::commands::engines::{Together, broken, runtime};
use crate::commands::shapes::CANONICAL_TOKENS;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

pub(super) const CASES: usize = 2;

/// Decides contents and block tables.
const SEED: u64 = 1;

/// Slots alone: neither sums nor agents.
pub(super) fn slots(course: &mut Course, ground: &Ground) -> Result<Vec<Figure>, Failure> {
    const NAME: &str = "through its slots without sums, runs of 512 B";
    course.prepare(NAME);
    let Ground {
        meter,
        source,
        destination,
        ..
    } = ground;
    let program = transposing(512, ground.bytes);
    ground.check(&program)?;
    let bytes = program.bytes();
    let rate = |took: Duration| gigabytes_per_second(bytes, took);
    let copies = [(&program, [source, destination])];
    let rounds = course.in_turns::<Failure, 2>(
        NAME,
        [
            &mut || Ok(rate(meter.through_slots(&copies)?.doing)),
            &mut || Ok(rate(meter.one_copy(source, destination, bytes)?.doing)),
        ],
    )?;
    let one = "one device copy";
    Ok(vec![Figure::new(NAME, "GB/s", one, &rounds, [0, 1])])
}

/// A pull, beside the same bytes of the same routes through slots alone.
pub(super) fn agents(
    course: &mut Course,
    ground: &Ground,
    mib: u64,
) -> Result<Vec<Figure>, Failure> {
    const NAME: &str = "a ring in device memory, runs of 512 B";
    course.prepare(NAME);
    let Ground { gpu, meter, .. } = ground;
    let case = super::agents::case(mib);
    let runtime = runtime()?;
    let start = async { Together::start([case.src, case.dst], CANONICAL_TOKENS, SEED, gpu) };
    let mut agents = runtime.block_on(start)?;
    let routes = agents.routes()?;
    let copies: Vec<_> = routes
        .iter()
        .map(|(program, [from, to])| (program, [from, to]))
        .collect();
    let bytes = routes.iter().map(|(program, _)| program.bytes()).sum();
    let rounds = course.in_turns::<Failure, 2>(
        NAME,
        [
            &mut || {
                let report = runtime.block_on(agents.pull(Path::DEVICE))?;
                match report.bytes == bytes {
                    true => Ok(gigabytes_per_second(bytes, report.took)),
                    false => Err(broken("the agents have moved other bytes than the slots")),
                }
            },
            &mut || {
                let took = meter.through_slots(&copies)?;
                Ok(gigabytes_per_second(bytes, took.doing))
            },
        ],
    )?;
    runtime.block_on(agents.finish())?;
    let slots = "its routes through such slots, without sums and agents";
    Ok(vec![Figure::new(NAME, "GB/s", slots, &rounds, [0, 1])])
}

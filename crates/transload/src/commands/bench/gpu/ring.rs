//! Pulls between two agents of one process over a ring in device memory, compared with the same copies without
//! checksums and agents.

use std::time::Duration;

use transload::transfer::Path;
use transload::transfer::device::Gpu;
use transload::transfer::device::internal::measure::Meter;

use super::Bench;
use super::buffers::{Buffers, Method};
use crate::commands::engines::{OneProcess, broken, runtime};
use crate::commands::shapes::CANONICAL_TOKENS;
use crate::show::number::gigabytes_per_second;

pub(super) const CASES: usize = 2;

const SEED: u64 = 1;

/// Measures copies through slots alone, without checksums and agents.
pub(super) fn slots(bench: &mut Bench, buffers: &mut Buffers) {
    const NAME: &str = "through its slots without sums, runs of 512 B";
    bench.case(NAME, |bench| {
        let program = bench.verified(buffers, 512, &[Method::Slots])?;
        let Buffers { meter, source, destination, .. } = &*buffers;
        let bytes = program.bytes();
        let rate = |took: Duration| gigabytes_per_second(bytes, took);
        let copies = [(&program, [source, destination])];
        let rounds = bench.in_turns(
            NAME,
            [&mut || Ok(rate(meter.through_slots(&copies)?.doing)), &mut || {
                Ok(rate(meter.one_copy(source, destination, bytes)?.doing))
            }],
        );
        bench.add(rounds.figure(NAME, "GB/s", "one device copy", [0, 1]));
        Ok(())
    });
}

/// Measures a pull, compared with the same routes through slots alone.
pub(super) fn agents(bench: &mut Bench, gpu: &Gpu, mib: u64) {
    const NAME: &str = "a ring in device memory, runs of 512 B";
    bench.case(NAME, |bench| {
        let meter = Meter::new(gpu)?;
        let case = super::agents::case(mib);
        let runtime = runtime()?;
        let mut agents = {
            let _inside = runtime.enter();
            OneProcess::start([case.src, case.dst], CANONICAL_TOKENS, SEED, gpu)?
        };
        let routes = agents.routes()?;
        let copies: Vec<_> = routes.iter().map(|(program, [from, to])| (program, [from, to])).collect();
        let bytes = routes.iter().map(|(program, _)| program.bytes()).sum();
        let rounds = bench.in_turns(
            NAME,
            [
                &mut || {
                    let report = runtime.block_on(agents.pull(Path::DEVICE))?;
                    match report.bytes == bytes {
                        true => Ok(gigabytes_per_second(bytes, report.took)),
                        false => Err(broken("the agents moved a different number of bytes than the slots")),
                    }
                },
                &mut || {
                    let took = meter.through_slots(&copies)?;
                    Ok(gigabytes_per_second(bytes, took.doing))
                },
            ],
        );
        let slots = "its routes through such slots, without sums and agents";
        bench.add(rounds.figure(NAME, "GB/s", slots, [0, 1]));
        runtime.block_on(agents.finish())
    });
}

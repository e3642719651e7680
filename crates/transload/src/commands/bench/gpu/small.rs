//! Short operations: submission, the first piece after a mark, and loading the kernels.

use std::cell::RefCell;
use std::time::Duration;

use transload::transfer::device::internal::measure::{ChunkList, PinnedMemory, SUBMITTED};

use super::Bench;
use super::buffers::{Buffers, transposing};
use crate::failure::Failure;

pub(super) const CASES: usize = RUNS.len() + 2;

const RUNS: [(u64, &str); 2] = [(512, "512 B"), (1 << 20, "1 MiB")];

const PIECE: u64 = 1 << 20;

/// Measures the time from a mark to the first piece, and the time to load the kernels.
pub(super) fn waiting(bench: &mut Bench, buffers: &Buffers) {
    const MARK: &str = "from a mark to its first piece of 1 MiB in pinned memory";
    bench.case(MARK, |bench| behind_a_mark(bench, buffers, MARK));
    const LOADING: &str = "loading the kernels for the first time";
    bench.case(LOADING, |bench| {
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let rounds = bench.in_turns(
            LOADING,
            [&mut || Ok(ms(buffers.meter.load_kernels(true)?)), &mut || Ok(ms(buffers.meter.load_kernels(false)?))],
        );
        bench.add(rounds.figure(LOADING, "ms", "loading it again", [0, 1]));
        Ok(())
    });
}

/// Measures the processor's time to submit 16 MiB, within the GPU and to the host.
pub(super) fn submitting(bench: &mut Bench, buffers: &mut Buffers) {
    for (run, called) in RUNS {
        let name = format!("submitting, runs of {called}");
        bench.case(&name, |bench| submitting_runs(bench, buffers, &name, run, called));
    }
}

fn submitting_runs(
    bench: &mut Bench,
    buffers: &mut Buffers,
    name: &str,
    run: u64,
    called: &str,
) -> Result<(), Failure> {
    let mib = SUBMITTED.min(buffers.bytes) >> 20;
    let program = transposing(run, mib << 20);
    let Buffers { meter, source, destination, .. } = buffers;
    let relayout = meter.prepare(&program, source, destination)?;
    let mut chunks = ChunkList::new(&program, source, destination, usize::MAX)?;
    let meter = RefCell::new(meter);
    let rounds = bench.in_turns(
        name,
        [
            &mut || Ok(us(meter.borrow().relayout(&relayout)?.submitting)),
            &mut || Ok(us(meter.borrow_mut().submit_to_host(&program, source)?)),
            &mut || Ok(us(meter.borrow().chunk_copies(&mut chunks)?.submitting)),
        ],
    );
    let others = format!("a descriptor a chunk ({})", chunks.copied_by());
    for (what, which) in [("within the GPU", [0, 2]), ("to the host", [1, 2])] {
        let name = format!("submitting {mib} MiB {what}, runs of {called}");
        bench.add(rounds.figure(name, "us", &others, which));
    }
    Ok(())
}

fn behind_a_mark(bench: &mut Bench, buffers: &Buffers, name: &str) -> Result<(), Failure> {
    let Buffers { gpu, meter, source, destination, bytes, .. } = buffers;
    let program = transposing(512, *bytes);
    let mut pinned = PinnedMemory::allocate(gpu, PIECE as usize)?;
    let rounds = bench.in_turns(
        name,
        [
            &mut || {
                let busy = [source, destination];
                Ok(us(meter.mark_to_piece(&program, source, busy, *bytes)?))
            },
            &mut || Ok(us(meter.one_crossing(source, &mut pinned, PIECE, true)?.doing)),
        ],
    );
    bench.add(rounds.figure(name, "us", "one copy of 1 MiB", [0, 1]));
    Ok(())
}

fn us(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

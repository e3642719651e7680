//! `bench quic` and `bench local`: agents in two processes pull a request. The measured time ends with the source's
//! commit.

use tokio::runtime::Runtime;
use transload::transfer::Path;

use super::baseline::{Failed, raw_quic, tcp_rustls};
use super::case::{CANONICAL, Case, SIZES};
use super::measure::Figure;
use super::memcpy::Memcpy;
use super::schedule::{Limits, Schedule};
use crate::commands::engines::{Gpu, Pair, runtime};
use crate::commands::shapes::CANONICAL_TOKENS;
use crate::failure::{Failure, chain};
use crate::show::number::gigabytes_per_second;

const SEED: u64 = 1;

/// Measures pulls over QUIC (gather, encryption, CRC and scatter), compared with one lane that only encrypts and with
/// TCP and TLS.
pub(super) fn quic(limits: Limits) -> Result<Vec<Figure>, Failure> {
    let runtime = runtime()?;
    let mut schedule = Schedule::new(limits, SIZES.len());
    let mut results = Vec::new();
    for case in SIZES {
        schedule.prepare(case.name);
        let mut engines = Engines::start(&runtime, case, None)?;
        let bytes = case.bytes();
        let rounds = schedule.in_turns::<Failure, 3>(
            case.name,
            [
                &mut || engines.pull(Path::QUIC),
                &mut || runtime.block_on(raw_quic(bytes)).map_err(unmeasured),
                &mut || tcp_rustls(bytes).map_err(unmeasured),
            ],
        )?;
        engines.finish()?;
        for (baseline, which) in [("one bare QUIC lane", 1), ("TCP and TLS", 2)] {
            let which = [0, which];
            results.push(Figure::new(case.name, "GB/s", baseline, &rounds, which));
        }
    }
    Ok(results)
}

/// Measures pulls on one host through the ring, compared with one `memcpy` of as many bytes.
pub(super) fn local(limits: Limits) -> Result<Vec<Figure>, Failure> {
    let runtime = runtime()?;
    let cases = [SIZES[0], SIZES[1], SIZES[2], CANONICAL];
    let mut schedule = Schedule::new(limits, cases.len());
    let mut memcpy = Memcpy::new(CANONICAL.bytes())?;
    let mut results = Vec::new();
    for case in cases {
        schedule.prepare(case.name);
        let mut engines = Engines::start(&runtime, case, None)?;
        let rounds = schedule.in_turns::<Failure, 2>(
            case.name,
            [&mut || engines.pull(Path::RING), &mut || Ok(memcpy.copy(case.bytes()))],
        )?;
        engines.finish()?;
        results.push(Figure::new(case.name, "GB/s", Memcpy::NAME, &rounds, [0, 1]));
    }
    Ok(results)
}

fn unmeasured(error: Failed) -> Failure {
    Failure::no(
        format!("cannot measure the baseline: {}", chain(&*error)),
        "check whether a firewall blocks the loopback interface",
    )
}

pub(super) struct Engines<'a> {
    runtime: &'a Runtime,
    pair: Pair,
}

impl<'a> Engines<'a> {
    /// Starts both processes, with their caches on a GPU if one is given.
    pub(super) fn start(runtime: &'a Runtime, case: Case, gpu: Option<Gpu>) -> Result<Self, Failure> {
        let pair = Pair::start([case.src, case.dst], CANONICAL_TOKENS, SEED, gpu);
        let pair = runtime.block_on(pair)?;
        pair.clear(|_| {})?;
        Ok(Self { runtime, pair })
    }

    /// Pulls over this path only. Returns GB/s.
    pub(super) fn pull(&mut self, path: Path) -> Result<f64, Failure> {
        let report = self.runtime.block_on(self.pair.pull(path))?.report;
        Ok(gigabytes_per_second(report.bytes, report.took))
    }

    /// Checks every byte of the destination and ends both processes.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.pair.verify(|_| {})?;
        self.runtime.block_on(self.pair.finish())
    }
}

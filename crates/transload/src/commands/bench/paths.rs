//! `bench quic` and `bench local`: agents in two processes pull a request, from asking for it to the
//! source's commit.

use std::collections::BTreeSet;

use tokio::runtime::Runtime;
use transload::transfer::wire::{Path, PathSet};

use super::baseline::{raw_quic, tcp_rustls};
use super::case::{CANONICAL, Case, SIZES};
use super::measure::{Effort, Figure, all_in_turns};
use super::memcpy::Memcpy;
use crate::commands::engines::{Pair, runtime};
use crate::commands::shapes::CANONICAL_TOKENS;
use crate::failure::Failure;
use crate::show::number::gigabytes_per_second;

/// Decides contents and block tables.
const SEED: u64 = 1;

/// Over QUIC: gather, encryption, CRC and scatter, beside one lane that does none of it but
/// encryption, and beside TCP with TLS.
pub(super) fn quic(effort: Effort) -> Result<Vec<Figure>, Failure> {
    let runtime = runtime()?;
    let mut results = Vec::new();
    for case in SIZES {
        let mut engines = Engines::start(&runtime, case)?;
        let bytes = case.bytes();
        let rounds = all_in_turns::<Failure, 3>(
            effort,
            [
                &mut || engines.pull(PathSet::QUIC),
                &mut || Ok(runtime.block_on(raw_quic(bytes))?),
                &mut || Ok(tcp_rustls(bytes)?),
            ],
        )?;
        engines.finish()?;
        for (limit, which) in [("one bare QUIC lane", 1), ("TCP and TLS", 2)] {
            results.push(Figure::of_turns(
                case.name,
                "GB/s",
                limit,
                &rounds,
                [0, which],
            ));
        }
    }
    Ok(results)
}

/// On one host, beside one `memcpy` of as many bytes.
pub(super) fn local(effort: Effort) -> Result<Vec<Figure>, Failure> {
    let runtime = runtime()?;
    let mut results = Vec::new();
    for case in SIZES.into_iter().chain([CANONICAL]) {
        let mut engines = Engines::start(&runtime, case)?;
        let mut memcpy = Memcpy::new(case.bytes())?;
        let rounds = all_in_turns::<Failure, 2>(
            effort,
            [&mut || engines.pull(PathSet::LOCAL), &mut || {
                Ok(memcpy.copy())
            }],
        )?;
        let paths: Vec<String> = engines.paths.iter().map(ToString::to_string).collect();
        engines.finish()?;
        let name = format!("{}, {}", case.name, paths.join(" and "));
        results.push(Figure::of_turns(
            name,
            "GB/s",
            Memcpy::NAME,
            &rounds,
            [0, 1],
        ));
    }
    Ok(results)
}

/// Two processes, and the paths that pulls between them took.
struct Engines<'a> {
    runtime: &'a Runtime,
    pair: Pair,
    paths: BTreeSet<Path>,
}

impl<'a> Engines<'a> {
    fn start(runtime: &'a Runtime, case: Case) -> Result<Self, Failure> {
        let pair = Pair::start([case.src, case.dst], CANONICAL_TOKENS, SEED);
        let pair = runtime.block_on(pair)?;
        pair.clear(|_| {})?;
        Ok(Self {
            runtime,
            pair,
            paths: BTreeSet::new(),
        })
    }

    /// In GB/s.
    fn pull(&mut self, paths: PathSet) -> Result<f64, Failure> {
        let report = self.runtime.block_on(self.pair.pull(paths))?.report;
        self.paths
            .extend(report.routes.iter().map(|route| route.path));
        Ok(gigabytes_per_second(report.bytes, report.took))
    }

    /// What has been measured was worth it: every byte is there.
    fn finish(self) -> Result<(), Failure> {
        self.pair.verify(|_| {})?;
        self.runtime.block_on(self.pair.finish())
    }
}

impl Case {
    /// Of the request, on all ranks together: keys and values of 128 elements of 2 bytes.
    fn bytes(&self) -> u64 {
        CANONICAL_TOKENS * u64::from(self.src.layers * self.src.heads) * 512
    }
}

//! The estimated time of a plan on a link: `--link 100Gbit`, with the cost of each chunk in addition to its bytes.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use transload::layout::{Deployment, Rank};
use transload::store::internal::period::{self, PeriodError};
use transload::transfer::plan::BoundPlan;

use super::blocks::{BlockArgs, scattered_elsewhere};
use super::planned::Planned;
use crate::failure::Failure;
use crate::show::number;

/// The rate of a link in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    /// Parses `100Gbit`, `400 Gb/s`, `25GB/s`, `12.5GiB/s`, `2x200Gbit`: a small b means bits, a large one bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a rate; write, for example, 100Gbit, 2x200Gbit or 12.5GB/s");
        if let Some((links, each)) = text.split_once(['x', '×']) {
            let links = links.trim().parse::<u32>().ok().filter(|links| *links > 0);
            let (links, Self(each)) = (links.ok_or_else(wrong)?, each.parse::<Self>().map_err(|_| wrong())?);
            return Ok(Self(f64::from(links) * each));
        }
        let (value, unit) = number::quantity(text).ok_or_else(wrong)?;
        if unit.is_empty() {
            return Err(format!("{text} has no unit; write {text}Gbit or {text}GB/s"));
        }
        let unit = unit.trim_end_matches("/s").trim_end_matches("ps");
        let (scale, rest) = match unit.as_bytes() {
            [b'K' | b'k', b'i', rest @ ..] => (1024.0, rest),
            [b'M', b'i', rest @ ..] => (1024f64.powi(2), rest),
            [b'G', b'i', rest @ ..] => (1024f64.powi(3), rest),
            [b'K' | b'k', rest @ ..] => (1e3, rest),
            [b'M', rest @ ..] => (1e6, rest),
            [b'G', rest @ ..] => (1e9, rest),
            [b'T', rest @ ..] => (1e12, rest),
            rest => (1.0, rest),
        };
        let bytes = match rest {
            b"bit" | b"bits" | b"b" => 1.0 / 8.0,
            b"B" => 1.0,
            _ => return Err(wrong()),
        };
        match value > 0.0 && value.is_finite() {
            true => Ok(Self(value * scale * bytes)),
            false => Err(wrong()),
        }
    }
}

/// Parses the cost of a chunk: `3.9us`, `400ns`.
pub(crate) fn parse_cost(text: &str) -> Result<Duration, String> {
    period::parse(text).map_err(|error| match error {
        PeriodError::NoUnit { text } => format!("{text} has no unit; write {text}us or {text}ns"),
        PeriodError::NoPeriod { text } => {
            format!("{text:?} is not a time; write a number and a unit, for example 4us or 400ns")
        }
        error => error.to_string(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::commands) enum Blocks {
    /// No two blocks of a sequence are neighbours.
    Scattered,
    /// Block i is block i on both sides.
    Contiguous,
    Listed,
}

/// The link that a plan is estimated on.
#[derive(Debug, clap::Args)]
pub(super) struct LinkArgs {
    /// Estimate the time of the transfer over a link of this rate: 100Gbit, 2x200Gbit, 12.5GB/s. Assumes the listed
    /// blocks if there are any, and else scattered ones, as in engines that have run for a while.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    link: Option<Rate>,

    /// Estimate with consecutive blocks on both sides, as in engines that have just started: chunks may continue from
    /// block to block.
    #[arg(long, requires = "link", conflicts_with_all = ["scattered", "src_blocks", "dst_blocks"])]
    contiguous: bool,

    /// Time that each chunk costs in addition to its bytes, for example 4us. Default: 0. NIXL has been measured at
    /// 3.9us per descriptor.
    #[arg(long, value_name = "TIME", value_parser = parse_cost, requires = "link")]
    chunk_cost: Option<Duration>,
}

impl LinkArgs {
    pub(super) fn estimate(
        &self,
        planned: &Planned,
        src: &Deployment,
        dst: &Deployment,
        listed: &BlockArgs,
    ) -> Result<Option<Estimate>, Failure> {
        let Some(link) = self.link else {
            return Ok(None);
        };
        let blocks = match self.contiguous {
            true => Blocks::Contiguous,
            false if listed.are_listed() => Blocks::Listed,
            false => Blocks::Scattered,
        };
        let cost = self.chunk_cost.unwrap_or_default();
        let estimate = |bound: &BoundPlan| Some(Estimate::of(bound, blocks, link, cost));
        if blocks != Blocks::Scattered || listed.scattered {
            return Ok(estimate(&planned.bound));
        }
        match scattered_elsewhere(src, dst, planned.plan.request()) {
            Some(bound) => Ok(estimate(&bound)),
            None => Err(Failure::input(
                "with scattered blocks a side would be too large to estimate",
                "add --contiguous, or use fewer tokens",
            )),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::commands) struct Estimate {
    pub(super) blocks: Blocks,
    pub(super) link_bytes_per_second: f64,
    pub(super) chunk_cost_seconds: f64,
    /// The time with a separate link for each rank; the busiest rank takes longest.
    pub(super) seconds_with_a_link_each: f64,
    pub(super) seconds_with_one_link: f64,
}

impl Estimate {
    /// Estimates the time of the bytes at the link's rate plus that of the chunks, started one after the other. Each
    /// rank starts its own chunks, even if the link is shared.
    pub(super) fn of(bound: &BoundPlan, blocks: Blocks, link: Rate, chunk_cost: Duration) -> Self {
        let mut ranks: BTreeMap<(bool, Rank), (u64, u64)> = BTreeMap::new();
        for route in &bound.routes {
            let (bytes, chunks) = (route.bytes(), route.chunks());
            for end in [(false, route.src_rank), (true, route.dst_rank)] {
                let rank = ranks.entry(end).or_default();
                rank.0 += bytes;
                rank.1 += chunks;
            }
        }
        let cost = chunk_cost.as_secs_f64();
        let on_link = |bytes: u64| bytes as f64 / link.0;
        let starting = |chunks: u64| chunks as f64 * cost;
        let busiest = |time: &dyn Fn(&(u64, u64)) -> f64| ranks.values().map(time).fold(0.0, f64::max);
        Self {
            blocks,
            link_bytes_per_second: link.0,
            chunk_cost_seconds: cost,
            seconds_with_a_link_each: busiest(&|(bytes, chunks)| on_link(*bytes) + starting(*chunks)),
            seconds_with_one_link: on_link(bound.bytes()) + busiest(&|(_, chunks)| starting(*chunks)),
        }
    }

    pub(super) fn text(&self) -> String {
        let time = |seconds| {
            // Times beyond 10^11 years are all shown as the maximum.
            let time = Duration::try_from_secs_f64(seconds);
            number::time(time.unwrap_or(Duration::MAX))
        };
        let cost = match self.chunk_cost_seconds {
            0.0 => String::new(),
            cost => format!(" and {} for each chunk", time(cost)),
        };
        let blocks = match self.blocks {
            Blocks::Scattered => "blocks scattered",
            Blocks::Contiguous => "blocks contiguous",
            Blocks::Listed => "blocks as listed",
        };
        format!(
            " at {} GB/s{cost}, {blocks}: {} with a link for each rank, {} with one for all\n",
            number::figures(self.link_bytes_per_second / 1e9),
            time(self.seconds_with_a_link_each),
            time(self.seconds_with_one_link),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_bits_or_bytes() {
        for (text, bytes) in [
            ("100Gbit", 12.5e9),
            ("100 Gb/s", 12.5e9),
            ("400Gbps", 50e9),
            ("25GB/s", 25e9),
            ("1GiB/s", 1024f64.powi(3)),
            ("2.5MB", 2.5e6),
            ("2x200Gbit", 50e9),
            ("8 x 50 Gb/s", 50e9),
        ] {
            assert_eq!(text.parse::<Rate>(), Ok(Rate(bytes)), "{text}");
        }
        for text in [
            "",
            "100",
            "fast",
            "0Gbit",
            "-1Gbit",
            "1Gx",
            "1e3Gbit",
            "1..2Gbit",
            "0x100Gbit",
            "x100Gbit",
            "2x",
            "-2x100Gbit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let error = "100".parse::<Rate>().expect_err("no unit");
        assert_eq!(error, "100 has no unit; write 100Gbit or 100GB/s");
    }

    #[test]
    fn estimates_beyond_any_time_are_told_too() {
        for seconds in [0.0, 1e300, f64::INFINITY] {
            let estimate = Estimate {
                blocks: Blocks::Scattered,
                link_bytes_per_second: 1e-300,
                chunk_cost_seconds: seconds,
                seconds_with_a_link_each: seconds,
                seconds_with_one_link: seconds,
            };
            assert!(estimate.text().contains(" with a link for each rank"));
        }
    }

    #[test]
    fn costs_are_times() {
        assert_eq!(parse_cost("3.9us"), Ok(Duration::from_nanos(3900)));
        assert_eq!(parse_cost("400 ns"), Ok(Duration::from_nanos(400)));
        for (text, told) in
            [("4", "write 4us or 4ns"), ("-4us", "for example 4us or 400ns"), ("4 weeks", "is not a unit of time")]
        {
            let error = parse_cost(text).expect_err(text);
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}

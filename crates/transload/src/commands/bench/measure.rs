//! Figures, each beside the limit that was measured in turns with it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::show::number::figures;
use crate::show::progress::Progress;
use crate::show::table::{Lean, Table};

/// One figure and its limit, as printed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    name: String,
    unit: &'static str,
    median: f64,
    min: f64,
    max: f64,
    baseline: Baseline,
    /// Median over the rounds of figure / limit.
    ratio: f64,
}

/// What the figure is compared with.
#[derive(Clone, Debug, Serialize)]
struct Baseline {
    name: String,
    figure: f64,
}

impl Figure {
    /// From rounds of several measurements, of which `which` are figure and limit.
    pub(super) fn of_turns<const N: usize>(
        name: impl Into<String>,
        unit: &'static str,
        limit: impl Into<String>,
        rounds: &[[f64; N]],
        which: [usize; 2],
    ) -> Self {
        let pairs: Vec<_> = rounds.iter().map(|r| (r[which[0]], r[which[1]])).collect();
        Self::from_rounds(name, unit, limit, &pairs)
    }

    /// From rounds of (figure, limit), of which there is at least one.
    pub(super) fn from_rounds(
        name: impl Into<String>,
        unit: &'static str,
        limit: impl Into<String>,
        rounds: &[(f64, f64)],
    ) -> Self {
        let mut figures = sorted(rounds.iter().map(|round| round.0));
        let limits = sorted(rounds.iter().map(|round| round.1));
        let ratios = sorted(rounds.iter().map(|(figure, limit)| figure / limit));
        if figures.is_empty() {
            figures.push(f64::NAN);
        }
        Self {
            name: name.into(),
            unit,
            median: median(&figures),
            min: figures[0],
            max: figures[figures.len() - 1],
            baseline: Baseline {
                name: limit.into(),
                figure: median(&limits),
            },
            ratio: median(&ratios),
        }
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// How often at most; at least once.
    pub(super) rounds: usize,
    /// No round begins once all together took so long.
    pub(super) most: Duration,
}

/// Measures figure and limit in turns.
pub(super) fn in_turns<E>(
    effort: Effort,
    mut figure: impl FnMut() -> Result<f64, E>,
    mut limit: impl FnMut() -> Result<f64, E>,
) -> Result<Vec<(f64, f64)>, E> {
    let rounds = all_in_turns(effort, [&mut figure, &mut limit])?;
    Ok(rounds
        .into_iter()
        .map(|[figure, limit]| (figure, limit))
        .collect())
}

/// Measures several things in turns. Each runs once beforehand, unmeasured.
pub(super) fn all_in_turns<E, const N: usize>(
    effort: Effort,
    mut works: [&mut dyn FnMut() -> Result<f64, E>; N],
) -> Result<Vec<[f64; N]>, E> {
    let mut progress = Progress::new("measuring", effort.rounds as u64 + 1);
    let mut rounds = Vec::with_capacity(effort.rounds);
    let mut started = Instant::now();
    for round in 0..=effort.rounds {
        let mut values = [0.0; N];
        for (value, work) in values.iter_mut().zip(&mut works) {
            *value = work()?;
        }
        progress.advance(1);
        match round {
            0 => started = Instant::now(),
            _ => rounds.push(values),
        }
        if !rounds.is_empty() && started.elapsed() >= effort.most {
            break;
        }
    }
    Ok(rounds)
}

/// How long something takes, and what it gives (so that dropping that is not measured).
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = std::hint::black_box(work());
    (result, started.elapsed())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// All figures of a bench: the schema `transload.bench/1`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    bench: &'static str,
    machine: Machine,
    results: Vec<Figure>,
}

/// What it was measured on.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    threads: usize,
}

impl Report {
    pub(super) fn new(bench: &'static str, results: Vec<Figure>) -> Self {
        Self {
            schema: "transload.bench/1",
            bench,
            machine: Machine::this(),
            results,
        }
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new(&[
            ("figure", Lean::Left),
            ("median", Lean::Right),
            ("min", Lean::Right),
            ("max", Lean::Right),
            ("unit", Lean::Left),
            ("limit", Lean::Right),
            ("ratio", Lean::Right),
            ("the limit is", Lean::Left),
        ]);
        for figure in &self.results {
            table.row([
                figure.name.as_str(),
                &figures(figure.median),
                &figures(figure.min),
                &figures(figure.max),
                figure.unit,
                &figures(figure.baseline.figure),
                &figures(figure.ratio),
                &figure.baseline.name,
            ]);
        }
        let Machine { cpu, threads } = &self.machine;
        format!("{}\n on {cpu}, {threads} threads\n", table.finish())
    }
}

impl Machine {
    fn this() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            cpu: model.unwrap_or_else(|| format!("a {} CPU", std::env::consts::ARCH)),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round() {
        // The machine slows down fourfold in the third round; the ratio does not care.
        let rounds = [(10.0, 20.0), (12.0, 20.0), (2.5, 5.0)];
        let figure = Figure::from_rounds("copy", "GB/s", "memcpy", &rounds);
        assert_eq!((figure.min, figure.median, figure.max), (2.5, 10.0, 12.0));
        assert_eq!(figure.baseline.figure, 20.0);
        assert_eq!(figure.ratio, 0.5);
    }

    #[test]
    fn figure_and_limit_take_turns() {
        let log = std::cell::RefCell::new(String::new());
        let call = |c: char| {
            log.borrow_mut().push(c);
            Ok::<_, ()>(1.0)
        };
        let effort = Effort {
            rounds: 2,
            most: Duration::MAX,
        };
        in_turns(effort, || call('f'), || call('l')).expect("no failure");
        assert_eq!(log.into_inner(), "flflfl");
    }

    #[test]
    fn one_round_is_measured_however_little_time_there_is() {
        let effort = Effort {
            rounds: 9,
            most: Duration::ZERO,
        };
        let rounds = in_turns(effort, || Ok::<_, ()>(1.0), || Ok(2.0));
        assert_eq!(rounds, Ok(vec![(1.0, 2.0)]));
    }
}

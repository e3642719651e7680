//! Figures, each with a baseline from the same interleaved measurement.

use serde::Serialize;

use crate::show::number::figures;
use crate::show::table::Table;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    name: String,
    unit: &'static str,
    median: f64,
    min: f64,
    max: f64,
    baseline: Baseline,
    /// The median over the rounds of figure / baseline.
    ratio: f64,
    /// The reason why the figure or its baseline could not be measured, or only in some rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Baseline {
    name: String,
    figure: f64,
}

impl Figure {
    /// Creates a figure from the rounds of several measurements. `which` has the indices of figure and baseline. There
    /// has to be at least one round.
    pub(super) fn new<const N: usize>(
        name: impl Into<String>,
        unit: &'static str,
        baseline: impl Into<String>,
        rounds: &[[f64; N]],
        which: [usize; 2],
    ) -> Self {
        let column = |of: usize| sorted(rounds.iter().map(|round| round[of]));
        let [figures, baselines] = which.map(column);
        let ratios = rounds.iter().map(|round| round[which[0]] / round[which[1]]);
        Self {
            name: name.into(),
            unit,
            median: median(&figures),
            min: figures.first().copied().unwrap_or(f64::NAN),
            max: figures.last().copied().unwrap_or(f64::NAN),
            baseline: Baseline { name: baseline.into(), figure: median(&baselines) },
            ratio: median(&sorted(ratios)),
            error: None,
        }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn failed(name: impl Into<String>, error: String) -> Self {
        Self::new::<1>(name, "", "", &[], [0, 0]).because(Some(error))
    }

    #[cfg(feature = "cuda")]
    pub(super) fn because(self, error: Option<String>) -> Self {
        Self { error, ..self }
    }
}

/// Returns the values in ascending order, without NaN, which stands for failed measurements.
fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
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
    /// Further remarks: where it was measured, and what could not be measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    threads: usize,
}

impl Report {
    pub(super) fn new(bench: &'static str, results: Vec<Figure>, notes: Vec<String>) -> Self {
        Self { schema: "transload.bench/1", bench, machine: Machine::this(), results, notes }
    }

    /// Returns the names and errors of figures that could not be measured.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&str, &str)> {
        let results = self.results.iter();
        results.filter_map(|figure| Some((figure.name.as_str(), figure.error.as_deref()?)))
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new("figure|>median|>min|>max|unit|>ratio|>baseline|measured against");
        for figure in &self.results {
            table.row([
                figure.name.as_str(),
                &figures(figure.median),
                &figures(figure.min),
                &figures(figure.max),
                figure.unit,
                &format!("{:.2}", figure.ratio),
                &figures(figure.baseline.figure),
                &figure.baseline.name,
            ]);
        }
        let Machine { cpu, threads } = &self.machine;
        let rates = self.results.iter().filter(|figure| figure.unit == "GB/s");
        let better = match rates.count() {
            0 => "lower is better",
            n if n == self.results.len() => "higher is better; 1 GB is 10^9 bytes",
            _ => "for GB/s higher is better, for times lower; 1 GB is 10^9 bytes",
        };
        let mut notes: String = self.notes.iter().map(|note| format!(" {note}\n")).collect();
        for (name, error) in self.errors() {
            notes += &format!(" {name}: {error}\n");
        }
        format!("{}\n {better}; ratio is figure / baseline\n on {cpu}, {threads} threads\n{notes}", table.finish())
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
        let rounds = [[10.0, 20.0], [12.0, 20.0], [2.5, 5.0]];
        let figure = Figure::new("copy", "GB/s", "memcpy", &rounds, [0, 1]);
        assert_eq!((figure.min, figure.median, figure.max), (2.5, 10.0, 12.0));
        assert_eq!(figure.baseline.figure, 20.0);
        assert_eq!(figure.ratio, 0.5);
    }
}

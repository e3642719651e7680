//! Figures beside their limits.

/// What was reached in each round, and the limit in the same round, in GB/s.
pub(crate) struct Figure {
    pub name: String,
    pub rounds: Vec<(f64, f64)>,
    pub limit: &'static str,
    /// At least so much of something is wanted.
    pub target: Option<Target>,
}

/// What is wanted.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// GB/s.
    Speed(f64),
    /// Of the limit.
    Ratio(f64),
}

pub(crate) fn head() {
    println!(
        "{:34} {:>20} {:>8} {:>7}  {:22} target",
        "", "GB/s (min..max)", "limit", "ratio", "the limit is"
    );
}

impl Figure {
    pub(crate) fn print(&self) {
        let speeds = sorted(self.rounds.iter().map(|round| round.0));
        let limits = sorted(self.rounds.iter().map(|round| round.1));
        let ratios = sorted(self.rounds.iter().map(|(speed, limit)| speed / limit));
        let middle = |of: &[f64]| of[of.len() / 2];
        let speed = format!(
            "{:.2} ({:.2}..{:.2})",
            middle(&speeds),
            speeds[0],
            speeds[speeds.len() - 1]
        );
        let target = match self.target {
            None => String::new(),
            Some(Target::Speed(speed)) => format!("{speed} GB/s"),
            Some(Target::Ratio(ratio)) => format!("{ratio} of it"),
        };
        println!(
            "{:34} {speed:>20} {:8.2} {:7.2}  {:22} {target}",
            self.name,
            middle(&limits),
            middle(&ratios),
            self.limit,
        );
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

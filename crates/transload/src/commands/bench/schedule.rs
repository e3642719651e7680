//! Interleaved measurements, with one progress bar for a whole bench.

use std::time::{Duration, Instant};

use crate::show::progress::Progress;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most rounds; at least one is measured.
    pub(super) rounds: usize,
    /// The total time after which no further round of a case begins.
    pub(super) most: Duration,
}

/// The progress through the cases of a bench.
pub(super) struct Schedule {
    limits: Limits,
    progress: Progress,
    steps: u64,
    /// The number of cases that have begun.
    case: u64,
}

impl Schedule {
    pub(super) fn new(limits: Limits, cases: usize) -> Self {
        // A case consists of its preparation, one unmeasured round, and the measured ones.
        let steps = limits.rounds as u64 + 2;
        Self { limits, steps, progress: Progress::new("preparing", steps * cases as u64), case: 0 }
    }

    pub(super) fn prepare(&mut self, name: &str) {
        self.progress.say(format!("{name}: preparing"));
        self.progress.reach(self.case * self.steps);
        self.case += 1;
    }

    /// Measures several functions in alternation. Each round begins with the next function, so that the state that one
    /// leaves in caches or in the CPU's clock affects all others alike. Each function runs once beforehand, unmeasured.
    pub(super) fn in_turns<E, const N: usize>(
        &mut self,
        name: &str,
        works: [&mut dyn FnMut() -> Result<f64, E>; N],
    ) -> Result<Vec<[f64; N]>, E> {
        self.progress.say(format!("{name}: measuring"));
        self.progress.advance(1);
        let mut rounds = Vec::with_capacity(self.limits.rounds);
        let mut started = Instant::now();
        for round in 0..=self.limits.rounds {
            let mut values = [0.0; N];
            for turn in 0..N {
                let at = (round + turn) % N;
                values[at] = works[at]()?;
            }
            self.progress.advance(1);
            match round {
                0 => started = Instant::now(),
                _ => rounds.push(values),
            }
            if !rounds.is_empty() && started.elapsed() >= self.limits.most {
                break;
            }
        }
        Ok(rounds)
    }
}

/// Returns a function's result and the time it took. The result is returned so that dropping it is not measured.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = std::hint::black_box(work());
    (result, started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_its_turn_at_being_first() {
        let log = std::cell::RefCell::new(String::new());
        let call = |c: char, value: f64| {
            log.borrow_mut().push(c);
            Ok::<_, ()>(value)
        };
        let limits = Limits { rounds: 3, most: Duration::MAX };
        let mut schedule = Schedule::new(limits, 1);
        let rounds = schedule.in_turns("it", [&mut || call('f', 1.0), &mut || call('l', 2.0)]);
        assert_eq!(rounds, Ok(vec![[1.0, 2.0]; 3]));
        assert_eq!(log.into_inner(), "fllffllf");
    }

    #[test]
    fn one_round_is_measured_however_little_time_there_is() {
        let limits = Limits { rounds: 9, most: Duration::ZERO };
        let mut schedule = Schedule::new(limits, 1);
        let rounds = schedule.in_turns("it", [&mut || Ok::<_, ()>(1.0), &mut || Ok(2.0)]);
        assert_eq!(rounds, Ok(vec![[1.0, 2.0]]));
    }
}

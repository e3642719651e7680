//! Measuring things in turns, with one progress bar over all of a bench.

use std::time::{Duration, Instant};

use crate::show::progress::Progress;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// How often at most; at least once.
    pub(super) rounds: usize,
    /// No round of a case begins once all of them together took so long.
    pub(super) most: Duration,
}

/// The cases of a bench, one after the other.
pub(super) struct Course {
    effort: Effort,
    progress: Progress,
    /// Steps of each case.
    steps: u64,
    /// Cases that have begun.
    case: u64,
}

impl Course {
    pub(super) fn new(effort: Effort, cases: usize) -> Self {
        // Of a case: making it ready, one round that is not measured, and those that are.
        let steps = effort.rounds as u64 + 2;
        Self { effort, steps, progress: Progress::new("preparing", steps * cases as u64), case: 0 }
    }

    /// The next case is being made ready.
    pub(super) fn prepare(&mut self, name: &str) {
        self.progress.say(format!("{name}: preparing"));
        self.progress.reach(self.case * self.steps);
        self.case += 1;
    }

    /// Measures several things in turns, each round beginning with the next of them: what one leaves behind (in
    /// caches, in the clock of the CPU) meets all others alike. Each runs once beforehand, unmeasured.
    pub(super) fn in_turns<E, const N: usize>(
        &mut self,
        name: &str,
        works: [&mut dyn FnMut() -> Result<f64, E>; N],
    ) -> Result<Vec<[f64; N]>, E> {
        self.progress.say(format!("{name}: measuring"));
        self.progress.advance(1);
        let mut rounds = Vec::with_capacity(self.effort.rounds);
        let mut started = Instant::now();
        for round in 0..=self.effort.rounds {
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
            if !rounds.is_empty() && started.elapsed() >= self.effort.most {
                break;
            }
        }
        Ok(rounds)
    }
}

/// How long something takes, and what it gives (so that dropping that is not measured).
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
        let effort = Effort { rounds: 3, most: Duration::MAX };
        let mut course = Course::new(effort, 1);
        let rounds = course.in_turns("it", [&mut || call('f', 1.0), &mut || call('l', 2.0)]);
        assert_eq!(rounds, Ok(vec![[1.0, 2.0]; 3]));
        assert_eq!(log.into_inner(), "fllffllf");
    }

    #[test]
    fn one_round_is_measured_however_little_time_there_is() {
        let effort = Effort { rounds: 9, most: Duration::ZERO };
        let mut course = Course::new(effort, 1);
        let rounds = course.in_turns("it", [&mut || Ok::<_, ()>(1.0), &mut || Ok(2.0)]);
        assert_eq!(rounds, Ok(vec![[1.0, 2.0]]));
    }
}

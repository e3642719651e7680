//! The tape that cases are read off.

use super::Reach;

/// Numbers that decide choices. Missing ones are zero.
#[derive(Debug)]
pub struct Tape<'a> {
    numbers: std::slice::Iter<'a, u16>,
    reach: Reach,
    disputed: Vec<&'static str>,
}

impl<'a> Tape<'a> {
    /// Makes a tape at its start.
    pub fn new(numbers: &'a [u16], reach: Reach) -> Self {
        Self { numbers: numbers.iter(), reach, disputed: Vec::new() }
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        u64::from(self.numbers.next().copied().unwrap_or(0)) % n
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times; never on an empty tape.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    /// Picks one item of a list, the first on an empty tape.
    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    /// Puts a list in any order; leaves it as it is on an empty tape.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in 0..list.len().saturating_sub(1) {
            let other = at as u64 + self.below((list.len() - at) as u64);
            list.swap(at, other as usize);
        }
    }

    /// Once in `n` times, if disputed cases are asked for: takes note of the feature and says yes.
    pub fn dispute(&mut self, feature: &'static str, n: u64) -> bool {
        let yes = self.reach == Reach::Disputed && self.once_in(n);
        if yes {
            self.disputed.push(feature);
        }
        yes
    }

    pub(super) fn disputed(self) -> Vec<&'static str> {
        self.disputed
    }
}

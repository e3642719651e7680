//! The settings from the environment, and the random numbers derived from them.

use std::env;
use std::sync::LazyLock;
use std::time::Duration;

pub(crate) struct Settings {
    /// `FAKE_CUDA_DEVICES`.
    pub(crate) devices: usize,
    /// `FAKE_CUDA_SEED`: the seed of delays and of the order of a kernel's threads.
    pub(crate) seed: u64,
    /// `FAKE_CUDA_DELAY_US`: the longest delay before an operation.
    pub(crate) delay: u64,
    /// `FAKE_CUDA_QUEUES`: the number of hardware queues that the streams of a context share; 0 gives each its own. A
    /// GPU has `CUDA_DEVICE_MAX_CONNECTIONS` of them, 8 by default and 32 at most. NVIDIA does not document whether
    /// streams of different priorities share one, so here they do, which is the worse case.
    pub(crate) queues: usize,
    /// `FAKE_CUDA_ALLOC_WAITS`: whether allocating, pinning, registering or loading waits for all work of the context,
    /// which NVIDIA's guide allows a driver to do.
    pub(crate) alloc_waits: bool,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
    devices: number("FAKE_CUDA_DEVICES", 1) as usize,
    seed: number("FAKE_CUDA_SEED", 0),
    delay: number("FAKE_CUDA_DELAY_US", 200),
    queues: number("FAKE_CUDA_QUEUES", 0) as usize,
    alloc_waits: number("FAKE_CUDA_ALLOC_WAITS", 0) != 0,
});

pub(crate) fn settings() -> &'static Settings {
    &SETTINGS
}

/// Reads a number, and panics if it is invalid: a test that misspells one should not pass.
fn number(name: &str, default: u64) -> u64 {
    let Some(text) = env::var_os(name) else {
        return default;
    };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{name} is no number: {text:?}"))
}

/// SplitMix64, by Sebastiano Vigna (public domain, <https://prng.di.unimi.it/splitmix64.c>).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(sequence: u64) -> Self {
        let mut first = Self(settings().seed);
        Self(first.next() ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn delay(&mut self) -> Duration {
        Duration::from_micros(self.below(settings().delay.saturating_add(1).max(1)))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

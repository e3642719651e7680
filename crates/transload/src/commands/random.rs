//! Reproducible random numbers for contents and block tables.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Scatters the blocks of this many tokens over a pool of `num_blocks`.
    pub(crate) fn scattered(&mut self, tokens: u64, block_size: u64, num_blocks: u32) -> Vec<u32> {
        self.blocks(tokens.div_ceil(block_size) as u32, num_blocks)
    }

    /// Returns `count` different blocks out of `of`, in random order.
    pub(crate) fn blocks(&mut self, count: u32, of: u32) -> Vec<u32> {
        let mut blocks: Vec<u32> = (0..of).collect();
        let count = count.min(of);
        for i in 0..count {
            // The bias of the remainder, below 2^32 out of 2^64, is negligible for a bench.
            let j = i + (self.next() % u64::from(of - i)) as u32;
            blocks.swap(i as usize, j as usize);
        }
        blocks.truncate(count as usize);
        blocks
    }
}

/// The finaliser of SplitMix64: a bijection whose every output bit depends on every input bit.
pub(crate) const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_different_and_in_range() {
        let mut blocks = Random::new(7).blocks(100, 128);
        assert_eq!(blocks, Random::new(7).blocks(100, 128));
        assert!(!blocks.is_sorted());
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 100);
        assert!(blocks.iter().all(|b| *b < 128));
    }

    /// The first outputs for seed 0, as published with the reference implementation.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut random = Random::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }
}

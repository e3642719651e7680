//! CRC-32C of device memory. The kernel `cuda/crc32c.cu` folds a text to a shorter one with the same sum, which the
//! host sums.

use bytemuck::{Pod, Zeroable};

use transload_memory::copy::Crc32c;

pub(crate) const BLOCK: u32 = 256;

/// The most threads, a power of two: one block on each multiprocessor that works for transfers.
const MOST_THREADS: u32 = BLOCK * crate::launch::DEFAULT_MULTIPROCESSORS;

/// The most words of a thread, as long as there are fewer than [`MOST_THREADS`] threads.
const WORDS: u32 = 64;

/// Words that a thread takes in a round.
const ROUND: u32 = 32;

/// The longest folded text in bytes: one word of each thread, and a rest of at most 3 bytes, padded to 4.
pub(crate) const FOLDED: usize = MOST_THREADS as usize * 4 + 4;

/// The longest text in bytes. The kernel counts words in 31 bits.
pub(crate) const LONGEST: u64 = 1 << 30;

/// The parameter of the kernel: `struct fold` in `cuda/crc32c.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Fold {
    text: u64,
    words: u32,
    rest: u32,
    folded: u64,
    rounds: u32,
    unused: u32,
    powers: [u32; 32],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding {
    pub(crate) threads: u32,
    len: u32,
}

impl Folding {
    /// Plans the folding of a text of `len` bytes, at most [`LONGEST`].
    pub(crate) fn of(len: u32) -> Self {
        let wanted = (len / 4).div_ceil(WORDS).next_power_of_two();
        let threads = wanted.clamp(BLOCK, MOST_THREADS);
        Self { threads, len }
    }

    /// Returns the kernel's parameter. `text` is the address of the bytes to sum, a multiple of 4. `folded` is the
    /// address of the result, which has at most [`FOLDED`] bytes.
    pub(crate) fn parameter(self, text: u64, folded: u64) -> Fold {
        let words = self.len / 4;
        Fold {
            text,
            words,
            rest: self.len % 4,
            folded,
            rounds: words.div_ceil(self.threads * ROUND),
            unused: 0,
            powers: POWERS[(self.threads / BLOCK).trailing_zeros() as usize],
        }
    }

    pub(crate) fn folded(self) -> usize {
        self.threads as usize * 4 + (self.len % 4) as usize
    }

    pub(crate) fn sum(self, folded: &[u8]) -> Crc32c {
        let (words, rest) = folded.split_at(self.threads as usize * 4);
        // Both texts have the same remainder by the polynomial. The initial and the final value of a CRC contribute a
        // term that depends on the length alone, so the sums of two texts of zeros give it.
        let same = Crc32c::of(words).value() ^ zeros(words.len() as u64).value();
        let bytes = u64::from(self.len) - rest.len() as u64;
        let mut sum = Crc32c::new();
        sum.append(&zeros(bytes));
        sum.flip(same);
        sum.update(rest);
        sum
    }
}

/// Returns the sum of that many zero bytes, a multiple of 4.
fn zeros(bytes: u64) -> Crc32c {
    let (mut sum, mut power) = (Crc32c::new(), Crc32c::of(&[0; 4]));
    let mut left = bytes / 4;
    while left > 0 {
        if left % 2 == 1 {
            sum.append(&power);
        }
        power.append(&power.clone());
        left /= 2;
    }
    sum
}

/// The powers x^31 y to x^0 y modulo P, with y = x^(32 threads), for 256, 512, ... threads. The highest bit is x^0.
const POWERS: [[u32; 32]; 5] = {
    let mut powers = [[0; 32]; 5];
    let mut y = 1 << 30; // x^1
    let mut squared = 0;
    // 32 * 256 is 2^13.
    while squared < 13 {
        y = times(y, y);
        squared += 1;
    }
    let mut n = 0;
    while n < 5 {
        let (mut power, mut bit) = (y, 31);
        loop {
            powers[n][bit] = power;
            if bit == 0 {
                break;
            }
            power = times_x(power);
            bit -= 1;
        }
        y = times(y, y);
        n += 1;
    }
    powers
};

const _: () = assert!(MOST_THREADS == BLOCK << 4);

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (0x82f6_3b78 * (a & 1))
}

const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        product ^= b * (a >> bit & 1);
        b = times_x(b);
    }
    product
}

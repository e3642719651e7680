//! What a program means, one byte at a time.

use crate::copy::Crc32c;
use crate::plan::program::{Program, split_address};

/// The (source, destination) address of every byte of a program, in its order.
pub(crate) fn bytes(program: &Program) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for placed in &program.placed {
        let nest = &program.nests[placed.nest as usize];
        let mut chunks = vec![(placed.src, placed.dst)];
        for l in &nest.loops {
            let mut inner = Vec::new();
            for (src, dst) in chunks {
                for step in 0..l.count {
                    inner.push((src + step * l.src, dst + step * l.dst));
                }
            }
            chunks = inner;
        }
        for (src, dst) in chunks {
            for byte in 0..nest.run {
                all.push((src + byte, dst + byte));
            }
        }
    }
    all
}

/// The byte at an address.
pub(crate) fn at(allocations: &[Vec<u8>], address: u64) -> u8 {
    let (allocation, offset) = split_address(address);
    allocations[allocation][offset as usize]
}

/// The place of the byte at an address.
pub(crate) fn at_mut(allocations: &mut [Vec<u8>], address: u64) -> &mut u8 {
    let (allocation, offset) = split_address(address);
    &mut allocations[allocation][offset as usize]
}

/// CRC-32C, one byte at a time.
pub(crate) fn sum(bytes: &[u8]) -> Crc32c {
    let table: Vec<u32> = (0..256)
        .map(|byte| {
            (0..8).fold(byte, |state, _| {
                let carry = if state & 1 == 1 { 0x82f6_3b78 } else { 0 };
                state >> 1 ^ carry
            })
        })
        .collect();
    let state = bytes.iter().fold(!0, |state: u32, byte| {
        state >> 8 ^ table[usize::from(state as u8 ^ byte)]
    });
    let mut sum = Crc32c::new();
    sum.pass(bytes.len() as u64, |_| state);
    sum
}

#[test]
fn the_oracle_knows_the_check_value() {
    let sum = sum(b"123456789");
    assert_eq!((sum.value(), sum.bytes()), (0xe306_9283, 9));
}

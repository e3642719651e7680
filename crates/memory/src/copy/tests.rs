//! Every kernel is compared, byte by byte, with an oracle that shares no code with them.

mod between;
pub(crate) mod case;
pub(crate) mod oracle;
mod stream;

use transload_plan::program::{Loop, Nest, Placed, Program};

use super::Crc32c;

/// Makes one nest at some places, from the loops' (count, source stride, destination stride) and the places' (source,
/// destination).
pub(crate) fn program(loops: &[(u64, u64, u64)], run: u64, places: &[(u64, u64)]) -> Program {
    let loops = loops.iter().map(|&(count, src, dst)| Loop { count, src, dst });
    let loops = loops.collect();
    let placed = places.iter().map(|&(src, dst)| Placed { nest: 0, src, dst });
    Program { nests: vec![Nest { loops, run }], placed: placed.collect() }
}

fn sum(bytes: &[u8]) -> Crc32c {
    let table: Vec<u32> = (0..256)
        .map(|byte| {
            (0..8).fold(byte, |state, _| {
                let carry = if state & 1 == 1 { 0x82f6_3b78 } else { 0 };
                state >> 1 ^ carry
            })
        })
        .collect();
    let state = bytes.iter().fold(!0, |state: u32, byte| state >> 8 ^ table[usize::from(state as u8 ^ byte)]);
    let mut sum = Crc32c::new();
    sum.pass(bytes.len() as u64, |_| state);
    sum
}

#[test]
fn sums_know_the_check_value() {
    let sum = sum(b"123456789");
    assert_eq!((sum.value(), sum.bytes()), (0xe306_9283, 9));
}

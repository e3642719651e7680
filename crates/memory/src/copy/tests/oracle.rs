//! The meaning of a program, one byte at a time.

use transload_plan::program::{Program, split_address};

/// Returns the (source, destination) address of every byte of a program, in program order.
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

pub(crate) fn at(allocations: &[Vec<u8>], address: u64) -> u8 {
    let (allocation, offset) = split_address(address);
    allocations[allocation][offset as usize]
}

pub(crate) fn at_mut(allocations: &mut [Vec<u8>], address: u64) -> &mut u8 {
    let (allocation, offset) = split_address(address);
    &mut allocations[allocation][offset as usize]
}

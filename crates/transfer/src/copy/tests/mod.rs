//! Every kernel, byte by byte, against an oracle that knows nothing of any of them.

mod between;
pub(crate) mod case;
pub(crate) mod oracle;
mod stream;

use crate::plan::program::{Loop, Nest, Placed, Program};

/// One nest at some places: the loops' (count, source stride, destination stride), and the places' (source, destination).
pub(crate) fn program(loops: &[(u64, u64, u64)], run: u64, places: &[(u64, u64)]) -> Program {
    let loops = loops
        .iter()
        .map(|&(count, src, dst)| Loop { count, src, dst });
    let loops = loops.collect();
    let placed = places
        .iter()
        .map(|&(src, dst)| Placed { nest: 0, src, dst });
    Program {
        nests: vec![Nest { loops, run }],
        placed: placed.collect(),
    }
}

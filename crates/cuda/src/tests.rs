//! The kernel itself, run on the CPU, against what programs mean byte by byte.

// The programs of the CPU's kernels, and what those mean, are also what this one is tried with.
#[path = "../../memory/src/copy/tests/case.rs"]
#[expect(dead_code, reason = "memories that fit are for the CPU's kernels")]
mod case;
mod kernel;
mod on_cpu;
#[path = "../../memory/src/copy/tests/oracle.rs"]
mod oracle;
mod sum;

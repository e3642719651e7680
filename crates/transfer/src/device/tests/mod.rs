//! The kernel itself, run on the CPU, against what programs mean byte by byte.

mod kernel;
mod on_cpu;
mod sum;

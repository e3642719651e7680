//! Traces of real requests, as a collector receives them.

mod collector;
mod exporting;
mod fakes;
mod sampling;
mod spans;

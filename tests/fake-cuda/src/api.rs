//! The functions of the driver, by subject.

mod context;
mod copy;
mod device;
mod event;
mod host;
mod memory;
mod module;
mod pointer;
mod shared;
mod stream;

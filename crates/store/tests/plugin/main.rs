//! Both sides of the C border: the header, plugins made by the macro, C consumers of them, foreign libraries
//! under the loader, and what the conformance kit says of all these.

mod border;
mod build;
mod check;
mod consumer;
mod header;
mod load;

//! Both sides of the C border: the header, plugins made by the macro, C consumers of them, foreign libraries
//! under the loader, and what the conformance kit says of all these.

mod border;
mod build;
mod check;
mod consumer;
mod header;
#[cfg(feature = "file")]
mod left;
mod load;
#[cfg(feature = "redis")]
mod redis_plugin;
#[cfg(feature = "s3")]
mod s3_plugin;
#[cfg(feature = "file")]
mod slots;

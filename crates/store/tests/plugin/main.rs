//! Both sides of the C interface: the header, plugins made by the macro, C consumers of them, and foreign libraries
//! under the loader. Also the results of the conformance kit for all of these.

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

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
#[cfg(feature = "redis")]
#[expect(dead_code, reason = "the server's own tests use the rest of it")]
#[path = "../redis_server/server.rs"]
mod redis_server;
#[cfg(feature = "s3")]
mod s3_plugin;
#[cfg(feature = "s3")]
#[expect(dead_code, reason = "the server's own tests use the rest of it")]
#[path = "../s3_server/server.rs"]
mod s3_server;
#[cfg(feature = "file")]
mod slots;

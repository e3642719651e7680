//! Both sides of the C border: the header, plugins made by the macro, C consumers of them, foreign libraries
//! under the loader, and what the conformance kit says of all these.

mod border;
mod build;
mod check;
mod consumer;
mod header;
mod load;
#[cfg(feature = "redis")]
mod redis_plugin;
#[cfg(feature = "redis")]
#[expect(dead_code, reason = "the server's own tests use the rest of it")]
#[path = "../redis_server/server.rs"]
mod server;

//! Prefill/decode disaggregation over HTTP: `transload sidecar`, `transload proxy` and `transload announce`.
//!
//! A command reads its options ([`given`]: flags, then a configuration, then the environment, then defaults), turns
//! them into [`Settings`](transload_sidecar::settings::Settings), and [`serve`]s until a signal ends it.

pub(super) mod announce;
mod common;
mod configuration;
#[cfg(test)]
mod examples;
mod options;
pub(super) mod proxy;
mod serve;
pub(super) mod sidecar;
#[cfg(test)]
mod tests;
mod values;

/// Returns the value of an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

//! Prefill/decode disaggregation over HTTP: `transload sidecar`, `transload proxy` and `transload announce`.
//!
//! A command reads its options ([`given`]: flags, then a configuration, then the environment, then defaults), makes
//! [`Settings`](transload_sidecar::settings::Settings) of them, and [`serve`]s until it is told to end.

pub(super) mod announce;
mod common;
mod configuration;
#[cfg(test)]
mod examples;
mod given;
pub(super) mod proxy;
mod serve;
pub(super) mod sidecar;
#[cfg(test)]
mod tests;
mod values;

/// Reads an environment variable; one that is empty is as if absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

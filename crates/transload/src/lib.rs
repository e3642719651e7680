//! Transload moves the KV cache of language models between engines that lay it out differently.
//!
//! This crate puts the others together: [`layout`] says how a cache lies in memory, [`transfer`]
//! plans between two layouts and carries the plan out, [`store`] keeps what should outlive its process. It adds
//! [`document`] and [`config`], which read deployments and models from files, and with its feature `cli` the `command`.
//!
//! The default features build the command. A library sets `default-features = false` and names what it uses: `redis` and
//! `s3` for stores, `cuda` for memory of GPUs, `ndarray` for typed arrays over caches.
#![forbid(unsafe_code)]

// The command is written as a user of the library.
#[cfg(feature = "cli")]
extern crate self as transload;

pub mod config;
pub mod document;

#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
pub mod command;
#[cfg(feature = "cli")]
mod commands;
#[cfg(feature = "cli")]
mod failure;
#[cfg(feature = "cli")]
mod output;
#[cfg(feature = "cli")]
mod program;
#[cfg(feature = "cli")]
mod show;

pub use transload_archive as archive;
pub use transload_layout as layout;
pub use transload_store as store;
pub use transload_transfer as transfer;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the guide to plans, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/plan.md")]
struct PlanGuide;

/// The examples of the guide to agents, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/agents.md")]
struct AgentsGuide;

/// The examples of the guide to GPU memory, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/gpu.md")]
struct GpuGuide;

/// The examples of the guide to connecting engines, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/engines.md")]
struct EnginesGuide;

/// The examples of the guide to stores, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/stores.md")]
struct StoresGuide;

/// The examples of the guide to tiers, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/stores/tiers.md")]
struct TiersGuide;

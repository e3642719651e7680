//! Code that the cross-crate tests share: a slow oracle for plans, generators of deployment pairs, and the checks that
//! compare a planner with the oracle.
//!
//! The oracle is written from the words of the reference alone and shares no code and no types with
//! the crates that it judges: it reads deployment documents as plain JSON and works byte by byte.
//!
//! - [`oracle`]: where every byte of a cache lies, and which bytes a transfer moves.
//! - [`chunks`]: the fewest chunks that a transfer can consist of, and the check of a list of them.
//! - [`cases`]: deployment pairs and requests, read off a tape of random numbers.
//! - [`planner`]: the seam between the oracle and a planner.
//! - [`compiled`]: the planner of `transload-transfer`, seen through that seam.
//! - [`sums`][]: checksums.
//! - [`fuzz`]: what the fuzz targets run.
//! - [`pair`]: two agents that move a request between them, and what has to come of it.
//! - [`process`]: tests of several processes, and counts of what one holds.
//! - [`kvboost`]: what KVBoost does, held against what the real one recorded.
//! - [`memory_path`]: a third path for agents, in memory, which can be told to fail.
//! - [`words`]: what agents say of their paths, encoded by hand.
//! - [`cluster`]: two small deployments, their memory, and requests to move between them.

pub mod cases;
pub mod chunks;
pub mod cluster;
pub mod compiled;
pub mod fake_cuda;
pub mod fuzz;
pub mod kvboost;
pub mod memory_path;
pub mod on_device;
pub mod oracle;
pub mod pair;
pub mod planner;
pub mod process;
pub mod sums;
pub mod words;

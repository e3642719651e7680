//! `memory://`: a store in the memory of one process, with a cap.
//!
//! | file | what |
//! |---|---|
//! | `contents` | chunks and manifests, references, and eviction |
//! | `policy` | the order of eviction |
//! | `inventory` | listing and collecting |

mod contents;
mod inventory;
mod policy;
mod store;
#[cfg(test)]
mod tests;

pub use policy::Policy;
pub use store::MemoryStore;

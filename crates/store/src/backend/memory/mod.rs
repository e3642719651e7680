//! `memory://`: a store in the memory of one process, with a cap.
//!
//! | file | what |
//! |---|---|
//! | `contents` | chunks and manifests, who refers to whom, and what goes when the cap is reached |
//! | `policy` | in which order it goes |
//! | `inventory` | listing and collecting |

mod contents;
mod inventory;
mod policy;
mod store;
#[cfg(test)]
mod tests;

pub use policy::Policy;
pub use store::MemoryStore;

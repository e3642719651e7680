//! Transload for Python: what an engine's connector needs, and nothing that it would have to copy.
//!
//! The classes are thin: each holds the Rust value it is named after. Calls that wait (for a lease to open, for a transfer
//! to land) release the interpreter's lock and run on the process's one `runtime`. A test compares the types that Python
//! sees with `python/transload/_transload.pyi`.

mod agent;
mod allocation;
mod announcement;
mod archive;
mod buffer;
mod completion;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
mod cuda;
mod deployment;
mod device;
mod digest;
mod errors;
mod identity;
mod in_process;
mod kind;
mod lease;
mod llama;
mod logs;
mod mark;
mod memory;
mod metrics;
mod objects;
mod plan;
mod prompt;
mod queue;
mod runtime;
mod tables;
mod ticket;
mod transfer;
mod values;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `transload` command in this process and returns its exit code. `started_as` is the command that starts
/// another process of it.
#[pyfunction]
fn run_command(py: Python<'_>, started_as: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| transload::command::run(started_as, arguments))
}

#[pymodule]
fn _transload(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_function(wrap_pyfunction!(agent::default_instance, module)?)?;
    module.add_function(wrap_pyfunction!(mark::cuda_available, module)?)?;
    module.add_function(wrap_pyfunction!(agent::new_incarnation, module)?)?;
    module.add_function(wrap_pyfunction!(digest::file_digest, module)?)?;
    module.add_class::<agent::Agent>()?;
    module.add_class::<announcement::Announcement>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<transfer::Transfer>()?;
    module.add_class::<archive::Archive>()?;
    module.add_class::<archive::Found>()?;
    module.add_class::<archive::Missing>()?;
    module.add_class::<archive::Permit>()?;
    module.add_class::<archive::Staged>()?;
    module.add_class::<archive::Staging>()?;
    module.add_class::<completion::Completion>()?;
    module.add_class::<deployment::Deployment>()?;
    module.add_class::<deployment::Group>()?;
    module.add_class::<identity::Identity>()?;
    module.add_class::<llama::LlamaFound>()?;
    module.add_class::<llama::LlamaStates>()?;
    module.add_class::<mark::Mark>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<objects::ObjectInfo>()?;
    module.add_class::<objects::Objects>()?;
    module.add_class::<plan::BoundPlan>()?;
    module.add_class::<plan::BoundRoute>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<prompt::Prompt>()?;
    module.add_class::<queue::ObjectQueue>()?;
    module.add_class::<ticket::Ticket>()?;
    errors::add(module)
}

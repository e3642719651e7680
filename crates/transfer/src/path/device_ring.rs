//! The path between two processes whose caches lie on one GPU: a ring whose slots are memory of that GPU.
//!
//! The source gathers into slots, the destination scatters from them, and both sum them, all on the GPU: no byte
//! crosses the bus, and no peer can access another's cache. It is set up like a [staging ring](super::ring), by the
//! same handover, and contains one: a ring of small slots of host memory, which describe the slots of the GPU. The
//! handover also passes a descriptor of the GPU's memory.
//!
//! GPUs are identified by the driver's UUID, which is the same in all processes, and differs between the parts of a GPU
//! under MIG. An agent has this path if all of its memory is on one GPU. If the source's GPU is another one, the agent
//! maps the ring there, provided that its process sees both GPUs and its kernels can access the source's memory.
//! Otherwise it says so, and both agents use the next path.

#[cfg(feature = "cuda")]
pub(crate) mod carrier;

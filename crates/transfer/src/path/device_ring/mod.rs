//! The path between two processes whose caches lie on one GPU: a ring whose slots are memory of that GPU.
//!
//! The source gathers into slots, the destination scatters out of them, and both sum them, all on the GPU: no byte crosses the
//! bus, and no peer has access to anybody's cache. It is set up as a [staging ring](super::ring) is, over the same
//! handover, and it is one: of small slots of host memory, which say what is in the slots of the GPU. To the handover belongs a
//! descriptor of the GPU's memory.
//!
//! GPUs are known by the driver's UUID, which is the same in all processes and another for each part of a GPU under
//! MIG. An agent has this path where all of its memory lies on one GPU. Where that is another than the source's, and its process sees
//! both and its kernels reach the source's memory, it maps the ring there; where not, it says so, and then both take the next path.

#[cfg(feature = "cuda")]
pub(crate) mod carrier;

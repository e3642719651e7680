//! The data plane: real lanes over loopback, real rings, without a control plane.

mod coded;
#[cfg(target_os = "linux")]
mod device_ring;
mod fences;
mod hostile;
mod opening;
mod random_plans;
mod support;

//! The data plane: real lanes over loopback, real rings, without a control plane.

mod fences;
mod hostile;
mod opening;
mod random_plans;
mod support;

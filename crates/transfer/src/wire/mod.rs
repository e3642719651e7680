//! The protocol between agents, as machines without sockets or clock.

/// Whether a test has broken this rule on purpose, to see that it would be noticed.
macro_rules! fault {
    ($machine:expr, $fault:ident) => {{
        #[cfg(test)]
        let broken = $machine.fault == Some($crate::wire::simulation::Fault::$fault);
        #[cfg(not(test))]
        let broken = false;
        broken
    }};
}

mod action;
mod destination;
mod flows;
pub mod frame;
mod job;
mod machine;
pub mod message;
mod notice;
mod options;
mod owner;
mod path;
mod peers;
mod planner;
mod refusal;
mod source;
pub mod stream;
mod transfer;

pub use action::{Action, BlocksOf, CloseReason, Flow};
pub use destination::{MAX_STREAMS, StreamRefusal};
pub use job::{JobError, JobRefused, JobReport, JobSpec, RouteReport};
pub use machine::{DocumentTooLong, Gauges, Identity, Machine};
pub use options::Options;
pub use path::{Path, PathSet};
pub use peers::Permits;
pub use planner::{Planner, Route, RouteAsk};
pub use refusal::{Difference, Failure, HelloRefusal, Refusal, Role, Text};

use machine::Timer;

/// Names a control connection for as long as the process lives. Given by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Names a pull or a push for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Names a notice for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoticeId(pub u64);

#[cfg(test)]
pub(crate) mod simulation;
#[cfg(test)]
mod tests;

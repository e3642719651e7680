//! The parts that leases and jobs build on: peers, transfers and paths.

use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::flows::Flows;
use crate::paths::Paths;
use crate::peers::Peers;

/// Access to the parts below leases and jobs, for the duration of a call.
pub(crate) struct Lower<'a, D: KnownDeployments> {
    pub(crate) cx: &'a mut Context<D>,
    pub(crate) peers: &'a mut Peers,
    pub(crate) flows: &'a mut Flows<D>,
    pub(crate) paths: &'a mut Paths,
}

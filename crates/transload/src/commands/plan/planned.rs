//! A plan that is bound to the blocks of both sides.

use std::time::{Duration, Instant};

use tracing::info;
use transload::layout::Deployment;
use transload::transfer::plan::{BindError, BoundPlan, PlanError};
use transload::transfer::{Plan, Request, Tables};

use super::blocks::BlockArgs;
use super::sides::SideArgs;
use crate::failure::Failure;

pub(in crate::commands) struct Planned {
    pub(in crate::commands) plan: Plan,
    pub(in crate::commands) tables: (Tables, Tables),
    pub(in crate::commands) bound: BoundPlan,
    first: Duration,
}

impl Planned {
    pub(super) fn of(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        sides: &SideArgs,
        blocks: &BlockArgs,
    ) -> Result<Self, Failure> {
        let begun = Instant::now();
        let plan = Plan::compile(src, dst, request);
        let plan = plan.map_err(|error| not_planned(error, sides.names()))?;
        let tables = blocks.tables(&plan)?;
        let planned = Self::bound(plan, tables, begun);
        let planned = planned.map_err(|error| not_bound(error, blocks.scattered))?;
        let Self { bound, .. } = &planned;
        let (routes, chunks) = (bound.routes.len(), bound.chunks());
        info!(routes, chunks, "planned");
        Ok(planned)
    }

    /// Binds a plan whose compilation began at `begun`.
    pub(in crate::commands) fn bound(plan: Plan, tables: (Tables, Tables), begun: Instant) -> Result<Self, BindError> {
        Ok(Self { bound: plan.bind(&tables.0, &tables.1)?, plan, tables, first: begun.elapsed() })
    }

    /// Returns the median time of a few runs of compiling and binding, if they are short: the first run mostly measures
    /// the system's memory allocation.
    pub(in crate::commands) fn time(&self, src: &Deployment, dst: &Deployment) -> Duration {
        const RUNS: usize = 15;
        const PATIENCE: Duration = Duration::from_millis(5);
        let begun = Instant::now();
        let mut times = vec![self.first];
        while times.len() < RUNS && self.first + begun.elapsed() < PATIENCE {
            let started = Instant::now();
            let bound: Option<BoundPlan> = Plan::compile(src, dst, self.plan.request())
                .ok()
                .and_then(|plan| plan.bind(&self.tables.0, &self.tables.1).ok());
            times.push(started.elapsed());
            drop(bound);
        }
        times.sort_unstable();
        times[times.len() / 2]
    }
}

fn not_planned(error: PlanError, [source, destination]: [String; 2]) -> Failure {
    match error {
        PlanError::Bridge(bridge) => Failure::no(
            format!("{source} and {destination} cannot be bridged: {bridge}"),
            "both sides must cache the same content; TP, PP, block size, order, padding and conv_layout may differ",
        ),
        PlanError::TooManySlices { .. } => Failure::input(
            error.to_string(),
            "use fewer ranks or fewer groups; docs/src/reference/limits.md lists the limits of a plan",
        ),
        other => Failure::input(other.to_string(), "use a token range that a sequence can have"),
    }
}

fn not_bound(error: BindError, scattered: bool) -> Failure {
    let right = match &error {
        BindError::NoSuchBlock { .. } if scattered => {
            "scattered blocks need twice the space: raise num_blocks in the document"
        }
        BindError::TooShort { .. } => {
            "list one block for every block_size tokens from position 0 on, with - for those before --start; or \
             remove the list and raise num_blocks"
        }
        BindError::NoBlock { .. } => {
            "use - only for blocks before --start, or before the tokens that a window still \
                                      needs"
        }
        BindError::NoSuchBlock { .. } => "name blocks below num_blocks, or raise it in the document",
        BindError::TooManyPlaces => "use fewer tokens or larger blocks",
        BindError::Repeated { .. } => "list each block only once",
        _ => "see `transload plan --help`",
    };
    Failure::input(error.to_string(), right)
}

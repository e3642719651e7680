//! The plans that are used now. Each is compiled once, away from the machine, and shared by all that move by it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use transload_plan::ids::ServiceName;

use crate::planner::{PlanAsk, Planned};

/// Most plans that are compiled at a time for the agents of one service, who choose what they ask for.
pub(crate) const MOST_COMPILING: usize = 256;

/// How many plans are remembered before those that are held no more are forgotten.
const SWEEP_AT: usize = 64;

/// Plans that somebody holds, and those that are being compiled.
#[derive(Debug)]
pub(crate) struct Plans<L> {
    /// For which service, if not for ourselves.
    compiling: HashMap<PlanAsk, Option<ServiceName>>,
    /// Of no use when they are held no more.
    compiled: HashMap<PlanAsk, Weak<Planned<L>>>,
    sweep_at: usize,
}

impl<L> Default for Plans<L> {
    fn default() -> Self {
        Self { compiling: HashMap::new(), compiled: HashMap::new(), sweep_at: SWEEP_AT }
    }
}

impl<L> Plans<L> {
    /// A plan that is compiled, and that somebody holds.
    pub(crate) fn get(&self, ask: &PlanAsk) -> Option<Arc<Planned<L>>> {
        self.compiled.get(ask).and_then(Weak::upgrade)
    }

    pub(crate) fn knows(&self, ask: &PlanAsk) -> bool {
        self.compiling.contains_key(ask) || self.get(ask).is_some()
    }

    /// How many are being compiled for the agents of a service.
    pub(crate) fn compiling_for(&self, service: &ServiceName) -> usize {
        let services = self.compiling.values().flatten();
        services.filter(|of| *of == service).count()
    }

    /// Whether no plan is held, and none is on its way.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let mut plans = self.compiled.values();
        self.compiling.is_empty() && plans.all(|plan| plan.strong_count() == 0)
    }

    /// One that was unknown is compiled from now on.
    pub(crate) fn compile(&mut self, ask: PlanAsk, service: Option<ServiceName>) {
        self.compiling.insert(ask, service);
    }

    /// It is compiled, or there is none.
    pub(crate) fn compiled(&mut self, ask: &PlanAsk, plan: Option<&Arc<Planned<L>>>) {
        self.compiling.remove(ask);
        let Some(plan) = plan else {
            return;
        };
        self.compiled.insert(ask.clone(), Arc::downgrade(plan));
        if self.compiled.len() >= self.sweep_at {
            self.compiled.retain(|_, plan| plan.strong_count() > 0);
            self.sweep_at = SWEEP_AT.max(2 * self.compiled.len());
        }
    }
}

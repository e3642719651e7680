//! The plans in use. Each is compiled once, outside of the machine, and shared by everything that needs it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use transload_plan::ids::ServiceName;

use crate::planner::{PlanAsk, Planned};

/// The most plans that are compiled at a time for the agents of one service, which choose what to ask for.
pub(crate) const MOST_COMPILING: usize = 256;

/// The number of remembered plans at which unused ones are removed.
const SWEEP_AT: usize = 64;

#[derive(Debug)]
pub(crate) struct Plans<L> {
    /// Plans that are being compiled, each with the service that asked for it. `None` stands for this agent.
    compiling: HashMap<PlanAsk, Option<ServiceName>>,
    /// Compiled plans. They are dropped when nothing uses them any more.
    compiled: HashMap<PlanAsk, Weak<Planned<L>>>,
    sweep_at: usize,
}

impl<L> Default for Plans<L> {
    fn default() -> Self {
        Self { compiling: HashMap::new(), compiled: HashMap::new(), sweep_at: SWEEP_AT }
    }
}

impl<L> Plans<L> {
    pub(crate) fn get(&self, ask: &PlanAsk) -> Option<Arc<Planned<L>>> {
        self.compiled.get(ask).and_then(Weak::upgrade)
    }

    pub(crate) fn knows(&self, ask: &PlanAsk) -> bool {
        self.compiling.contains_key(ask) || self.get(ask).is_some()
    }

    pub(crate) fn compiling_for(&self, service: &ServiceName) -> usize {
        let services = self.compiling.values().flatten();
        services.filter(|of| *of == service).count()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let mut plans = self.compiled.values();
        self.compiling.is_empty() && plans.all(|plan| plan.strong_count() == 0)
    }

    pub(crate) fn compile(&mut self, ask: PlanAsk, service: Option<ServiceName>) {
        self.compiling.insert(ask, service);
    }

    /// Records the result of compiling; `None` is a failure.
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

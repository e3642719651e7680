//! Binding a transfer's route to memory, away from the driver: how long that takes the peer's layout decides, and
//! everybody waits for the driver.

use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::Driver;
use crate::agent::data::{Landing, Outgoing, RouteBytes};
use crate::agent::event::Event;
use crate::agent::flows::{self, Moving, Under};
use crate::agent::metrics::Chunks;
use crate::ids::TransferId;
use crate::plan::Side;
use crate::wire::Flow;

/// How many routes are bound at a time: others wait for their turn. Most take some microseconds.
const TURNS: usize = 2;

/// Who takes turns.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TURNS)))
    }
}

/// A route that is being bound, and the streams that want in meanwhile: as many as a transfer may have.
#[derive(Debug)]
pub(in crate::agent) struct Binding {
    side: Side,
    admitted: Vec<oneshot::Sender<Option<Landing>>>,
}

impl Binding {
    /// Lets a stream in as soon as it is known where its bytes go.
    pub(super) fn admit(&mut self, answer: oneshot::Sender<Option<Landing>>) {
        self.admitted.push(answer);
    }
}

/// What binding has given.
pub(in crate::agent) type Bound = Result<(RouteBytes, Chunks), String>;

impl Driver {
    /// Begins to bind a route that is to be read, or received.
    pub(super) fn bind(&mut self, flow: Flow, side: Side) {
        let transfer = flow.transfer;
        let is_source = side == Side::Source;
        let known = self.blocks(&flow).and_then(|blocks| {
            let plan = self.machine.planner_mut().of_flow(&flow, is_source)?;
            Ok((blocks, plan))
        });
        let (blocks, plan) = match known {
            Ok(known) => known,
            Err(why) => return self.failed(transfer, why),
        };
        let memory = self.memories.get(&flow.rank).cloned();
        let of = flow.clone();
        let binding = move || {
            let memory = memory.ok_or_else(|| format!("rank {} has no memory here", of.rank))?;
            flows::route(&of, &plan, side, &blocks, &memory)
        };
        let under = Under {
            path: flow.path,
            flow,
            moving: Moving::Binding(Binding {
                side,
                admitted: Vec::new(),
            }),
            seen: 0,
            chunks: Chunks::default(),
        };
        self.under_way.insert(transfer, under);
        let (moved, turns) = (self.moved.clone(), self.turns.clone());
        self.endpoints.spawn_control(async move {
            // The semaphore is never closed.
            let _turn = turns.0.acquire_owned().await.ok();
            let bound = spawn_blocking(binding).await;
            let bound = bound.unwrap_or_else(|panicked| Err(panicked.to_string()));
            // The driver is gone where this fails.
            let _ = moved.send(Event::Bound { transfer, bound });
        });
    }

    /// A route is bound: what has waited for that goes on.
    pub(super) fn bound(&mut self, transfer: TransferId, bound: Bound) {
        // It may be over by now.
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        let (bytes, chunks) = match bound {
            Ok(bound) => bound,
            Err(why) => return self.failed(transfer, why),
        };
        under.chunks = chunks;
        let Moving::Binding(binding) = &mut under.moving else {
            return;
        };
        let Binding { side, admitted } = binding;
        let (admitted, path) = (std::mem::take(admitted), under.path);
        match side {
            Side::Source => {
                let lanes = usize::from(under.flow.lanes.max(1));
                let (outgoing, events) = Outgoing::new(transfer, under.flow.nonce, bytes, lanes);
                let ready = std::mem::take(&mut under.flow.ready);
                if under.flow.all_readable {
                    outgoing.open_all();
                }
                under.moving = Moving::Out(outgoing);
                self.report(transfer, events);
                for (layer, tokens) in ready {
                    self.readable(transfer, layer, tokens);
                }
            }
            Side::Destination => {
                let landing = Landing::new(bytes);
                under.moving = Moving::In(landing.clone());
                for answer in admitted {
                    self.counters.moves(transfer);
                    // The stream is gone where nobody waits.
                    let _ = answer.send(Some(landing.clone()));
                }
            }
        }
        if let Some(path) = path {
            self.carry(transfer, path);
        }
    }
}

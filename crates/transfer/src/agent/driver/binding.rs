//! Binding a transfer's route to memory, away from the driver.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Driver;
use crate::agent::event::Event;
use crate::agent::flows::{self, Moving, Under};
use crate::agent::metrics::Chunks;
use crate::data::{Landing, Outgoing, RouteBytes};
use crate::ids::TransferId;
use crate::plan::{Plan, Side};
use crate::wire::{Flow, Planned};

/// A route that is being bound, and the streams that want in meanwhile: as many as a transfer may have. Dropped, it does
/// not begin any more if it still waits for its turn.
#[derive(Debug)]
pub(in crate::agent) struct Binding {
    side: Side,
    admitted: Vec<oneshot::Sender<Option<Landing>>>,
    task: AbortHandle,
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.task.abort();
    }
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
    pub(super) fn bind(&mut self, flow: Flow, side: Side, plan: Arc<Planned<Plan>>) {
        let transfer = flow.transfer;
        let blocks = match self.blocks(&flow) {
            Ok(blocks) => blocks,
            Err(why) => return self.failed(transfer, why),
        };
        let memory = self.memories.get(&flow.rank).cloned();
        let of = flow.clone();
        let binding = move || {
            let memory = memory.ok_or_else(|| format!("rank {} has no memory here", of.rank))?;
            flows::route(&of, &plan.plan, side, &blocks, &memory)
        };
        let number = self.next_number;
        self.next_number += 1;
        let task = self.in_turn(binding, move |bound| Event::Bound {
            transfer,
            number,
            bound,
        });
        let under = Under {
            number,
            path: flow.path,
            flow,
            moving: Moving::Binding(Binding {
                side,
                admitted: Vec::new(),
                task: task.abort_handle(),
            }),
            seen: 0,
            chunks: Chunks::default(),
        };
        self.under_way.insert(transfer, under);
    }

    /// A route is bound: what has waited for that goes on.
    pub(super) fn bound(&mut self, transfer: TransferId, number: u64, bound: Bound) {
        if !self.is_under_way(transfer, number) {
            return;
        }
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        let Moving::Binding(binding) = &mut under.moving else {
            return;
        };
        let (bytes, chunks) = match bound {
            Ok(bound) => bound,
            Err(why) => return self.failed(transfer, why),
        };
        under.chunks = chunks;
        let (side, path) = (binding.side, under.path);
        let admitted = std::mem::take(&mut binding.admitted);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use transload_layout::Deployment;

    use super::*;
    use crate::agent::driver::Parts;
    use crate::agent::plans::{Plans, canonical};
    use crate::content::ContentDigest;
    use crate::copy::NoChecksum;
    use crate::data::DataOptions;
    use crate::identity::{Authority, Roles};
    use crate::ids::{
        AgentId, DeploymentDigest, Direction, Incarnation, LeaseSetId, Nonce, Rank, ServiceName,
    };
    use crate::lease::{LeaseKey, LeaseSpec};
    use crate::memory::Memory;
    use crate::moment::Moment;
    use crate::plan::{BlockTable, Request, Tables};
    use crate::quic::{Endpoints, QuicOptions};
    use crate::ticket::TicketKey;
    use crate::wire::{
        BlocksOf, ConnId, Identity, Machine, Options, PlanAsk, Planner as _, Secret,
    };

    const TOKENS: u64 = 16;
    const BYTES: u64 = TOKENS * 32;
    const TRANSFER: TransferId = TransferId([7; 16]);

    /// A driver that nobody runs, with a lease of block 1 and one of block 2.
    struct Stand {
        driver: Driver,
        events: mpsc::UnboundedReceiver<Event>,
        peer: DeploymentDigest,
    }

    fn lease(block: u8) -> LeaseKey {
        let (set, rank) = (LeaseSetId([block; 16]), Rank(0));
        LeaseKey { set, rank }
    }

    impl Stand {
        fn new() -> Self {
            let text = r#"{"schema": "transload.deployment/1", "tp": 1, "block_size": 16, "num_blocks": 3,
                "group": [{"name": "attn", "layers": "0", "spec": [{"kind": "attention",
                "heads": 1, "head_dim": 8, "dtype": "bf16"}]}]}"#;
            let own = Deployment::from_value(&serde_json::from_str(text).unwrap()).unwrap();
            let bytes = own.groups()[0].placement(0).allocation_bytes;
            let memory = Memory::allocate(&[bytes as usize]).unwrap();
            let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            memory.write(0, &pattern).unwrap();

            let authority = Authority::new("test".parse().unwrap()).unwrap();
            let service: ServiceName = "owner".parse().unwrap();
            let identity = authority.issue(&service, Roles::all()).unwrap();
            let ticket_key = TicketKey::new(identity.ticket_secret().as_bytes());
            let cluster = identity.peer().cluster.clone();
            let address = "127.0.0.1:0".parse().unwrap();
            let endpoints = Endpoints::bind(identity, QuicOptions::default(), address).unwrap();
            let own = Arc::new(own);
            let document = canonical(&own).unwrap();
            let peer = DeploymentDigest::of(&document);
            let mut plans = Plans::new(own);
            plans.meet(peer, &document).unwrap();
            let me = Identity {
                agent: AgentId::new("owner").unwrap(),
                cluster,
                incarnation: Incarnation::new(1, 0),
                document,
                ranks: [Rank(0)].into(),
                ticket_key,
                secret: Secret::new([1; 32]),
            };
            let mut machine = Machine::new(me, Options::default(), plans).unwrap();
            for block in [1, 2] {
                let spec = LeaseSpec {
                    key: lease(block),
                    direction: Direction::Pull,
                    content: ContentDigest([block; 32]),
                    start: 0,
                    valid_tokens: TOKENS,
                    ttl: Duration::from_secs(60),
                    hard_bound: Duration::from_secs(60),
                    prefilled: true,
                    blocks: Arc::new(Tables(vec![BlockTable::List(vec![block.into()])])),
                };
                machine.lease(Moment(Duration::ZERO), spec).unwrap();
            }
            let mut driver = Driver::new(Parts {
                machine,
                endpoints,
                memories: [(Rank(0), Arc::from([memory.into()]))].into(),
                data: DataOptions::default(),
                rooms: Vec::new(),
                stall: Duration::from_secs(60),
                keep_idle: Duration::from_secs(60),
                events: mpsc::channel(1).0,
            });
            let events = driver.moved_in.take().unwrap();
            Self {
                driver,
                events,
                peer,
            }
        }

        /// Begins to bind the block of a lease, for a transfer that always has the same number.
        fn bind(&mut self, block: u8) {
            self.bind_as(block, Side::Source, true);
        }

        fn bind_as(&mut self, block: u8, side: Side, all_readable: bool) {
            let flow = Flow {
                transfer: TRANSFER,
                nonce: Nonce([block; 16]),
                conn: ConnId(1),
                agent: AgentId::new("holder").unwrap(),
                peer: self.peer,
                rank: Rank(0),
                peer_rank: Rank(0),
                request: Request {
                    by_layer: !all_readable,
                    ..Request::tokens(TOKENS)
                },
                bytes: BYTES,
                lanes: 1,
                path: None,
                blocks: BlocksOf::Lease(lease(block)),
                all_readable,
                ready: Vec::new(),
            };
            let ask = PlanAsk {
                peer: self.peer,
                local_is_source: side == Side::Source,
                request: flow.request,
            };
            let plan = self.driver.machine.planner().compiling(&ask, vec![Rank(0)]);
            self.driver
                .bind(flow, side, Arc::new(plan.unwrap()().unwrap()));
        }

        /// A stream wants in while the route is being bound.
        fn admit(&mut self) -> oneshot::Receiver<Option<Landing>> {
            let under = self.driver.under_way.get_mut(&TRANSFER).unwrap();
            let Moving::Binding(binding) = &mut under.moving else {
                panic!("it is bound");
            };
            let (answer, admitted) = oneshot::channel();
            binding.admit(answer);
            admitted
        }

        /// How many bytes may be sent, once the route is bound.
        fn may_send(&self) -> Option<u64> {
            let Moving::Out(outgoing) = &self.driver.under_way[&TRANSFER].moving else {
                return None;
            };
            let parts = std::iter::from_fn(|| outgoing.ready_part());
            Some(parts.map(|part| part.bytes()).sum())
        }

        /// The next event but those of fences.
        fn bound(&mut self) -> Event {
            loop {
                match self.events.blocking_recv().unwrap() {
                    Event::Fenced { .. } => {}
                    event => return event,
                }
            }
        }

        /// What the transfer reads, once that is known.
        fn reads(&self) -> Option<Vec<u8>> {
            let Moving::Out(outgoing) = &self.driver.under_way[&TRANSFER].moving else {
                return None;
            };
            let mut bytes = vec![0; BYTES as usize];
            let (inside, len) = (outgoing.enter().unwrap(), bytes.len());
            let mut cursor = outgoing.route().cursor(0).unwrap();
            let host = cursor.each_host_section(len, &inside, |cursor, range| {
                cursor.gather(&mut bytes[range], &mut NoChecksum)
            });
            assert_eq!(host.unwrap(), len);
            Some(bytes)
        }
    }

    /// Whoever asks chooses the number of a transfer, and may choose one again: what was bound for the one before, which
    /// was given up, leads into blocks of a lease that is over.
    #[test]
    fn is_of_one_transfer_and_not_of_the_next_of_that_number() {
        let mut stand = Stand::new();
        stand.bind(2);
        let event = stand.bound();
        stand.driver.on_event(event);
        let right = stand.reads().unwrap();
        stand.driver.fence(TRANSFER);

        stand.bind(1);
        let stale = stand.bound();
        stand.driver.fence(TRANSFER);
        stand.bind(2);
        let own = stand.bound();
        stand.driver.on_event(stale);
        assert_eq!(stand.reads(), None, "its own is not there yet");
        stand.driver.on_event(own);
        assert_eq!(stand.reads(), Some(right));
    }

    /// Streams of ours are told of by a task of their own, which may be late.
    #[test]
    fn has_a_number_of_its_own() {
        let mut stand = Stand::new();
        let mut numbers = Vec::new();
        for block in [1, 2] {
            stand.bind(block);
            numbers.push(stand.driver.under_way[&TRANSFER].number);
            let event = stand.bound();
            stand.driver.on_event(event);
            let now: Vec<_> = numbers
                .iter()
                .map(|number| stand.driver.is_under_way(TRANSFER, *number))
                .collect();
            assert_eq!(now, [vec![false; numbers.len() - 1], vec![true]].concat());
            stand.driver.fence(TRANSFER);
            assert!(
                !stand
                    .driver
                    .is_under_way(TRANSFER, numbers[numbers.len() - 1])
            );
        }
    }

    #[test]
    fn that_waits_for_its_turn_is_withdrawn_with_its_transfer() {
        let mut stand = Stand::new();
        let turns = stand.driver.turns.free.clone();
        let all = turns.available_permits() as u32;
        let taken = turns.try_acquire_many(all).unwrap();
        stand.bind(1);
        stand.driver.fence(TRANSFER);
        stand.bind(2);
        drop(taken);
        let event = stand.bound();
        assert!(matches!(event, Event::Bound { number: 1, .. }));
    }

    #[test]
    fn lets_streams_in_when_it_is_done() {
        let mut stand = Stand::new();
        stand.bind_as(1, Side::Destination, true);
        let mut admitted = [stand.admit(), stand.admit()];
        let event = stand.bound();
        assert!(admitted[0].try_recv().is_err(), "it is not known where to");
        stand.driver.on_event(event);
        for admitted in &mut admitted {
            let landing = admitted.try_recv().unwrap().unwrap();
            assert_eq!((landing.route().bytes(), landing.placed()), (BYTES, 0));
        }
    }

    #[test]
    fn turns_streams_away_whose_transfer_is_fenced_meanwhile() {
        let mut stand = Stand::new();
        stand.bind_as(1, Side::Destination, true);
        let mut admitted = stand.admit();
        let stale = stand.bound();
        stand.driver.fence(TRANSFER);
        stand.driver.on_event(stale);
        assert_eq!(
            admitted.try_recv().unwrap_err(),
            oneshot::error::TryRecvError::Closed
        );
        assert!(!stand.driver.under_way.contains_key(&TRANSFER));
    }

    /// What becomes readable before it is done is read afterwards, and nothing else.
    #[test]
    fn keeps_in_mind_what_may_be_read() {
        for (ready, tokens, sent) in [(false, 0, 0), (true, TOKENS - 1, 0), (true, TOKENS, BYTES)] {
            let mut stand = Stand::new();
            stand.bind_as(1, Side::Source, false);
            assert_eq!(stand.may_send(), None);
            if ready {
                stand.driver.readable(TRANSFER, 0, tokens);
            }
            let event = stand.bound();
            stand.driver.on_event(event);
            assert_eq!(stand.may_send(), Some(sent), "{tokens}");
        }
        let mut stand = Stand::new();
        stand.bind_as(1, Side::Source, false);
        stand.driver.all_readable(TRANSFER);
        let event = stand.bound();
        stand.driver.on_event(event);
        assert_eq!(stand.may_send(), Some(BYTES));
    }
}

use super::*;
use crate::agent::deployments::{Deployments, canonical, deployment};
use crate::data::RegionCursor;
use transload_memory::Memory;
use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, DeploymentDigest, LeaseSetId, Nonce};
use transload_plan::{BlockTable, Request, Tables};
use transload_wire::{BlocksOf, KnownDeployments as _, LeaseKey, PlanAsk};

const TOKENS: u64 = 16;
const BYTES: u64 = TOKENS * 32;
const TRANSFER: TransferId = TransferId([7; 16]);

/// The transfers of an agent without anything else.
struct Stand {
    transfers: Transfers,
    events: mpsc::UnboundedReceiver<DataEvent>,
    plans: Deployments,
    peer: DeploymentDigest,
    counters: Counters,
}

impl Stand {
    fn new() -> Self {
        let own = deployment(3);
        let bytes = own.groups()[0].placement(0).allocation_bytes;
        let memory = Memory::allocate(&[bytes as usize]).unwrap();
        let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        memory.write(0, &pattern).unwrap();

        let document = canonical(&own).unwrap();
        let peer = DeploymentDigest::of(&document);
        let mut plans = Deployments::new(Arc::new(own));
        plans.meet(peer, &document).unwrap();
        let memories = [(Rank(0), Arc::from([memory.into()]))].into();
        let (sender, events) = mpsc::unbounded_channel();
        Self { transfers: Transfers::new(memories, sender), events, plans, peer, counters: Counters::default() }
    }

    /// Begins to bind a block, for a transfer that always has the same id.
    fn begin(&mut self, block: u8) {
        self.begin_as(block, Side::Source, true);
    }

    fn begin_as(&mut self, block: u8, side: Side, all_readable: bool) {
        let (set, rank) = (LeaseSetId([block; 16]), Rank(0));
        let flow = Flow {
            transfer: TRANSFER,
            nonce: Nonce([block; 16]),
            conn: ConnId(1),
            agent: AgentId::new("holder").unwrap(),
            rank,
            peer_rank: Rank(0),
            request: Request { by_layer: !all_readable, codec: Codec::Exact, ..Request::tokens(TOKENS) },
            bytes: BYTES,
            lanes: 1,
            path: None,
            blocks: BlocksOf::Lease(LeaseKey { set, rank }),
            all_readable,
            ready: Vec::new(),
        };
        let ask = PlanAsk { peer: self.peer, local_is_source: side == Side::Source, request: flow.request };
        let plan = self.plans.compiling(&ask, vec![Rank(0)]);
        let plan = Arc::new(plan().unwrap());
        let blocks = Tables(vec![BlockTable::List(vec![block.into()])]);
        let counters = &mut self.counters;
        let blocks = Some(Arc::new(blocks));
        self.transfers.begin(flow, side, plan, blocks, counters);
    }

    fn fence(&mut self) {
        self.transfers.fence(TRANSFER, &mut self.counters);
    }

    /// Asks to admit a stream.
    fn admit(&mut self) -> oneshot::Receiver<Landing> {
        let (answer, admitted) = oneshot::channel();
        let counters = &mut self.counters;
        self.transfers.admit(TRANSFER, answer, counters);
        admitted
    }

    /// Returns how many bytes may be sent, once the route is bound.
    fn may_send(&self) -> Option<u64> {
        let (_, outgoing) = self.transfers.outgoing(TRANSFER)?;
        let parts = std::iter::from_fn(|| outgoing.ready_part());
        Some(parts.map(|part| part.bytes()).sum())
    }

    /// Returns the result of binding, with its transfer.
    async fn bound(&mut self) -> (u64, BoundRoute) {
        loop {
            match self.events.recv().await.unwrap() {
                DataEvent::Bound { number, bound, .. } => return (number, bound),
                DataEvent::Fenced { transfer } => self.transfers.fenced(transfer),
                _ => panic!("nothing is sent"),
            }
        }
    }

    /// Continues the transfer, if its own route is bound.
    fn go_on(&mut self, (number, bound): (u64, BoundRoute)) {
        let counters = &mut self.counters;
        let path = self.transfers.bound(TRANSFER, number, bound, counters);
        assert_eq!(path, Ok(None), "no path was chosen");
    }

    /// Returns the memory that the transfer reads, once that is known.
    fn reads(&self) -> Option<Vec<u8>> {
        let (_, outgoing) = self.transfers.outgoing(TRANSFER)?;
        let mut bytes = vec![0; BYTES as usize];
        let (inside, len) = (outgoing.enter().unwrap(), bytes.len());
        let mut cursor = outgoing.route().cursor(0..outgoing.route().bytes()).unwrap();
        let read = cursor.each_section(len, &inside, |cursor, range| {
            let RegionCursor::Host(cursor) = cursor else {
                panic!("it is memory of the host");
            };
            cursor.gather(&mut bytes[range], None).map(|()| None)
        });
        read.unwrap();
        Some(bytes)
    }
}

/// A peer chooses the id of a transfer, and may reuse one. The route bound for the earlier transfer, which was given
/// up, refers to blocks of a lease that is over.
#[tokio::test]
async fn are_bound_each_by_its_own_and_not_by_the_one_before_of_that_number() {
    let mut stand = Stand::new();
    stand.begin(2);
    let bound = stand.bound().await;
    stand.go_on(bound);
    let right = stand.reads().unwrap();
    stand.fence();

    stand.begin(1);
    let stale = stand.bound().await;
    stand.fence();
    stand.begin(2);
    let own = stand.bound().await;
    stand.go_on(stale);
    assert_eq!(stand.reads(), None, "its own is not there yet");
    stand.go_on(own);
    assert_eq!(stand.reads(), Some(right));
}

/// A separate task reports on our streams, and may be late.
#[tokio::test]
async fn have_each_a_number_of_its_own() {
    let mut stand = Stand::new();
    let mut numbers = Vec::new();
    for block in [1, 2] {
        stand.begin(block);
        let bound = stand.bound().await;
        numbers.push(bound.0);
        stand.go_on(bound);
        let are = |stand: &Stand| -> Vec<bool> {
            let numbers = numbers.iter();
            let is = |number: &u64| stand.transfers.is_under_way(TRANSFER, *number);
            numbers.map(is).collect()
        };
        let before = numbers.len() - 1;
        assert_eq!(are(&stand), [vec![false; before], vec![true]].concat());
        stand.fence();
        assert_eq!(are(&stand), vec![false; numbers.len()]);
    }
}

#[tokio::test]
async fn that_wait_for_their_turn_withdraw_it_when_they_are_fenced() {
    let mut stand = Stand::new();
    let turns = stand.transfers.background(Rank(0)).turns.clone();
    let all = turns.available_permits() as u32;
    let taken = turns.try_acquire_many(all).unwrap();
    stand.begin(1);
    stand.fence();
    stand.begin(2);
    drop(taken);
    assert_eq!(stand.bound().await.0, 1);
}

#[tokio::test]
async fn let_streams_in_when_they_are_bound() {
    let mut stand = Stand::new();
    stand.begin_as(1, Side::Destination, true);
    let mut admitted = [stand.admit(), stand.admit()];
    let bound = stand.bound().await;
    assert!(admitted[0].try_recv().is_err(), "it is not known where to");
    stand.go_on(bound);
    for admitted in &mut admitted {
        let landing = admitted.try_recv().unwrap();
        assert_eq!((landing.route().bytes(), landing.placed()), (BYTES, 0));
    }
}

#[tokio::test]
async fn turn_streams_away_when_they_are_fenced_meanwhile() {
    let mut stand = Stand::new();
    stand.begin_as(1, Side::Destination, true);
    let mut admitted = stand.admit();
    let stale = stand.bound().await;
    stand.fence();
    stand.go_on(stale);
    assert_eq!(admitted.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    assert!(!stand.transfers.under_way.contains_key(&TRANSFER));
}

/// Bytes that become readable before the route is bound are read afterwards, and no others.
#[tokio::test]
async fn keep_in_mind_what_may_be_read() {
    for (ready, tokens, sent) in [(false, 0, 0), (true, TOKENS - 1, 0), (true, TOKENS, BYTES)] {
        let mut stand = Stand::new();
        stand.begin_as(1, Side::Source, false);
        assert_eq!(stand.may_send(), None);
        if ready {
            stand.transfers.readable(TRANSFER, 0, tokens);
        }
        let bound = stand.bound().await;
        stand.go_on(bound);
        assert_eq!(stand.may_send(), Some(sent), "{tokens}");
    }
    let mut stand = Stand::new();
    stand.begin_as(1, Side::Source, false);
    stand.transfers.all_readable(TRANSFER);
    let bound = stand.bound().await;
    stand.go_on(bound);
    assert_eq!(stand.may_send(), Some(BYTES));
}

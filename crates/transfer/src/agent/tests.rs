//! Agents over memory that is done late, out of order, or never.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use transload_layout::{Deployment, Dtype, Group, Spec};

use super::{After, Agent, AgentOptions, Keeper, Lease, LeaseEndError, LeaseOpenError};
use super::{LeaseRequest, PullRequest, Transfer, TransferError};
use crate::data::delayed::DelayedMemory;
use crate::identity::Authority;
use crate::path::ring::carrier::slots::RingShape;
use transload_layout::Rank;
use transload_memory::Memory;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{Direction, LeaseSetId};
use transload_plan::{BlockTable, Tables};
use transload_wire::{Claims, JobError, LeaseEnd, LeaseKey, OpenFault, PathSet, Roles, Ticket};

/// The blocks of a cache. Requests take every other one.
const BLOCKS: u32 = 192;
const BLOCK_TOKENS: u64 = 16;
const TOKENS: u64 = BLOCKS as u64 / 2 * BLOCK_TOKENS;
/// Bytes of a token: two layers of 4 heads, 64 elements of 2 bytes each, keys and values.
const BLOCK_BYTES: usize = BLOCK_TOKENS as usize * 2 * 2 * 4 * 64 * 2;
const CANARY: u8 = 0xCA;
const LANES: u16 = 2;
const CONTENT: ContentDigest = ContentDigest([7; 32]);

/// Fails a test that hangs, with a time limit far above what anything here takes.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = timeout(Duration::from_secs(60), work).await;
    done.expect("done in time")
}

async fn until(holds: impl Fn() -> bool) {
    soon(async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Returns whether a task has not ended after a while.
async fn is_pending<T>(work: &mut (impl Future<Output = T> + Unpin)) -> bool {
    timeout(Duration::from_millis(100), work).await.is_err()
}

/// The number of slots of a ring, of 256 KiB each.
const RING_SLOTS: usize = RingShape::DEFAULT.slots() as usize;

/// An agent of one rank, and its memory.
struct Side {
    agent: Agent,
    memory: DelayedMemory,
    /// The blocks of the request, in order.
    blocks: Vec<u32>,
}

impl Side {
    fn new(authority: &Authority, name: &str, blocks: Vec<u32>, device_stall: Duration) -> Self {
        let spec = Spec::attention(4, 64, Dtype::Bf16);
        let deployment = Deployment::builder()
            .block_size(BLOCK_TOKENS)
            .num_blocks(BLOCKS.into())
            .order("BLSHC")
            .group(Group::builder("attn", "0-1", spec))
            .build()
            .unwrap();
        let memory = Memory::allocate(&[BLOCKS as usize * BLOCK_BYTES]).unwrap();
        let memory = DelayedMemory::new(memory);
        let mut options = AgentOptions::default();
        options.wire.device_stall = device_stall;
        options.quic.lanes = LANES;
        let service = name.parse().unwrap();
        let identity = authority.issue(&service, Roles::all()).unwrap();
        let agent = Agent::builder(identity, deployment)
            .options(options)
            .register(Rank(0), [memory.clone()])
            .unwrap()
            .bind((Ipv4Addr::LOCALHOST, 0).into())
            .unwrap();
        Self { agent, memory, blocks }
    }

    fn tables(&self) -> Tables {
        Tables(vec![BlockTable::List(self.blocks.clone())])
    }

    fn block(&self, block: u32) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let at = u64::from(block) * BLOCK_BYTES as u64;
        self.memory.memory().read(at, &mut bytes).unwrap();
        bytes
    }

    fn fill(&self, byte: impl Fn(usize) -> u8) {
        let bytes: Vec<_> = (0..BLOCKS as usize * BLOCK_BYTES).map(byte).collect();
        self.memory.memory().write(0, &bytes).unwrap();
    }
}

/// Two agents, one of which has what the other pulls.
struct Pair {
    source: Side,
    destination: Side,
}

impl Pair {
    fn new(device_stall: Duration) -> Self {
        Self::with([device_stall; 2])
    }

    fn with([of_source, of_destination]: [Duration; 2]) -> Self {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let even = (0..BLOCKS).step_by(2).collect();
        let odd = (0..BLOCKS).rev().step_by(2).collect();
        let pair = Self {
            source: Side::new(&authority, "source", even, of_source),
            destination: Side::new(&authority, "destination", odd, of_destination),
        };
        pair.source.fill(|at| ((at as u64 * 0x9E37_79B9) >> 13) as u8);
        pair.destination.fill(|_| CANARY);
        pair
    }

    /// Leases what the source has, and begins to pull it.
    async fn begin(&self, set: u8, paths: PathSet, keepers: [Keeper; 2]) -> (Lease, Transfer) {
        let after = After::default();
        self.begin_after(set, paths, keepers, after).await
    }

    /// Leases and pulls, while the lease waits for a condition.
    async fn begin_after(&self, set: u8, paths: PathSet, keepers: [Keeper; 2], after: After) -> (Lease, Transfer) {
        let [at_source, at_destination] = keepers;
        let (source, set) = (&self.source.agent, LeaseSetId([set; 16]));
        let tables = self.source.tables();
        let mut lease = LeaseRequest::new(set, Rank(0), tables, CONTENT, TOKENS);
        (lease.keeper, lease.after) = (Some(at_source), after);
        let lease = soon(source.lease(lease)).await.unwrap();
        let claims = Claims {
            cluster: "test".parse().unwrap(),
            set,
            direction: Direction::Pull,
            owner: source.deployment_digest(),
            incarnation: source.incarnation(),
            start: 0,
            valid_tokens: TOKENS,
            ranks: vec![source.address("127.0.0.1")],
            time_left: Duration::from_secs(60),
            audience: None,
        };
        let ticket = Ticket::mint(&source.ticket_key(), &claims).unwrap();
        let tables = self.destination.tables();
        let mut pull = PullRequest::new(ticket, [Rank(0)], tables, CONTENT, TOKENS);
        (pull.paths, pull.keeper) = (paths, Some(at_destination));
        let transfer = soon(self.destination.agent.start_pull(pull)).await.unwrap();
        (lease, transfer)
    }

    /// Returns whether the destination has the source's blocks, and nothing else was written there.
    fn is_whole(&self) -> bool {
        let (source, destination) = (&self.source, &self.destination);
        let mut pairs = source.blocks.iter().zip(&destination.blocks);
        let others = (0..BLOCKS).filter(|block| !destination.blocks.contains(block));
        pairs.all(|(from, to)| source.block(*from) == destination.block(*to))
            && others.into_iter().all(|other| destination.block(other) == [CANARY; BLOCK_BYTES])
    }
}

/// Makes two keepers, and weak handles that tell whether they exist.
fn keepers() -> ([Keeper; 2], [Weak<()>; 2]) {
    let keepers = [Arc::new(()), Arc::new(())];
    let watched = keepers.each_ref().map(Arc::downgrade);
    (keepers.map(|keeper| keeper as Keeper), watched)
}

fn is_kept(keeper: &Weak<()>) -> bool {
    keeper.strong_count() > 0
}

/// A device that does its operations in any order.
struct Device {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    fn new(memory: &DelayedMemory, mut seed: usize) -> Self {
        let (memory, stop) = (memory.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let chosen = seed >> 33;
                thread::sleep(Duration::from_micros((chosen % 500) as u64));
                memory.work(|operations| chosen % operations);
            }
        });
        let thread = Some(thread);
        Self { stop, thread }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn work_off(memory: &DelayedMemory) {
    while memory.work(|operations| operations - 1) {}
}

const PATHS: [PathSet; 2] = [PathSet::QUIC, PathSet::LOCAL];
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn bytes_move_between_memories_that_are_late_and_out_of_order() {
    for paths in PATHS {
        let pair = Pair::new(LONG);
        pair.destination.memory.make_rooms_late();
        let _devices = [&pair.source, &pair.destination].map(|side| Device::new(&side.memory, 5));
        let (keepers, watched) = keepers();
        let (lease, transfer) = pair.begin(1, paths, keepers).await;
        soon(transfer.finish()).await.unwrap();
        let ended = soon(lease.ended()).await.unwrap();
        assert_eq!(ended.end, LeaseEnd::Completed);
        assert!(pair.is_whole());
        until(|| !watched.iter().any(is_kept)).await;
    }
}

/// At the source: however the lease ends, its blocks are returned when the last operation is done.
#[tokio::test]
async fn a_lease_ends_when_its_last_operation_is_done() {
    for paths in PATHS {
        let pair = Pair::new(LONG);
        let _device = Device::new(&pair.destination.memory, 3);
        let (keepers, [keeper, _]) = keepers();
        let (lease, transfer) = pair.begin(1, paths, keepers).await;
        until(|| pair.source.memory.pending() > 0).await;
        lease.cancel().await.unwrap();
        let mut ended = Box::pin(lease.ended());
        assert!(is_pending(&mut ended).await && is_kept(&keeper));
        work_off(&pair.source.memory);
        assert_eq!(soon(ended).await.unwrap().end, LeaseEnd::Cancelled);
        assert!(!is_kept(&keeper));
        soon(transfer.finish()).await.unwrap_err();
    }
}

/// At the destination: a cancelled pull ends when nothing will be written any more.
#[tokio::test]
async fn a_pull_is_over_when_its_last_operation_is_done() {
    for (paths, waits_for_room) in [(PathSet::QUIC, false), (PathSet::QUIC, true), (PathSet::LOCAL, false)] {
        let pair = Pair::new(LONG);
        if waits_for_room {
            pair.destination.memory.make_rooms_late();
        }
        let _device = Device::new(&pair.source.memory, 3);
        let (keepers, [_, keeper]) = keepers();
        let (_lease, transfer) = pair.begin(1, paths, keepers).await;
        until(|| pair.destination.memory.pending() > 0).await;
        transfer.cancel().await.unwrap();
        let mut finished = Box::pin(transfer.finish());
        assert!(is_pending(&mut finished).await && is_kept(&keeper));
        work_off(&pair.destination.memory);
        let cancelled = TransferError::from(JobError::Cancelled);
        assert_eq!(soon(finished).await.unwrap_err(), cancelled);
        assert!(!is_kept(&keeper));
        pair.destination.fill(|_| CANARY);
        assert_eq!(pair.destination.memory.pending(), 0, "nothing can be written");
    }
}

/// While memory places some bytes of a stream, the next are taken: there are two operations of a stream at a time.
#[tokio::test]
async fn the_next_bytes_come_while_memory_places_some() {
    let pair = Pair::new(LONG);
    let _device = Device::new(&pair.source.memory, 3);
    let (_lease, transfer) = pair.begin(1, PathSet::QUIC, keepers().0).await;
    // Each MiB is a stream, and those of a lane come at the same time.
    let (memory, streams) = (&pair.destination.memory, (BLOCKS as usize / 2 * BLOCK_BYTES) >> 20);
    until(|| memory.pending() == 2 * streams).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(memory.pending(), 2 * streams);
    let _device = Device::new(memory, 5);
    soon(transfer.finish()).await.unwrap();
    assert!(pair.is_whole());
}

/// A device with unfinished operations of a transfer occupies slots of a ring. Later transfers have the others.
#[tokio::test]
async fn a_transfer_that_was_given_up_holds_no_more_of_a_ring_than_its_slots() {
    let pair = Pair::new(LONG);
    let _device = Device::new(&pair.destination.memory, 3);
    let (keepers, [keeper, _]) = keepers();
    let (lease, transfer) = pair.begin(1, PathSet::LOCAL, keepers).await;
    let source = &pair.source.memory;
    until(|| source.pending() == RING_SLOTS - 2).await;
    lease.cancel().await.unwrap();
    soon(transfer.finish()).await.unwrap_err();

    let (others, _) = self::keepers();
    let (other, transfer) = pair.begin(2, PathSet::LOCAL, others).await;
    let mut finished = Box::pin(transfer.finish());
    let held = RING_SLOTS - 2;
    let done = soon(async {
        loop {
            while source.pending() > held {
                source.work(|operations| operations - 1);
            }
            if let Ok(done) = timeout(Duration::from_millis(1), &mut finished).await {
                break done;
            }
        }
    });
    done.await.unwrap();
    assert_eq!(soon(other.ended()).await.unwrap().end, LeaseEnd::Completed);
    assert!(pair.is_whole());

    let mut ended = Box::pin(lease.ended());
    assert!(is_pending(&mut ended).await && is_kept(&keeper));
    work_off(source);
    assert_eq!(soon(ended).await.unwrap().end, LeaseEnd::Cancelled);
}

/// The way in which memory is late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    /// It finishes after all.
    Done,
    /// It never finishes.
    Never,
    /// It has forgotten its operations.
    Lost,
}

/// A transfer whose memory is late fails, and keeps its blocks until the memory has finished, if ever.
#[tokio::test]
async fn blocks_that_may_still_be_touched_are_never_handed_out() {
    for (late, paths) in [
        (Late::Done, PathSet::QUIC),
        (Late::Done, PathSet::LOCAL),
        (Late::Never, PathSet::QUIC),
        (Late::Lost, PathSet::LOCAL),
    ] {
        let pair = Pair::new(Duration::from_millis(50));
        let (keepers, watched) = keepers();
        let (lease, transfer) = pair.begin(1, paths, keepers).await;
        let (source, destination) = (&pair.source.memory, &pair.destination.memory);
        until(|| {
            let written = destination.pending() > 0;
            if !written {
                source.work(|_| 0);
            }
            written
        })
        .await;
        until(|| source.pending() > 0).await;
        if late == Late::Lost {
            source.forget();
            destination.forget();
        }
        lease.cancel().await.unwrap();
        assert_eq!(soon(lease.ended()).await, Err(LeaseEndError::Stalled));
        let stalled = TransferError::from(JobError::DeviceStalled { rank: Rank(0) });
        assert_eq!(soon(transfer.finish()).await.unwrap_err(), stalled);
        assert!(watched.iter().all(is_kept));
        if late == Late::Done {
            work_off(source);
            work_off(destination);
            until(|| !watched.iter().any(is_kept)).await;
        }
        for side in [pair.source, pair.destination] {
            soon(side.agent.shutdown(Duration::ZERO)).await;
        }
        assert_eq!(watched.iter().all(is_kept), late != Late::Done);
    }
}

/// Memory that does not finish fails the transfer at both agents with that error, without being stopped first.
#[tokio::test]
async fn a_device_that_stalls_fails_its_transfers_by_name() {
    for paths in PATHS {
        for late_source in [true, false] {
            let (short, long) = (Duration::from_millis(50), LONG);
            let pair = match late_source {
                true => Pair::with([short, long]),
                false => Pair::with([long, short]),
            };
            let [late, other] = match late_source {
                true => [&pair.source, &pair.destination],
                false => [&pair.destination, &pair.source],
            };
            let _device = Device::new(&other.memory, 7);
            let (keepers, watched) = keepers();
            let (lease, transfer) = pair.begin(1, paths, keepers).await;
            let failed = soon(transfer.finish()).await.unwrap_err();
            assert_eq!(failed.kind(), "device_stalled", "{failed}");
            if late_source {
                assert_eq!(soon(lease.ended()).await, Err(LeaseEndError::Stalled));
            } else {
                assert_eq!(soon(lease.ended()).await.unwrap().end, LeaseEnd::Cancelled);
            }
            assert!(watched.iter().any(is_kept));
            work_off(&late.memory);
            until(|| {
                work_off(&late.memory);
                !watched.iter().any(is_kept)
            })
            .await;

            // Then it is used again.
            let _device = Device::new(&late.memory, 9);
            let (keepers, _) = self::keepers();
            let (_lease, transfer) = pair.begin(2, paths, keepers).await;
            soon(transfer.finish()).await.unwrap();
            assert!(pair.is_whole());
        }
    }
}

/// Waiting for a condition before a lease is read is no operation of memory, and may take longer than one.
#[tokio::test]
async fn work_that_a_lease_waits_for_is_no_stall() {
    let stall = Duration::from_secs(1);
    let pair = Pair::with([stall, stall]);
    let _devices = [&pair.source, &pair.destination].map(|side| Device::new(&side.memory, 5));
    let (after, done) = After::told();
    let (lease, transfer) = pair.begin_after(1, PathSet::QUIC, keepers().0, after).await;
    sleep(stall * 2).await;
    done(Ok(()));
    soon(transfer.finish()).await.unwrap();
    assert_eq!(soon(lease.ended()).await.unwrap().end, LeaseEnd::Completed);
}

/// A lost device fails its transfers at once, at both agents, and accepts no new ones.
#[tokio::test]
async fn a_device_that_is_lost_fails_its_transfers_by_name() {
    for paths in PATHS {
        for lost_source in [true, false] {
            let pair = Pair::new(LONG);
            let [lost, other] = match lost_source {
                true => [&pair.source, &pair.destination],
                false => [&pair.destination, &pair.source],
            };
            let _device = Device::new(&other.memory, 7);
            let (keepers, watched) = keepers();
            let (lease, transfer) = pair.begin(1, paths, keepers).await;
            until(|| lost.memory.pending() > 0).await;
            lost.memory.lose();
            let failed = soon(transfer.finish()).await.unwrap_err();
            assert_eq!(failed.kind(), "device_lost", "{failed}");
            let end = match lost_source {
                true => LeaseEnd::DeviceLost,
                false => LeaseEnd::Cancelled,
            };
            assert_eq!(soon(lease.ended()).await.unwrap().end, end);
            until(|| !watched.iter().any(is_kept)).await;

            let set = LeaseSetId([2; 16]);
            let tables = lost.tables();
            let mut request = LeaseRequest::new(set, Rank(0), tables.clone(), CONTENT, TOKENS);
            let refused = soon(lost.agent.lease(request.clone())).await.unwrap_err();
            let reason = OpenFault::DeviceLost { rank: Rank(0) };
            let key = LeaseKey { set, rank: Rank(0) };
            let expected = LeaseOpenError::Refused { key, reason, tables };
            assert_eq!(refused, expected);
            // As well where it waits for work of that device, which will never be done.
            let (after, done) = After::told();
            request.after = after;
            done(Err("the device is lost".to_owned()));
            assert_eq!(soon(lost.agent.open(request)).await.unwrap_err(), expected);
        }
    }
}

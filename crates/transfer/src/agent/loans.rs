//! Memory that one agent lends another of the same host, and what is copied out of it.
//!
//! ```text
//! source                                             destination
//!   Read(flow), its path is shared memory              path known: Copying
//!   ── Lent (the machine's) ─────────────────────────►   may copy
//!   ── Blocks: the source's tables, in pieces ───────►   tables complete
//!   ── Memory: socket and token, once for each part ─►   fetched and checked
//!   ═══ Unix socket: memfds, sealed against writing ═►   all three: SharedCopy
//!   ◄───────────────────────────────── Copying ──────   now and then
//!   ◄─────────────────────── Taken (the machine's) ──
//! ```
//!
//! A loan is of all groups of one rank, in the order of the source's document, and is kept for as long
//! as the connection lives: the next transfer out of that rank sends its tables only. Offers lapse as
//! those of [rings](super::ring) do. What a peer can do with bad tables or bad memory is to make the copy
//! fail: [`SharedCopy::new`] checks all of them.
//!
//! Tables are told one after the other, and parts are fetched a few at a time. A transfer that waits for its
//! turn does not stand still as long as what is before it moves, on either side; how long it may wait in all
//! is for its job's timeout and the hard bound of its lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use transload_layout::Deployment;

use super::Blocks;
use super::builder;
use super::data::{Landing, SharedCopy, SharedCopyError, SharedRoute};
use super::event::Event;
use super::flows::Memories;
use super::local::Unmapping;
use super::ring::{self, Offer, OfferError};
use crate::ids::{Rank, TransferId};
use crate::memory::Memory;
use crate::plan::{BlockTable, Plan, Side, Tables};
use crate::transport::local::handover::{Expected, Link};
use crate::transport::local::shared::SharedMemory;
use crate::wire::{ConnId, Flow};

/// Shared memory as it was registered: for each rank, one for each group of the own document.
pub(super) type SharedMemories = BTreeMap<Rank, Arc<[SharedMemory]>>;

/// Most memories in one handover: what fits its packet.
const AT_A_TIME: usize = 16;

/// What an allocation may be longer than the layout takes: alignment to huge pages. A borrower maps all of
/// it, so there has to be a bound; it touches no more than its plans need.
const SLACK: u64 = 2 << 20;

/// Most offers that are remembered: all of 64 ranks, whatever their groups, in 200 bytes each.
const MOST_OFFERS: usize = 256;

/// Most of a peer's parts that are fetched at a time, each by a task, over a socket, with up to 16 mappings.
/// The rest wait for one of these, well within the time that an offer stands: a pull out of 80 parts takes
/// 0.25 s in all, unoptimised.
const MOST_FETCHES: usize = 32;

/// The loans of one connection, both ways.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Memory that the peer was told to fetch, and the transfer for which. It may have done so by now.
    lent: BTreeMap<Part, TransferId>,
    /// Held on both sides for as long as the loan lasts.
    links: Vec<Link>,
    /// Offers of the peer's that nobody has taken up. They may have lapsed.
    offered: BTreeMap<Part, Offer>,
    /// The peer's memory by rank and group; none where it is being fetched.
    borrowed: BTreeMap<(Rank, u32), Option<Memory>>,
    /// How many parts are being fetched.
    fetching: usize,
    /// How many pieces of the peer's tables have come, of whichever transfer's.
    heard: u64,
    /// How many parts of its memory.
    fetched: u64,
}

impl Loans {
    /// Whether memory was offered to the peer, and the offer has not lapsed.
    pub(super) fn is_lent(&self, part: Part) -> bool {
        self.lent.contains_key(&part)
    }

    /// Memory is offered to the peer, for this transfer.
    pub(super) fn lend(&mut self, part: Part, transfer: TransferId) {
        self.lent.insert(part, transfer);
    }

    /// An offer has come to nothing; another may be made. For whom was it?
    pub(super) fn unlend(&mut self, part: Part) -> Option<TransferId> {
        self.lent.remove(&part)
    }

    pub(super) fn hold(&mut self, link: Link) {
        self.links.push(link);
    }

    /// The peer offers memory. That alone costs us nothing but remembering it.
    pub(super) fn offered(&mut self, part: Part, offer: Offer) {
        // What is dropped so lapses, and the peer offers it again.
        if self.offered.len() >= MOST_OFFERS && !self.offered.contains_key(&part) {
            self.offered.clear();
        }
        self.offered.insert(part, offer);
    }

    /// What is to be fetched of a rank, for a transfer that waits: whatever is offered and is news, as far as
    /// there is room. It is being fetched from now on, until it is added or given up; then there may be more.
    pub(super) fn take_up(&mut self, rank: Rank, deployment: &Deployment) -> Vec<(Part, Offer)> {
        // What is no part of the deployment is not taken note of either.
        self.offered
            .retain(|part, _| part.rank != rank || part.is_of(deployment));
        let of_rank = self.offered.keys().filter(|part| part.rank == rank);
        let parts: Vec<_> = of_rank.copied().collect();
        let news = parts.into_iter().filter_map(|part| {
            let keys = || part.groups().map(|group| (part.rank, group));
            if keys().any(|key| self.borrowed.contains_key(&key)) {
                return None;
            }
            self.borrowed.extend(keys().map(|key| (key, None)));
            Some((part, self.offered.remove(&part)?))
        });
        let room = MOST_FETCHES.saturating_sub(self.fetching);
        let news: Vec<_> = news.take(room).collect();
        self.fetching += news.len();
        news
    }

    /// Memory is not fetched after all. It may be offered again.
    pub(super) fn unborrow(&mut self, part: Part) {
        self.fetching = self.fetching.saturating_sub(1);
        for group in part.groups() {
            self.borrowed.remove(&(part.rank, group));
        }
    }

    /// Memories were fetched.
    pub(super) fn add(&mut self, part: Part, memories: Vec<Memory>) {
        self.fetching = self.fetching.saturating_sub(1);
        self.fetched += 1;
        let keys = part.groups().map(|group| (part.rank, group));
        self.borrowed
            .extend(keys.zip(memories.into_iter().map(Some)));
    }

    /// A piece of the peer's tables was accepted.
    pub(super) fn heard(&mut self) {
        self.heard += 1;
    }

    /// How far those have come whom a copy waits for that is not bound yet. While the tables of others come,
    /// one that waits for the rest of its own does not stand still: the peer tells them one after the other.
    pub(super) fn ahead_of(&self, copying: &Copying) -> u64 {
        match copying.is_complete() {
            true => self.fetched,
            false => self.heard + self.fetched,
        }
    }

    /// The memory of a rank of the peer, once that of all its groups is there.
    fn of_rank(&self, rank: Rank, groups: usize) -> Option<Vec<Memory>> {
        let groups = (0..groups).map(|group| {
            let key = (rank, u32::try_from(group).ok()?);
            self.borrowed.get(&key)?.clone()
        });
        groups.collect()
    }
}

/// Some groups of one rank, lent in one handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) rank: Rank,
    /// The first group, by its index in the document of the source.
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Part {
    fn groups(self) -> std::ops::Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Whether there is such a rank, and such groups, and not too many of them for a handover.
    pub(super) fn is_of(self, deployment: &Deployment) -> bool {
        let groups = deployment.groups().len() as u64;
        let end = u64::from(self.first) + u64::from(self.count);
        (1..=AT_A_TIME as u64).contains(&u64::from(self.count))
            && end <= groups
            && self.rank.0 < deployment.tp() * deployment.pp()
    }

    /// How many bytes a peer may lend.
    fn most_bytes(self, deployment: &Deployment) -> u64 {
        let (_, stage) = deployment.split_rank(self.rank);
        let groups = deployment.groups().iter();
        let groups = groups.skip(self.first as usize).take(self.count as usize);
        let bytes = groups.map(|group| {
            let placement = group.placement(stage);
            let each = placement.allocation_bytes.saturating_add(SLACK);
            each.saturating_mul(placement.allocations)
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// The parts in which the memory of a rank is lent.
pub(super) fn parts(
    rank: Rank,
    memories: &[SharedMemory],
) -> impl Iterator<Item = (Part, Vec<SharedMemory>)> {
    let parts = memories.chunks(AT_A_TIME).enumerate();
    parts.map(move |(i, memories)| {
        let part = Part {
            rank,
            // A deployment has 64 groups at most.
            first: (i * AT_A_TIME) as u32,
            count: memories.len() as u32,
        };
        (part, memories.to_vec())
    })
}

/// Waits until the peer fetches memory that it was told of.
pub(super) async fn hand_over(
    expected: Expected,
    part: Part,
    memories: Vec<SharedMemory>,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let lending = async {
        let connection = ring::visit(expected).await?;
        let lent = connection.lend(&memories).await;
        lent.map_err(OfferError::failed)
    };
    let event = match lending.await {
        Ok(link) => Event::LoanOut { conn, link },
        Err(why) => Event::LoanOutFailed { conn, part, why },
    };
    // The driver is gone where this fails.
    let _ = events.send(event).await;
}

/// Fetches memory that the peer lends, and holds it against the peer's deployment.
pub(super) async fn fetch(
    offer: Offer,
    part: Part,
    deployment: Arc<Deployment>,
    unmapping: Unmapping,
    conn: ConnId,
    events: mpsc::Sender<Event>,
) {
    let fetching = async {
        let connection = offer.connect().await?;
        let most = part.most_bytes(&deployment);
        let borrowed = connection.borrow(most).await;
        let (borrowed, link) = borrowed.map_err(OfferError::of_guest)?;
        let memories = borrowed.into_iter();
        let memories = memories.map(|memory| {
            let unmapping = unmapping.clone();
            memory.memory_dropped_by(|memory| unmapping.discard(memory))
        });
        let memories: Vec<_> = memories
            .collect::<Result<_, _>>()
            .map_err(OfferError::failed)?;
        builder::check_groups(&deployment, part.rank, part.first, part.count, &memories)
            .map_err(OfferError::failed)?;
        Ok((memories, link))
    };
    let event = match fetching.await {
        Ok((memories, link)) => Event::LoanIn {
            conn,
            part,
            memories,
            link,
        },
        Err(why) => Event::LoanInFailed { conn, part, why },
    };
    // The driver is gone where this fails.
    let _ = events.send(event).await;
}

/// A transfer that is to be copied out of memory that its source lends.
///
/// Memory: 4 bytes for each entry of the source's tables, up to the last that the plan touches.
#[derive(Debug)]
pub(super) struct Copying {
    /// Takes no streams from here on; it is fenced for one that came before the path was known.
    pub(super) landing: Landing,
    plan: Plan,
    /// For each group of the plan, the source's table as far as it has come.
    tables: Vec<Vec<u32>>,
    /// Whether the source has said that we may.
    lent: bool,
    /// Once it runs.
    pub(super) copy: Option<SharedCopy>,
}

impl Copying {
    /// With the plan of its one route.
    pub(super) fn new(landing: Landing, plan: Plan) -> Self {
        let groups = 0..plan.group_names().len();
        let tables = groups.map(|group| {
            let touched = plan.table_entries(group, Side::Source);
            // Entries before the first that is touched are never looked at.
            let before = touched.start.min(touched.end) as usize;
            vec![BlockTable::NONE; before]
        });
        Self {
            landing,
            tables: tables.collect(),
            plan,
            lent: false,
            copy: None,
        }
    }

    /// The source has said that we may copy.
    pub(super) fn lend(&mut self) {
        self.lent = true;
    }

    /// Takes a piece of the source's tables: the next one, and no more than the plan touches.
    pub(super) fn add(&mut self, group: u32, first: u64, blocks: &[u32]) -> Result<(), String> {
        let index = group as usize;
        let table = self.tables.get_mut(index).filter(|table| {
            let end = self.plan.table_entries(index, Side::Source).end;
            let have = table.len() as u64;
            first == have && have.saturating_add(blocks.len() as u64) <= end
        });
        let table = table.ok_or("a piece of a block table does not fit in")?;
        table.extend_from_slice(blocks);
        Ok(())
    }

    /// Whether nothing is missing but the memory.
    pub(super) fn is_ready(&self) -> bool {
        self.lent && self.is_complete() && self.copy.is_none()
    }

    /// Whether the source's tables are there.
    fn is_complete(&self) -> bool {
        self.tables.iter().enumerate().all(|(group, table)| {
            table.len() as u64 >= self.plan.table_entries(group, Side::Source).end
        })
    }

    /// Binds the copy, once the memory of the source's rank is there.
    pub(super) fn bind(
        &mut self,
        flow: &Flow,
        loans: &Loans,
        own: &Blocks,
        memories: &Memories,
    ) -> Option<Result<SharedCopy, String>> {
        let theirs = loans.of_rank(flow.peer_rank, self.plan.group_names().len())?;
        let made = self.bind_to(flow, &theirs, own, memories);
        self.copy = made.as_ref().ok().cloned();
        Some(made)
    }

    fn bind_to(
        &mut self,
        flow: &Flow,
        theirs: &[Memory],
        own: &Blocks,
        memories: &Memories,
    ) -> Result<SharedCopy, String> {
        let plan = &self.plan;
        let tables = std::mem::take(&mut self.tables).into_iter();
        let src_tables = Tables(tables.map(BlockTable::List).collect());
        let dst_tables = plan
            .arrange(Side::Destination, own)
            .map_err(|error| error.to_string())?;
        let ours = memories
            .get(&flow.rank)
            .ok_or_else(|| format!("rank {} has no memory here", flow.rank))?;
        let route = SharedRoute {
            plan,
            src_rank: flow.peer_rank,
            dst_rank: flow.rank,
            src_tables: &src_tables,
            dst_tables: &dst_tables,
        };
        let copy = SharedCopy::new(
            &route,
            |group| theirs.get(plan.group_of(Side::Source, group)),
            |group| ours.get(plan.group_of(Side::Destination, group)),
        )
        .map_err(|error| error.to_string())?;
        match copy.bytes() == flow.bytes {
            true => Ok(copy),
            false => Err(format!(
                "{} bytes are bound, {} were planned",
                copy.bytes(),
                flow.bytes
            )),
        }
    }

    /// Whether it waits for other copies of this process, which end by themselves.
    pub(super) fn is_queued(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| !copy.has_begun())
    }

    /// Bytes that were copied so far.
    pub(super) fn copied(&self) -> u64 {
        self.copy.as_ref().map_or(0, SharedCopy::copied)
    }
}

/// Waits for a copy, and tells the driver how it went.
pub(super) async fn run(
    copying: impl Future<Output = Result<(), SharedCopyError>>,
    transfer: TransferId,
    moved: mpsc::UnboundedSender<Event>,
) {
    let event = match copying.await {
        Ok(()) => Event::Copied { transfer },
        Err(error) => Event::CopyFailed {
            transfer,
            why: error.to_string(),
        },
    };
    // The driver is gone where this fails.
    let _ = moved.send(event);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Nonce;
    use crate::transport::local::host::SocketName;

    const GROUPS: u32 = 48;

    fn deployment() -> Deployment {
        let group = |i| {
            format!(
                r#"{{"name": "g{i}", "layers": "{i}", "spec": [{{"kind": "attention",
                    "heads": 1, "head_dim": 8, "dtype": "bf16"}}]}}"#
            )
        };
        let groups: Vec<_> = (0..GROUPS).map(group).collect();
        let groups = groups.join(",");
        let text = format!(
            r#"{{"schema": "transload.deployment/1", "tp": 1, "block_size": 1, "num_blocks": 1,
                "group": [{groups}]}}"#
        );
        Deployment::from_value(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    /// Groups of the first rank.
    fn part(first: u32, count: u32) -> Part {
        let rank = Rank(0);
        Part { rank, first, count }
    }

    fn offer() -> Offer {
        let socket = SocketName::random().unwrap().to_string();
        Offer::of(socket, (Nonce([1; 16]), Nonce([2; 16]))).unwrap()
    }

    fn take_up(loans: &mut Loans, deployment: &Deployment) -> Vec<Part> {
        let taken = loans.take_up(Rank(0), deployment).into_iter();
        taken.map(|(part, _)| part).collect()
    }

    fn memories(part: Part) -> Vec<Memory> {
        let memory = |_| Memory::allocate(&[16]).unwrap();
        part.groups().map(memory).collect()
    }

    #[test]
    fn few_offers_are_remembered() {
        let mut loans = Loans::default();
        for rank in (0..10_000).map(Rank) {
            let (first, count) = (rank.0 % 7, 1);
            loans.offered(Part { rank, first, count }, offer());
            assert!(loans.offered.len() <= MOST_OFFERS);
        }
        // One that takes the place of another needs no more room.
        let mut loans = Loans::default();
        for first in (0..MOST_OFFERS as u32).chain([0]) {
            loans.offered(part(first, 1), offer());
        }
        assert_eq!(loans.offered.len(), MOST_OFFERS);
    }

    #[test]
    fn no_group_is_fetched_twice() {
        let (mut loans, deployment) = (Loans::default(), deployment());
        let parts = (0..GROUPS).flat_map(|first| [1, 3, 16].map(|count| part(first, count)));
        // Some begin where others do, or in their midst, or end beyond all groups.
        for part in parts.filter(|part| part.first % 4 != 0 || part.count > 1) {
            loans.offered(part, offer());
        }
        let mut fetched = Vec::new();
        loop {
            let taken = take_up(&mut loans, &deployment);
            if taken.is_empty() {
                break;
            }
            fetched.extend(taken.iter().flat_map(|part| part.groups()));
            // Neither while they are fetched, nor when they are there.
            assert_eq!(take_up(&mut loans, &deployment), []);
            for part in taken {
                loans.add(part, memories(part));
            }
        }
        fetched.sort_unstable();
        assert_eq!(fetched, Vec::from_iter(0..GROUPS));
        let memories = loans.of_rank(Rank(0), GROUPS as usize).unwrap();
        assert_eq!(memories.len(), GROUPS as usize);
    }

    #[test]
    fn what_was_not_fetched_may_be_offered_again() {
        let (mut loans, deployment) = (Loans::default(), deployment());
        let part = part(0, 16);
        loans.offered(part, offer());
        assert_eq!(take_up(&mut loans, &deployment), [part]);
        // The peer offers it again since the first offer has lapsed, of which we do not know yet.
        loans.offered(part, offer());
        assert_eq!(take_up(&mut loans, &deployment), []);
        loans.unborrow(part);
        assert_eq!(take_up(&mut loans, &deployment), [part]);
        assert_eq!(take_up(&mut loans, &deployment), []);
        loans.unborrow(part);
        assert_eq!(take_up(&mut loans, &deployment), []);
    }

    #[test]
    fn few_parts_are_fetched_at_a_time() {
        let (mut loans, deployment) = (Loans::default(), deployment());
        for first in 0..GROUPS {
            loans.offered(part(first, 1), offer());
        }
        let mut under_way = take_up(&mut loans, &deployment);
        assert_eq!(under_way.len(), MOST_FETCHES);
        assert_eq!(take_up(&mut loans, &deployment), []);
        // Each that is over makes room for one, however it went.
        for rest in (MOST_FETCHES..GROUPS as usize).rev() {
            let over = under_way.pop().unwrap();
            match rest % 2 {
                0 => loans.add(over, memories(over)),
                _ => loans.unborrow(over),
            }
            assert_eq!(take_up(&mut loans, &deployment).len(), 1);
        }
        loans.unborrow(under_way.pop().unwrap());
        assert_eq!(take_up(&mut loans, &deployment), []);
    }
}

//! Memory that is lent, and copied out of: what the driver does of it. See [`loans`] for the course.

use std::collections::{BTreeSet, HashMap};

use super::Driver;
use crate::agent::flows::{Moving, Under};
use crate::agent::loans::{self, Copying, Part};
use crate::agent::metrics::Chunks;
use crate::agent::ring::{self, OfferError};
use crate::agent::telling::Pieces;
use crate::ids::{Rank, TransferId};
use crate::memory::Memory;
use crate::transport::local::handover::Link;
use crate::wire::message::LaneMessage;
use crate::wire::{ConnId, Flow, Path, Planner};

impl Driver {
    /// Lends the memory of a transfer's rank, and says which blocks of it are meant.
    pub(super) fn lend(&mut self, flow: Flow) {
        let (transfer, conn, rank) = (flow.transfer, flow.conn, flow.rank);
        let plans = self.machine.planner_mut();
        // Of a push, the peer has chosen; what is lent to whom is for us to say.
        if !plans.paths(&flow.agent, true).contains(Path::Shared) {
            let why = "memory is not lent to this peer".to_owned();
            return self.failed(transfer, why);
        }
        let pieces = self.blocks(&flow).and_then(|blocks| {
            let plan = self.machine.planner_mut().of_flow(&flow, true)?;
            Pieces::new(transfer, &plan, blocks)
        });
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(why) => return self.failed(transfer, why),
        };
        let under = Under {
            flow,
            moving: Moving::Lent,
            path: Some(Path::Shared),
            seen: 0,
            chunks: Chunks::default(),
        };
        self.under_way.insert(transfer, under);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.telling.add(pieces);
        }
        self.tell(conn);
        self.lend_rank(conn, rank, transfer);
    }

    /// Tells a peer the next piece of our tables, if there is one and it is time.
    pub(super) fn tell(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && let Some(piece) = connection.telling.next()
        {
            connection.outbox.mark();
            self.machine.send_lanes(conn, piece);
        }
    }

    /// Offers the memory of a rank for a transfer that waits for it, as far as it was not offered.
    fn lend_rank(&mut self, conn: ConnId, rank: Rank, transfer: TransferId) {
        if let Err(why) = self.offer_rank(conn, rank, transfer) {
            self.loan_lost(conn, rank, true, &why);
        }
    }

    fn offer_rank(&mut self, conn: ConnId, rank: Rank, transfer: TransferId) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return Ok(());
        };
        let memories = self.lendable.get(&rank);
        let memories = memories.ok_or("the rank's memory is not shared")?;
        for (part, memories) in loans::parts(rank, memories) {
            if connection.loans.is_lent(part) {
                continue;
            }
            let local = self.local.as_ref().ok_or("there is no local socket")?;
            let (expected, offer) = ring::offer(local.listener())?;
            let events = self.events.clone();
            let handing = loans::hand_over(expected, part, memories, conn, events);
            connection.owns(local.spawn(handing));
            connection.loans.lend(part, transfer);
            let (socket, token) = offer.words();
            let Part { rank, first, count } = part;
            self.machine.send_lanes(
                conn,
                LaneMessage::Memory {
                    socket,
                    token,
                    rank,
                    first,
                    count,
                },
            );
        }
        Ok(())
    }

    /// A transfer is to be copied out of its source's memory.
    pub(super) fn expect_loan(&mut self, transfer: TransferId) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        let Moving::In(landing) = &under.moving else {
            return;
        };
        match self.machine.planner_mut().of_route(&under.flow) {
            Ok(plan) => {
                let copying = Copying::new(landing.clone(), plan);
                under.moving = Moving::Copy(Box::new(copying));
                let (conn, rank) = (under.flow.conn, under.flow.peer_rank);
                self.borrow(conn, rank);
            }
            Err(why) => self.failed(transfer, why),
        }
    }

    /// Fetches what the peer has offered of a rank's memory, if a transfer waits for it.
    pub(super) fn borrow(&mut self, conn: ConnId, rank: Rank) {
        let waits = |under: &&Under| {
            let flow = &under.flow;
            flow.conn == conn && flow.peer_rank == rank && matches!(under.moving, Moving::Copy(_))
        };
        let Some(peer) = self.under_way.values().find(waits).map(|u| u.flow.peer) else {
            return;
        };
        let Some(deployment) = self.machine.planner_mut().peer(&peer).cloned() else {
            return;
        };
        let (Some(connection), Some(local)) = (self.connections.get_mut(&conn), &self.local) else {
            return;
        };
        for (part, offer) in connection.loans.take_up(rank, &deployment) {
            let unmapping = local.unmapping();
            let events = self.events.clone();
            let task = loans::fetch(offer, part, deployment.clone(), unmapping, conn, events);
            connection.owns(local.spawn(task));
        }
    }

    /// A fetch is over, so that there is room for another: of any rank that a transfer waits for.
    fn borrow_more(&mut self, conn: ConnId) {
        let waits = |under: &&Under| under.flow.conn == conn && under.unbound().is_some();
        let waiting = self.under_way.values().filter(waits);
        let ranks: BTreeSet<Rank> = waiting.map(|under| under.flow.peer_rank).collect();
        for rank in ranks {
            self.borrow(conn, rank);
        }
    }

    pub(super) fn borrowed(&mut self, conn: ConnId, part: Part, memories: Vec<Memory>, link: Link) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.loans.add(part, memories);
        connection.loans.hold(link);
        let waiting = self.waiting_for(conn, part.rank, false);
        for transfer in waiting {
            self.copy_if_ready(transfer);
        }
        self.borrow_more(conn);
    }

    /// For transfers that wait for their turn: how far those before them have come.
    pub(super) fn ahead(&self) -> HashMap<TransferId, u64> {
        let connections = self.connections.values();
        let lent = connections.flat_map(|connection| connection.telling.waiting());
        let copies = self.under_way.values().filter_map(|under| {
            let loans = &self.connections.get(&under.flow.conn)?.loans;
            Some((under.flow.transfer, loans.ahead_of(under.unbound()?)))
        });
        lent.chain(copies).collect()
    }

    /// Transfers that are lent memory of a rank here, or wait to borrow that of one there.
    fn waiting_for(&self, conn: ConnId, rank: Rank, lent: bool) -> Vec<TransferId> {
        let waits = |under: &&Under| {
            let flow = &under.flow;
            flow.conn == conn
                && match &under.moving {
                    Moving::Lent => lent && flow.rank == rank,
                    _ => !lent && flow.peer_rank == rank && under.unbound().is_some(),
                }
        };
        let waiting = self.under_way.values().filter(waits);
        waiting.map(|under| under.flow.transfer).collect()
    }

    /// A piece of the source's tables has come.
    pub(super) fn on_blocks(
        &mut self,
        conn: ConnId,
        transfer: TransferId,
        at: (u32, u64),
        blocks: &[u32],
    ) {
        let under = self.under_way.get_mut(&transfer);
        let Some(under) = under.filter(|under| under.flow.conn == conn) else {
            return;
        };
        // A transfer that takes another path has no use for it.
        let Moving::Copy(copying) = &mut under.moving else {
            return;
        };
        match copying.add(at.0, at.1, blocks) {
            Ok(()) => {
                // Empty ones could come for ever.
                if let Some(connection) = self.connections.get_mut(&conn)
                    && !blocks.is_empty()
                {
                    connection.loans.heard();
                }
                self.copy_if_ready(transfer);
            }
            Err(why) => self.copy_failed(transfer, why),
        }
    }

    /// Begins to copy once the source has said so, and its tables and memory are there.
    pub(super) fn copy_if_ready(&mut self, transfer: TransferId) {
        let Some(under) = self.under_way.get_mut(&transfer) else {
            return;
        };
        let flow = &under.flow;
        let Moving::Copy(copying) = &mut under.moving else {
            return;
        };
        let connection = self.connections.get(&flow.conn);
        let Some(connection) = connection.filter(|_| copying.is_ready()) else {
            return;
        };
        let own = self.machine.blocks(flow.blocks);
        let bound = match own {
            Some(own) => copying.bind(flow, &connection.loans, own, &self.memories),
            None => Some(Err("its blocks are gone".to_owned())),
        };
        match bound {
            None => {}
            Some(Ok(copy)) => match &self.local {
                Some(local) => {
                    self.counters.moves(transfer);
                    let copying = local.copy(copy);
                    local.spawn(loans::run(copying, transfer, self.moved.clone()));
                }
                None => self.copy_failed(transfer, "there are no local paths".to_owned()),
            },
            Some(Err(why)) => self.copy_failed(transfer, why),
        }
    }

    /// A copy is not to be had: it is tried again over another path.
    pub(super) fn copy_failed(&mut self, transfer: TransferId, why: String) {
        // One that was fenced is over, and nobody's fault.
        if let Some(under) = self.under_way.get(&transfer) {
            let (agent, conn) = (under.flow.agent.clone(), under.flow.conn);
            tracing::debug!(%agent, why, "a copy out of lent memory has failed");
            let plans = self.machine.planner_mut();
            plans.lose_local(conn, Path::Shared, false);
            self.failed(transfer, why);
        }
    }

    /// Nothing has come of memory that was offered.
    pub(super) fn loan_out_failed(&mut self, conn: ConnId, part: Part, why: &OfferError) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let offered = connection.loans.unlend(part);
        let waiting = self.waiting_for(conn, part.rank, true);
        if !why.is_withdrawal(offered, &waiting) {
            self.loan_lost(conn, part.rank, true, &why.to_string());
        } else if let Some(next) = waiting.first() {
            // As with rings.
            self.lend_rank(conn, part.rank, *next);
        }
    }

    /// Memory could not be fetched. Where we came too late for it, that is no failure: as with rings.
    pub(super) fn loan_in_failed(&mut self, conn: ConnId, part: Part, why: &OfferError) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.loans.unborrow(part);
        }
        match why {
            // It may have been offered again meanwhile.
            OfferError::Lapsed => {}
            OfferError::Failed(why) => self.loan_lost(conn, part.rank, false, why),
        }
        self.borrow_more(conn);
    }

    /// Memory of a rank is not lent or borrowed after all: whoever waits for it is tried again over
    /// another path.
    fn loan_lost(&mut self, conn: ConnId, rank: Rank, lent: bool, why: &str) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        tracing::debug!(peer = connection.name(), %rank, lent, why, "there is no loan");
        let plans = self.machine.planner_mut();
        plans.lose_local(conn, Path::Shared, lent);
        for transfer in self.waiting_for(conn, rank, lent) {
            self.failed(transfer, why.to_owned());
        }
    }
}

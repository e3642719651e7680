//! Staging rings: what the driver does of them. See [`ring`] for the course.

use super::Driver;
use crate::agent::flows::Moving;
use crate::agent::ring::{self, Offer, OfferError, Sending};
use crate::data::Outgoing;
use crate::ids::TransferId;
use crate::wire::message::LaneMessage;
use crate::wire::{ConnId, Path};

/// Sending.
impl Driver {
    pub(super) fn carry_over_ring(
        &mut self,
        conn: ConnId,
        transfer: TransferId,
        outgoing: &Outgoing,
    ) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.out.carry(outgoing);
            self.offer_ring(conn, transfer);
        }
    }

    /// Offers a ring for a transfer that waits for it, unless one was offered.
    fn offer_ring(&mut self, conn: ConnId, transfer: TransferId) {
        let connection = self.connections.get_mut(&conn);
        let Some(connection) = connection.filter(|of| of.rings.out.offered.is_none()) else {
            return;
        };
        connection.rings.out.offered = Some(transfer);
        let offered = self.local.as_ref().ok_or("there is no local socket");
        let offered = offered.map_err(str::to_owned);
        let made = offered.and_then(|local| Ok((local, ring::offer(local.listener())?)));
        match made {
            Ok((local, (expected, offer))) => {
                let stall = self.endpoints.options().stall_timeout;
                let handing = ring::hand_over(expected, stall, conn, self.events.clone());
                connection.owns(local.spawn(handing));
                let (socket, token) = offer.words();
                self.machine
                    .send_lanes(conn, LaneMessage::Local { socket, token });
            }
            Err(why) => self.ring_out_lost(conn, &why),
        }
    }

    /// A transfer has failed by its ring, and with it all that go over the same, if it is still the one
    /// that is sent over.
    pub(super) fn ring_broken(&mut self, conn: ConnId, transfer: TransferId, why: String) {
        let connection = self.connections.get(&conn);
        if connection.is_some_and(|connection| connection.rings.out.is_broken()) {
            self.ring_out_lost(conn, &why);
        }
        // It may have gone over the ring before.
        self.failed(transfer, why);
    }

    /// Nothing has come of the ring that was offered.
    pub(super) fn ring_out_failed(&mut self, conn: ConnId, why: &OfferError) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let offered = connection.rings.out.offered.take();
        let waiting = self.over_ring(conn, is_out);
        if !why.is_withdrawal(offered, &waiting) {
            self.ring_out_lost(conn, &why.to_string());
        } else if let Some(next) = waiting.first() {
            // It has come since then, and the peer may have been too late with what it knew of.
            self.offer_ring(conn, *next);
        }
    }

    /// There is no ring to send over, after all or any more: whoever waits for it is tried again over
    /// another path.
    fn ring_out_lost(&mut self, conn: ConnId, why: &str) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.out = Sending::default();
        }
        self.ring_lost(conn, why, true);
    }

    /// Fails what goes over a ring that is gone.
    fn ring_lost(&mut self, conn: ConnId, why: &str, out: bool) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        tracing::debug!(peer = connection.name(), out, why, "there is no ring");
        let plans = self.machine.planner_mut();
        plans.lose_local(conn, Path::Ring, out);
        for transfer in self.over_ring(conn, if out { is_out } else { is_in }) {
            self.failed(transfer, why.to_owned());
        }
    }

    /// Transfers of a connection that go over a ring.
    fn over_ring(&self, conn: ConnId, of_it: fn(&Moving) -> bool) -> Vec<TransferId> {
        let under_way = self.under_way.values();
        let of_ring = under_way.filter(|under| {
            under.flow.conn == conn && under.path == Some(Path::Ring) && of_it(&under.moving)
        });
        of_ring.map(|under| under.flow.transfer).collect()
    }
}

/// Receiving.
impl Driver {
    /// The peer offers a ring. Nothing is done about it unless a transfer waits for one: where the one that
    /// it was offered for was cancelled meanwhile, it is kept in mind for the next.
    pub(super) fn ring_offered(&mut self, conn: ConnId, offer: Offer) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.incoming.offered(offer);
            self.receive_over_ring(conn);
        }
    }

    /// Fetches the ring that was offered, if a transfer waits for it.
    pub(super) fn receive_over_ring(&mut self, conn: ConnId) {
        if self.over_ring(conn, is_in).is_empty() {
            return;
        }
        let (Some(connection), Some(local)) = (self.connections.get_mut(&conn), &self.local) else {
            return;
        };
        let Some(peer) = connection.agent.clone() else {
            return;
        };
        let receiving = &mut connection.rings.incoming;
        if let Some(offer) = receiving.take_up() {
            let receiver = self.receiver.clone();
            let task = ring::receive(offer, receiver, peer, conn, self.events.clone());
            receiving.begun(local.spawn(task));
        }
    }

    /// There is no ring to receive from, after all or any more: whoever waits for it is tried again over
    /// another path. Where nothing goes over it, that
    /// is no failure: the peer hangs up its rings first, and then the connection. Nor is it where we came
    /// too late for it: the peer offers another to a transfer that waits, or says that there is none.
    pub(super) fn ring_in_failed(&mut self, conn: ConnId, why: &OfferError) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.incoming.ended();
        }
        match why {
            // The next connection has rings of its own.
            OfferError::Panicked => self.lost(conn, &why.to_string()),
            // The other offer may have come meanwhile.
            OfferError::Lapsed => self.receive_over_ring(conn),
            OfferError::Failed(why) => {
                if !self.over_ring(conn, is_in).is_empty() {
                    self.ring_lost(conn, why, false);
                }
            }
        }
    }
}

fn is_out(moving: &Moving) -> bool {
    matches!(moving, Moving::Out(_))
}

fn is_in(moving: &Moving) -> bool {
    matches!(moving, Moving::In(_))
}

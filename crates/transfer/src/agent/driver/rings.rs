//! Staging rings: what the driver does of them. See [`ring`] for the course.

use super::Driver;
use crate::agent::data::Outgoing;
use crate::agent::flows::Moving;
use crate::agent::ring::{self, Offer, Receiving, Sending};
use crate::ids::TransferId;
use crate::wire::message::LaneMessage;
use crate::wire::{ConnId, Path};

/// Sending.
impl Driver {
    pub(super) fn carry_over_ring(&mut self, conn: ConnId, outgoing: &Outgoing) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let sending = &mut connection.rings.out;
        sending.carry(outgoing);
        if sending.begun {
            return;
        }
        sending.begun = true;
        let offered = self.local.as_ref().ok_or("there is no local socket");
        let offered = offered.map_err(str::to_owned);
        let made = offered.and_then(|local| Ok((local, ring::offer(local.listener())?)));
        match made {
            Ok((local, (expected, offer))) => {
                let stall = self.endpoints.options().stall_timeout;
                let handing = ring::hand_over(expected, stall, conn, self.events.clone());
                connection.tasks.push(local.spawn(handing));
                let (socket, token) = offer.words();
                self.machine
                    .send_lanes(conn, LaneMessage::Local { socket, token });
            }
            Err(why) => self.ring_out_failed(conn, &why),
        }
    }

    /// A transfer has failed by its ring, and with it all that go over the same, if it is still the one
    /// that is sent over.
    pub(super) fn ring_broken(&mut self, conn: ConnId, transfer: TransferId, why: String) {
        let connection = self.connections.get(&conn);
        if connection.is_some_and(|connection| connection.rings.out.is_broken()) {
            self.ring_out_failed(conn, &why);
        }
        // It may have gone over the ring before.
        self.failed(transfer, why);
    }

    /// There is no ring to send over, after all or any more: whoever waits for it is tried again over
    /// another path.
    pub(super) fn ring_out_failed(&mut self, conn: ConnId, why: &str) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.out = Sending::default();
        }
        let is_out = |moving: &Moving| matches!(moving, Moving::Out(_));
        self.ring_lost(conn, why, is_out);
    }

    /// Fails what goes over a ring that is gone.
    fn ring_lost(&mut self, conn: ConnId, why: &str, of_it: impl Fn(&Moving) -> bool) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        tracing::debug!(peer = %connection.peer, why, "there is no ring");
        let agent = connection.peer.agent.clone();
        let plans = self.machine.planner_mut();
        plans.lose_local(&agent, Path::Ring);
        for transfer in self.over_ring(conn, of_it) {
            self.failed(transfer, why.to_owned());
        }
    }

    /// Transfers of a connection that go over a ring.
    fn over_ring(&self, conn: ConnId, of_it: impl Fn(&Moving) -> bool) -> Vec<TransferId> {
        let under_way = self.under_way.values();
        let of_ring = under_way.filter(|under| {
            under.flow.conn == conn && under.path == Some(Path::Ring) && of_it(&under.moving)
        });
        of_ring.map(|under| under.flow.transfer).collect()
    }
}

/// Receiving.
impl Driver {
    /// The peer offers a ring. Nothing is done about it unless a transfer waits for one, as it does by
    /// the time that an honest peer says so.
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
        let receiving = &mut connection.rings.incoming;
        if let Some(offer) = receiving.take_up() {
            let (receiver, peer) = (self.receiver.clone(), connection.peer.clone());
            let task = ring::receive(offer, receiver, peer, conn, self.events.clone());
            receiving.begun(local.spawn(task));
        }
    }

    /// There is no ring to receive from, after all or any more: as above. Where nothing goes over it, that
    /// is no failure: the peer hangs up its rings first, and then the connection.
    pub(super) fn ring_in_failed(&mut self, conn: ConnId, why: &str) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.rings.incoming = Receiving::default();
        }
        if !self.over_ring(conn, is_in).is_empty() {
            self.ring_lost(conn, why, is_in);
        }
    }
}

fn is_in(moving: &Moving) -> bool {
    matches!(moving, Moving::In(_))
}

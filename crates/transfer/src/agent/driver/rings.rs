//! Staging rings: what the driver does of them. See [`ring`] for the course.

use super::Driver;
use crate::agent::data::Outgoing;
use crate::agent::flows::Under;
use crate::agent::ring::{self, Rings};
use crate::wire::message::LaneMessage;
use crate::wire::{ConnId, Path};

impl Driver {
    pub(super) fn carry_over_ring(&mut self, conn: ConnId, outgoing: &Outgoing) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.rings.carry(outgoing);
        if connection.rings.begun {
            return;
        }
        connection.rings.begun = true;
        let made = match &self.listener {
            Some(listener) => ring::offer(listener),
            None => Err("there is no local socket".to_owned()),
        };
        match made {
            Ok((expected, ring::Offer { socket, token })) => {
                let handing = ring::hand_over(expected, conn, self.events.clone());
                connection.tasks.push(self.endpoints.spawn_control(handing));
                self.machine
                    .send_lanes(conn, LaneMessage::Local { socket, token });
            }
            Err(why) => self.ring_failed(conn, &why),
        }
    }

    /// A ring cannot be had after all: whoever waits for it is tried again over the network.
    pub(super) fn ring_failed(&mut self, conn: ConnId, why: &str) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        tracing::debug!(peer = %connection.peer, why, "there is no ring");
        connection.rings = Rings::default();
        let agent = connection.peer.agent.clone();
        let plans = self.machine.planner_mut();
        plans.lose_local(&agent, Path::Ring);
        let of_ring = |under: &&Under| under.flow.conn == conn && under.path == Some(Path::Ring);
        let failed: Vec<_> = self.under_way.values().filter(of_ring).collect();
        let failed: Vec<_> = failed.iter().map(|under| under.flow.transfer).collect();
        for transfer in failed {
            self.failed(transfer, why.to_owned());
        }
    }
}

//! The paths of each connection: their negotiations, and the transfers that take them.

use std::collections::{BTreeMap, HashMap};

use transload_plan::ids::{AgentId, TransferId};

use crate::action::Action;
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::ids::ConnId;
use crate::message::Message;
use crate::path::negotiation::{Negotiation, Step, Steps, Traveller, Way};
use crate::path::{Path, PathSet};
use crate::peers::Peers;
use crate::refusal::Text;

#[derive(Debug, Default)]
pub(crate) struct Paths {
    links: HashMap<ConnId, Link>,
}

#[derive(Debug)]
struct Link {
    negotiations: BTreeMap<Path, Box<dyn Negotiation>>,
    /// Why a path was lost in one direction. Its transfers take other paths until the peer connects again.
    lost: BTreeMap<(Path, Way), Text>,
    travellers: BTreeMap<TransferId, (Path, Way)>,
}

impl Paths {
    pub(crate) fn connected(&mut self, conn: ConnId, negotiations: Vec<Box<dyn Negotiation>>) {
        let negotiations = negotiations.into_iter().map(|of| (of.path(), of));
        let link = Link { negotiations: negotiations.collect(), lost: BTreeMap::new(), travellers: BTreeMap::new() };
        self.links.insert(conn, link);
    }

    pub(crate) fn lost(&mut self, conn: ConnId) {
        self.links.remove(&conn);
    }

    /// Returns the paths to an agent or from it. A path that one connection has lost is not tried on another.
    pub(crate) fn offered(&self, peers: &Peers, agent: &AgentId, way: Way) -> PathSet {
        let is_up = |conn| peers.agent(conn) == Some(agent) && peers.peer(conn).is_some();
        let links = self.links.iter().filter(|(conn, _)| is_up(**conn));
        let paths = links.map(|(_, link)| link.there(way));
        paths.reduce(PathSet::and).unwrap_or_default()
    }

    /// Begins a transfer on a path. If the path was lost since it was agreed on, the transfer fails.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        path: Path,
        traveller: Traveller,
    ) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let Traveller { transfer, way, .. } = traveller;
        if let Some(why) = link.lost.get(&(path, way)) {
            return cx.emit(Event::PathLost(vec![transfer], why.clone()));
        }
        link.travellers.insert(transfer, (path, way));
        self.negotiate(cx, conn, path, |negotiation, steps| {
            negotiation.begin(traveller, steps);
        });
    }

    pub(crate) fn end(&mut self, conn: ConnId, transfer: TransferId) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if let Some((path, _)) = link.travellers.remove(&transfer)
            && let Some(negotiation) = link.negotiations.get_mut(&path)
        {
            negotiation.end(transfer);
        }
    }

    /// Runs a step of a negotiation, about a word of the peer or a report of the carrier, and does what it wants. Words
    /// about paths that the connection does not have are ignored.
    pub(crate) fn negotiate(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        path: Path,
        with: impl FnOnce(&mut dyn Negotiation, &mut Steps),
    ) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let mut steps = Steps::default();
        if let Some(negotiation) = link.negotiations.get_mut(&path) {
            with(&mut **negotiation, &mut steps);
        }
        while let Some(step) = steps.pop() {
            match step {
                Step::Say(word) => cx.send(conn, Message::Path { path, word }),
                Step::Order(order) => cx.act(Action::Path(conn, path, order)),
                Step::HangUp(why) => cx.emit(Event::HangUp(conn, why.into())),
                Step::Lose(way, why) => {
                    let why = Text::from(why);
                    let transfers = link.lose(path, way, why.clone());
                    cx.emit(Event::PathLost(transfers, why));
                }
            }
        }
    }
}

impl Link {
    fn there(&self, way: Way) -> PathSet {
        let paths = self.negotiations.keys().copied();
        let there = paths.filter(|path| !self.lost.contains_key(&(*path, way)));
        there.collect()
    }

    /// Records that a path has failed in one direction. Returns the transfers that took it.
    fn lose(&mut self, path: Path, way: Way, why: Text) -> Vec<TransferId> {
        self.lost.insert((path, way), why);
        let travellers = self.travellers.iter();
        let lost = travellers.filter(|(_, taken)| **taken == (path, way));
        lost.map(|(transfer, _)| *transfer).collect()
    }
}

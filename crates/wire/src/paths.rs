//! The paths of each connection: which there are, what takes them, and what is negotiated for them.

use std::collections::{BTreeMap, HashMap};

use transload_plan::ids::{AgentId, TransferId};

use crate::action::Action;
use crate::context::Context;
use crate::ids::ConnId;
use crate::message::Message;
use crate::news::News;
use crate::path::negotiation::{Negotiation, Step, Steps, Traveller, Way};
use crate::path::{Path, PathSet};
use crate::peers::Peers;
use crate::planner::Planner;
use crate::refusal::Text;

/// The paths of all connections.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    links: HashMap<ConnId, Link>,
}

#[derive(Debug)]
struct Link {
    negotiations: BTreeMap<Path, Box<dyn Negotiation>>,
    /// Why one has failed for bytes that go one way: others are taken that way, until the peer connects anew.
    lost: BTreeMap<(Path, Way), Text>,
    /// What takes which.
    travellers: BTreeMap<TransferId, (Path, Way)>,
}

impl Paths {
    /// A connection is there, for which so much can be negotiated.
    pub(crate) fn connected(&mut self, conn: ConnId, negotiations: Vec<Box<dyn Negotiation>>) {
        let negotiations = negotiations.into_iter().map(|of| (of.path(), of));
        let link = Link { negotiations: negotiations.collect(), lost: BTreeMap::new(), travellers: BTreeMap::new() };
        self.links.insert(conn, link);
    }

    /// A connection is gone, and its paths with it.
    pub(crate) fn lost(&mut self, conn: ConnId) {
        self.links.remove(&conn);
    }

    /// The paths by which bytes can go to an agent, or come from it. What one connection has lost is not tried on another.
    pub(crate) fn offered(&self, peers: &Peers, agent: &AgentId, way: Way) -> PathSet {
        let is_up = |conn| peers.agent(conn) == Some(agent) && peers.peer(conn).is_some();
        let links = self.links.iter().filter(|(conn, _)| is_up(**conn));
        let paths = links.map(|(_, link)| link.there(way));
        paths.reduce(PathSet::and).unwrap_or_default()
    }

    /// A transfer takes a path from now on. Where that has been lost since it was agreed on, the transfer fails.
    pub(crate) fn begin(&mut self, cx: &mut Context<impl Planner>, conn: ConnId, path: Path, traveller: Traveller) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let Traveller { transfer, way, .. } = traveller;
        if let Some(why) = link.lost.get(&(path, way)) {
            return cx.tell(News::PathLost(vec![transfer], why.clone()));
        }
        link.travellers.insert(transfer, (path, way));
        self.negotiate(cx, conn, path, |negotiation, steps| {
            negotiation.begin(traveller, steps);
        });
    }

    /// A transfer is over, or given up.
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

    /// Has a negotiation go on, with what the peer or a carrier says, and does what it wants. What is of no path that the
    /// connection has is not heard.
    pub(crate) fn negotiate(
        &mut self,
        cx: &mut Context<impl Planner>,
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
                Step::HangUp(why) => cx.tell(News::HangUp(conn, why.into())),
                Step::Lose(way, why) => {
                    let why = Text::from(why);
                    let transfers = link.lose(path, way, why.clone());
                    cx.tell(News::PathLost(transfers, why));
                }
            }
        }
    }
}

impl Link {
    /// The paths that there are for bytes that go this way.
    fn there(&self, way: Way) -> PathSet {
        let paths = self.negotiations.keys().copied();
        let there = paths.filter(|path| !self.lost.contains_key(&(*path, way)));
        there.collect()
    }

    /// A path has failed one way. Gives what has taken it.
    fn lose(&mut self, path: Path, way: Way, why: Text) -> Vec<TransferId> {
        self.lost.insert((path, way), why);
        let travellers = self.travellers.iter();
        let lost = travellers.filter(|(_, taken)| **taken == (path, way));
        lost.map(|(transfer, _)| *transfer).collect()
    }
}

//! Connections and the agents behind them: hello, lives, and dialling.
//!
//! ```text
//!  connected: send Hello
//!     │
//!     ▼            deployment unknown: DocumentWanted ─► Document
//!  Hello came ───────────────────────────────────────────────────┐
//!     │ fits                                                     │ fits
//!     ▼                                                          ▼
//!  send Welcome, and Welcome came ───────────────────────────► up: anything may be said
//!
//!  whatever does not fit: send Unwelcome, close
//! ```
//!
//! Both sides may have connected at the same time: any connection that is up will do.

use std::collections::BTreeSet;
use std::time::Duration;

use super::job::Job;
use super::message::{Envelope, Hello, MAX_DOCUMENT, Message, VERSIONS};
use super::planner::Planner;
use super::refusal::{Failure, HelloRefusal, Role, Text};
use super::{Action, CloseReason, ConnId, JobError, Machine, Timer};
use crate::ids::{AgentId, DeploymentDigest, Incarnation, Rank, ServiceName};
use crate::lease::Holder;
use crate::moment::Moment;
use crate::ticket::{MAX_RANKS, RankAddress};

/// What a peer's certificate allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// To read leased blocks.
    pub pull: bool,
    /// To write into opened blocks.
    pub push: bool,
    /// To renew leases.
    pub renew: bool,
    /// To own leases that others read or write.
    pub serve: bool,
}

impl Permits {
    /// Everything.
    pub const ALL: Permits = Permits {
        pull: true,
        push: true,
        renew: true,
        serve: true,
    };

    pub(crate) fn allow(self, role: Role) -> bool {
        match role {
            Role::Pull => self.pull,
            Role::Push => self.push,
            Role::Renew => self.renew,
            Role::Serve => self.serve,
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the peer's certificate proves.
    service: ServiceName,
    /// Which instance of it the peer is: the one that we have dialled, or else the one that its hello names.
    pub(crate) agent: Option<AgentId>,
    /// Whether we have dialled it.
    dialled: bool,
    pub(crate) permits: Permits,
    /// Number of the last message sent.
    sent: u64,
    /// Number of the last message seen.
    seen: u64,
    /// Announced, while its document is on its way.
    hello: Option<Hello>,
    /// Accepted.
    peer: Option<Peer>,
    /// Whether the peer has accepted us.
    welcome: bool,
    document_sent: bool,
    /// When both had accepted each other.
    up_since: Option<Moment>,
}

/// What a peer has said about itself.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) holder: Holder,
    pub(crate) ranks: BTreeSet<Rank>,
}

impl Session {
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    fn is_up(&self) -> bool {
        self.welcome && self.peer.is_some()
    }
}

/// An agent that is connected, or to be connected to.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Connections that are up, all of one life.
    up: BTreeSet<ConnId>,
    incarnation: Option<Incarnation>,
    dial: Option<Dial>,
}

#[cfg(test)]
impl Known {
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }
}

/// Who connects to an agent that a ticket names, where no connection is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialler {
    /// We do, where the ticket says that it is.
    Us,
    /// The agent itself, which has invited us: another of its engine has chosen the ticket, and proves
    /// nothing by it of where the agent is, or in which life.
    Peer,
}

#[derive(Debug)]
struct Dial {
    host: String,
    port: u16,
    /// Whether an answer to [`Action::Connect`] is due.
    asked: bool,
    failures: u32,
    /// Since when the agent has refused us as too many. It is patience that helps then, and not another attempt.
    crowded: Option<Moment>,
}

impl Dial {
    /// Whether the agent has been found crowded, and not yet for `wait`.
    fn has_patience(&self, now: Moment, wait: Duration) -> bool {
        self.crowded.is_some_and(|since| now.since(since) < wait)
    }
}

/// What the transport reports.
impl<B, P: Planner> Machine<B, P> {
    /// A control connection is there. `service` and `permits` are from the peer's certificate; `dialled` is the
    /// agent that was to be reached, where we have made it. `conn` was never used before.
    pub fn connected(
        &mut self,
        now: Moment,
        conn: ConnId,
        service: ServiceName,
        dialled: Option<AgentId>,
        permits: Permits,
    ) {
        if dialled.is_none()
            && let Err(refusal) = self.check_crowd(&service)
        {
            let envelope = Envelope {
                sequence: 1,
                message: Message::Unwelcome(refusal.clone()),
            };
            self.actions.push_back(Action::Send { conn, envelope });
            let reason = CloseReason::Refused(refusal);
            self.actions.push_back(Action::Close { conn, reason });
            return;
        }
        let session = Session {
            service,
            dialled: dialled.is_some(),
            agent: dialled,
            permits,
            sent: 0,
            seen: 0,
            hello: None,
            peer: None,
            welcome: false,
            document_sent: false,
            up_since: None,
        };
        self.sessions.insert(conn, session);
        self.timers
            .set(Timer::Hello(conn), now + self.options.hello_wait);
        let hello = Hello {
            versions: VERSIONS,
            cluster: self.me.cluster.clone(),
            agent: self.me.agent.clone(),
            incarnation: self.me.incarnation,
            deployment: self.me.deployment,
            ranks: self.me.ranks.iter().copied().collect(),
        };
        self.send(conn, Message::Hello(hello));
    }

    /// What [`Action::Connect`] asked for cannot be done.
    pub fn connect_failed(&mut self, now: Moment, agent: &AgentId, why: impl Into<Text>) {
        self.dial_failed(now, agent, 1, why.into());
        self.settle(now);
    }

    /// A connection is lost.
    pub fn disconnected(&mut self, now: Moment, conn: ConnId) {
        self.drop_connection(now, conn);
        self.settle(now);
    }

    /// A message has come.
    pub fn on_message(&mut self, now: Moment, conn: ConnId, envelope: Envelope) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if envelope.sequence <= session.seen {
            return;
        }
        if envelope.sequence != session.seen + 1 {
            self.close(now, conn, CloseReason::Violation("a message is missing"));
        } else {
            session.seen = envelope.sequence;
            match session.is_up() {
                true => self.on_talk(now, conn, envelope.message),
                false => self.on_greeting(now, conn, envelope.message),
            }
        }
        self.settle(now);
    }
}

impl<B, P: Planner> Machine<B, P> {
    /// Whether agents of a service may open one more connection to us.
    fn check_crowd(&self, service: &ServiceName) -> Result<(), HelloRefusal> {
        let of_service = |session: &&Session| !session.dialled && session.service == *service;
        let arrived = self.sessions.values().filter(of_service);
        let unnamed = arrived.clone().filter(|session| session.agent.is_none());
        let room = |limit: usize, there: usize| match there < limit {
            true => Ok(()),
            false => Err(HelloRefusal::crowded(limit)),
        };
        room(self.options.connections_per_service, arrived.count())?;
        room(self.options.unnamed_per_service, unnamed.count())
    }

    fn on_greeting(&mut self, now: Moment, conn: ConnId, message: Message) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        let greeted = session.hello.is_some() || session.peer.is_some();
        match message {
            Message::Hello(hello) if !greeted => self.on_hello(now, conn, hello),
            Message::DocumentWanted if !session.document_sent => {
                session.document_sent = true;
                let document = self.me.document.clone();
                self.send(conn, Message::Document { document });
            }
            Message::Document { document } if session.hello.is_some() => {
                self.on_document(now, conn, &document);
            }
            Message::Welcome if !session.welcome => {
                session.welcome = true;
                self.up(now, conn);
            }
            Message::Unwelcome(refusal) => self.on_unwelcome(now, conn, refusal),
            _ => self.close(
                now,
                conn,
                CloseReason::Violation("out of turn before the welcome"),
            ),
        }
    }

    fn on_hello(&mut self, now: Moment, conn: ConnId, hello: Hello) {
        if let Err(refusal) = self
            .identify(conn, &hello.agent)
            .and_then(|()| self.check_hello(conn, &hello))
        {
            self.unwelcome(now, conn, refusal);
            return;
        }
        if !self.moves_bytes(hello.ranks.is_empty()) {
            let ranks = hello.ranks.iter().map(|rank| rank.0 + 1).max();
            self.accept(now, conn, hello, ranks.unwrap_or(0));
        } else if let Some(ranks) = self.planner.ranks(&hello.deployment) {
            self.accept(now, conn, hello, ranks);
        } else if let Some(session) = self.sessions.get_mut(&conn) {
            session.hello = Some(hello);
            self.send(conn, Message::DocumentWanted);
        }
    }

    /// Whether bytes can move between us and a peer. An agent without memory gives up tickets or renews them, whatever layouts
    /// the two have, and neither has to know the other's.
    fn moves_bytes(&self, peer_has_no_memory: bool) -> bool {
        !peer_has_no_memory && !self.me.ranks.is_empty()
    }

    /// Notes which instance of its service the peer says it is. It can only name one of the service that its
    /// certificate proves.
    fn identify(&mut self, conn: ConnId, agent: &AgentId) -> Result<(), HelloRefusal> {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return Ok(());
        };
        if agent.service() != session.service.as_str() {
            return Err(HelloRefusal::Agent);
        }
        if *agent == self.me.agent {
            return Err(HelloRefusal::OwnName);
        }
        match &session.agent {
            Some(dialled) if dialled != agent => Err(HelloRefusal::OtherInstance {
                found: agent.clone(),
            }),
            _ => {
                session.agent = Some(agent.clone());
                Ok(())
            }
        }
    }

    fn check_hello(&self, conn: ConnId, hello: &Hello) -> Result<(), HelloRefusal> {
        if self.draining && !self.wants(&hello.agent) {
            return Err(HelloRefusal::ShuttingDown);
        }
        if hello.versions.0 > VERSIONS.1 || hello.versions.1 < VERSIONS.0 {
            return Err(HelloRefusal::Version {
                ours: VERSIONS,
                theirs: hello.versions,
            });
        }
        if hello.cluster != self.me.cluster {
            return Err(HelloRefusal::Cluster {
                ours: self.me.cluster.clone(),
                theirs: hello.cluster.clone(),
            });
        }
        // Those of an earlier life linger until the transport finds them dead, and go when this one is welcome.
        let of_this_life = |(other, session): &(&ConnId, &Session)| {
            let life = session.peer.as_ref().map(|peer| peer.holder.incarnation);
            **other != conn
                && !session.dialled
                && session.agent.as_ref() == Some(&hello.agent)
                && life.is_none_or(|life| life == hello.incarnation)
        };
        let limit = self.options.connections_per_agent;
        let dialled = self
            .sessions
            .get(&conn)
            .is_some_and(|session| session.dialled);
        if !dialled && self.sessions.iter().filter(of_this_life).count() >= limit {
            return Err(HelloRefusal::crowded(limit));
        }
        let known = self.agents.get(&hello.agent);
        match known.and_then(|known| known.incarnation) {
            Some(later) if later > hello.incarnation => Err(HelloRefusal::Superseded { later }),
            _ => Ok(()),
        }
    }

    fn on_document(&mut self, now: Moment, conn: ConnId, document: &[u8]) {
        let session = self.sessions.get_mut(&conn);
        let Some(hello) = session.and_then(|session| session.hello.take()) else {
            return;
        };
        let found = DeploymentDigest::of(document);
        let refusal = if document.len() > MAX_DOCUMENT || found != hello.deployment {
            let why = "it is not the one that was announced".into();
            HelloRefusal::Document { why }
        } else {
            match self.planner.meet(found, document) {
                Ok(ranks) => return self.accept(now, conn, hello, ranks),
                Err(difference) => HelloRefusal::Specs(difference),
            }
        };
        self.unwelcome(now, conn, refusal);
    }

    fn accept(&mut self, now: Moment, conn: ConnId, hello: Hello, ranks: u32) {
        let most = ranks.min(MAX_RANKS as u32);
        if let Some(&rank) = hello.ranks.iter().find(|rank| rank.0 >= most) {
            return self.unwelcome(now, conn, HelloRefusal::Rank { rank, ranks });
        }
        let moves = self.moves_bytes(hello.ranks.is_empty());
        if let Some(session) = self.sessions.get_mut(&conn) {
            if moves {
                self.planner.hold(&hello.deployment);
            }
            self.planner.connected(conn, &hello.agent);
            session.peer = Some(Peer {
                holder: Holder {
                    deployment: hello.deployment,
                    incarnation: hello.incarnation,
                    ranks,
                },
                ranks: hello.ranks.into_iter().collect(),
            });
            self.send(conn, Message::Welcome);
            self.up(now, conn);
        }
    }

    fn unwelcome(&mut self, now: Moment, conn: ConnId, refusal: HelloRefusal) {
        self.send(conn, Message::Unwelcome(refusal.clone()));
        self.greeting_failed(now, conn, &refusal);
        self.close(now, conn, CloseReason::Refused(refusal));
    }

    fn on_unwelcome(&mut self, now: Moment, conn: ConnId, refusal: HelloRefusal) {
        // It is told as seen from there.
        let refusal = refusal.mirrored();
        if !self.waits_for_room(now, conn, &refusal) {
            self.greeting_failed(now, conn, &refusal);
        }
        self.close(now, conn, CloseReason::Unwelcome(refusal));
    }

    /// Whether the agent that we have dialled has too many connections just now, and is to be tried again.
    fn waits_for_room(&mut self, now: Moment, conn: ConnId, refusal: &HelloRefusal) -> bool {
        let agent = self.peer_agent(conn).filter(|_| refusal.is_transient());
        let known = agent.and_then(|agent| self.agents.get_mut(&agent));
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return false;
        };
        dial.crowded.get_or_insert(now);
        dial.has_patience(now, self.options.hello_wait)
    }

    /// Jobs that need this agent need not wait.
    fn greeting_failed(&mut self, now: Moment, conn: ConnId, refusal: &HelloRefusal) {
        let Some(agent) = self.peer_agent(conn) else {
            return;
        };
        if self.connection(&agent).is_none() {
            let error = JobError::Hello {
                agent: agent.clone(),
                refusal: refusal.clone(),
            };
            self.stop_all_that_need(now, &agent, &error);
        }
    }

    /// Both sides may have come to accept each other: then the connection is up.
    fn up(&mut self, now: Moment, conn: ConnId) {
        let session = self.sessions.get_mut(&conn);
        let Some(session) = session.filter(|session| session.is_up()) else {
            return;
        };
        session.up_since = Some(now);
        let incarnation = session.peer.as_ref().map(|peer| peer.holder.incarnation);
        let Some((agent, incarnation)) = session.agent.clone().zip(incarnation) else {
            return;
        };
        self.timers.clear(&Timer::Hello(conn));
        self.timers.clear(&Timer::Dial(agent.clone()));
        let known = self.agents.entry(agent.clone()).or_default();
        let past = match known.incarnation.replace(incarnation) {
            Some(past) if past != incarnation => std::mem::take(&mut known.up),
            _ => BTreeSet::new(),
        };
        known.up.insert(conn);
        if let Some(dial) = &mut known.dial {
            dial.asked = false;
            dial.failures = 0;
            dial.crowded = None;
        }
        for other in past {
            self.close(now, other, CloseReason::Replaced);
        }
        if !fault!(self, AnyIncarnation) {
            self.leases.agent_up(now, &agent, incarnation);
            self.forget_past(&agent, incarnation);
            self.settle(now);
        }
        self.send_notices(&agent);
        let jobs = self.jobs.iter().filter(|(_, job)| job.wants(&agent));
        let invited = self.invited.iter().filter(|(_, job)| job.wants(&agent));
        let jobs = jobs.map(|(id, _)| *id).chain(invited.map(|(id, _)| *id));
        let jobs: Vec<_> = jobs.collect();
        jobs.into_iter().for_each(|id| self.advance(now, id));
    }

    /// Ends a connection by our own decision.
    pub(super) fn close(&mut self, now: Moment, conn: ConnId, reason: CloseReason) {
        if self.sessions.contains_key(&conn) {
            self.actions.push_back(Action::Close { conn, reason });
            self.drop_connection(now, conn);
        }
    }

    fn drop_connection(&mut self, now: Moment, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        self.timers.clear(&Timer::Hello(conn));
        if let Some(peer) = &session.peer
            && self.moves_bytes(peer.ranks.is_empty())
        {
            self.planner.release(&peer.holder.deployment);
        }
        // Of one that has not said who it is nothing is under way.
        let Some(agent) = session.agent else {
            return;
        };
        let known = self.agents.get_mut(&agent);
        let was_up = known.is_some_and(|known| known.up.remove(&conn));
        if self.connection(&agent).is_none() {
            if was_up {
                self.leases.agent_lost(now, &agent);
            }
            // A connection that was there and is lost is no failure to connect.
            let why = "the connection was lost".into();
            self.dial_failed(now, &agent, u32::from(!was_up), why);
        }
        self.forget_asks(conn);
        let dead = self.transfers.values().filter(|t| t.flow.conn == conn);
        let dead: Vec<_> = dead.map(|transfer| transfer.flow.transfer).collect();
        for transfer in dead {
            self.fail(now, transfer, Failure::Disconnected, false);
        }
        self.invite_again(now, conn);
    }
}

/// Dialling.
impl<B, P: Planner> Machine<B, P> {
    /// A connection to the agent that is up.
    pub(super) fn connection(&self, agent: &AgentId) -> Option<ConnId> {
        self.agents.get(agent)?.up.first().copied()
    }

    /// What the peer has said about itself, where the connection is up.
    pub(super) fn peer(&self, conn: ConnId) -> Option<&Peer> {
        let session = self.sessions.get(&conn).filter(|session| session.is_up())?;
        session.peer.as_ref()
    }

    /// Hangs up on lives of an agent that a ticket of a later one shows to be over, which may take the
    /// transport long to notice, and dials that one, where the ticket says it is.
    ///
    /// A connection that has come up at `suspect` or after is not suspected: who has just answered there
    /// lives, and is not whom the ticket means.
    pub(super) fn leave_past_life(
        &mut self,
        now: Moment,
        address: &RankAddress,
        ticket: Incarnation,
        suspect: Moment,
    ) {
        let is_past = |session: &Session| {
            let peer = session.peer.as_ref();
            session.agent.as_ref() == Some(&address.agent)
                && session.up_since.is_some_and(|since| since < suspect)
                && peer.is_some_and(|peer| peer.holder.incarnation < ticket)
        };
        let past = self.sessions.iter();
        let past = past.filter(|(_, session)| is_past(session));
        let past: Vec<_> = past.map(|(conn, _)| *conn).collect();
        if past.is_empty() {
            return;
        }
        // What led there has nothing to do with where the agent is now.
        if let Some(known) = self.agents.get_mut(&address.agent) {
            known.dial = Some(Dial {
                host: address.host.clone(),
                port: address.port,
                asked: true,
                failures: 0,
                crowded: None,
            });
        }
        self.timers.clear(&Timer::Dial(address.agent.clone()));
        for conn in past {
            self.close(now, conn, CloseReason::Replaced);
        }
        self.hurry(address.agent.clone());
    }

    /// Whether the peer's certificate lets others read or write what it has leased.
    pub(super) fn may_serve(&self, conn: ConnId) -> bool {
        self.sessions
            .get(&conn)
            .is_some_and(|session| session.permits.serve)
    }

    /// Who is at the other end of a connection, once that is known.
    pub fn peer_agent(&self, conn: ConnId) -> Option<AgentId> {
        let session = self.sessions.get(&conn)?;
        session.agent.clone()
    }

    /// Whether anything here waits for this agent, so that an idle connection must not be closed.
    pub fn wants(&self, agent: &AgentId) -> bool {
        let mut transfers = self.transfers.values();
        self.jobs.values().any(|job| job.wants(agent))
            || self.invited.values().any(|job| job.wants(agent))
            || self.notices.values().any(|notice| notice.wants(agent))
            || transfers.any(|transfer| transfer.flow.agent == *agent)
    }

    /// Whether a job or a notice is to dial this agent.
    fn dials(&self, agent: &AgentId) -> bool {
        self.jobs_that_dial(agent).next().is_some()
            || self.invited.values().any(|job| job.wants(agent))
            || self.notices.values().any(|notice| notice.dials(agent))
    }

    fn jobs_that_dial(&self, agent: &AgentId) -> impl Iterator<Item = &Job<B>> {
        let jobs = self.jobs.values();
        jobs.filter(move |job| job.dialler() == Dialler::Us && job.wants(agent))
    }

    /// Sees to it that a connection will be there.
    pub(super) fn want(&mut self, address: &RankAddress) {
        let known = self.agents.entry(address.agent.clone()).or_default();
        if !known.up.is_empty() {
            return;
        }
        if let Some(dial) = &mut known.dial {
            // One that has restarted elsewhere is not to be found where it was.
            if (&dial.host, dial.port) != (&address.host, address.port) {
                dial.host.clone_from(&address.host);
                dial.port = address.port;
                dial.failures = 0;
                dial.crowded = None;
            }
            return;
        }
        known.dial = Some(Dial {
            host: address.host.clone(),
            port: address.port,
            asked: true,
            failures: 0,
            crowded: None,
        });
        self.actions.push_back(Action::Connect {
            agent: address.agent.clone(),
            host: address.host.clone(),
            port: address.port,
        });
    }

    /// Something new needs the agent: do not let it wait for the pause after an old failure.
    pub(super) fn hurry(&mut self, agent: AgentId) {
        let known = self
            .agents
            .get_mut(&agent)
            .filter(|known| known.up.is_empty());
        if let Some(dial) = known.and_then(|known| known.dial.as_mut())
            && !dial.asked
        {
            dial.failures = 0;
            dial.crowded = None;
            self.timers.clear(&Timer::Dial(agent.clone()));
            self.dial_due(&agent);
        }
    }

    pub(super) fn dial_due(&mut self, agent: &AgentId) {
        let known = self.agents.get_mut(agent);
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return;
        };
        dial.asked = true;
        self.actions.push_back(Action::Connect {
            agent: agent.clone(),
            host: dial.host.clone(),
            port: dial.port,
        });
    }

    /// No connection to the agent is up, and the last one or the last attempt is over.
    fn dial_failed(&mut self, now: Moment, agent: &AgentId, failures: u32, why: Text) {
        let Some(known) = self.agents.get_mut(agent) else {
            return;
        };
        if !known.up.is_empty() {
            if let Some(dial) = &mut known.dial {
                dial.crowded = None;
            }
            return;
        }
        known.incarnation = None;
        let Some(dial) = &mut known.dial else {
            // The peer came to us; whether we need it shows below.
            self.agents.remove(agent);
            self.want_again(agent);
            return;
        };
        dial.asked = false;
        dial.failures = dial.failures.saturating_add(failures);
        let failures = dial.failures;
        let patience = dial.has_patience(now, self.options.hello_wait);
        if failures >= self.options.attempts && !patience {
            let error = JobError::Unreachable {
                agent: agent.clone(),
                why,
            };
            self.stop_all_that_need(now, agent, &error);
        }
        if self.dials(agent) {
            let at = now + self.options.pause(failures.max(1));
            self.timers.set(Timer::Dial(agent.clone()), at);
        } else {
            self.timers.clear(&Timer::Dial(agent.clone()));
            self.agents.remove(agent);
        }
    }

    /// Dials an agent that had dialled us, if anything here needs it.
    fn want_again(&mut self, agent: &AgentId) {
        let jobs = self.jobs_that_dial(agent);
        let invited = self.invited.values().filter(|job| job.wants(agent));
        let of_jobs = jobs.flat_map(|job| &job.claims.ranks);
        let of_jobs = of_jobs.chain(invited.flat_map(|job| &job.claims.ranks));
        let notices = self.notices.values().filter(|notice| notice.dials(agent));
        let notices = notices.filter_map(|notice| notice.address(agent));
        let of_jobs = of_jobs.filter(|address| address.agent == *agent);
        let address = of_jobs.chain(notices).next().cloned();
        if let Some(address) = address {
            self.want(&address);
        }
    }
}

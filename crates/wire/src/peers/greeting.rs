//! Greetings: the exchange of identities, and the check that two agents fit.
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

use std::collections::BTreeSet;

use transload_plan::ids::{AgentId, DeploymentDigest, ServiceName};

use super::{Peer, Peers, Session};
use crate::action::CloseReason;
use crate::context::{Context, Identity, Timer};
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::ids::ConnId;
use crate::lease::Holder;
use crate::message::{Hello, MAX_DOCUMENT, Message, VERSIONS};
use crate::refusal::HelloRefusal;
use crate::ticket::MAX_RANKS;

impl Peers {
    /// Checks that a service may open one more connection to this agent.
    pub(super) fn check_crowd(
        &self,
        cx: &Context<impl KnownDeployments>,
        service: &ServiceName,
    ) -> Result<(), HelloRefusal> {
        let of_service = |session: &&Session| !session.dialled && session.service == *service;
        let arrived = self.sessions.values().filter(of_service);
        let unnamed = arrived.clone().filter(|session| session.agent.is_none());
        let room = |limit: usize, there: usize| match there < limit {
            true => Ok(()),
            false => Err(HelloRefusal::crowded(limit)),
        };
        room(cx.options.connections_per_service, arrived.count())?;
        room(cx.options.unnamed_per_service, unnamed.count())
    }

    pub(super) fn on_greeting(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        message: Message,
        wanted: bool,
    ) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        let greeted = session.hello.is_some() || session.peer.is_some();
        match message {
            Message::Hello(hello) if !greeted => self.on_hello(cx, conn, hello, wanted),
            Message::DocumentWanted if !session.document_sent => {
                session.document_sent = true;
                let document = cx.me.document.clone();
                cx.send(conn, Message::Document { document });
            }
            Message::Document { document } if session.hello.is_some() => {
                self.on_document(cx, conn, &document);
            }
            Message::Welcome if !session.welcome => {
                session.welcome = true;
                self.up(cx, conn);
            }
            Message::Unwelcome(refusal) => self.on_unwelcome(cx, conn, refusal),
            _ => {
                let reason = CloseReason::Violation("out of turn before the welcome");
                self.close(cx, conn, reason);
            }
        }
    }

    fn on_hello(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, hello: Hello, wanted: bool) {
        let identified = self.identify(&cx.me, conn, &hello.agent);
        let leaving = cx.draining && !wanted;
        let checked = identified.and_then(|()| match leaving {
            true => Err(HelloRefusal::ShuttingDown),
            false => self.check_hello(cx, conn, &hello),
        });
        if let Err(refusal) = checked {
            return self.unwelcome(cx, conn, refusal);
        }
        let ranks = match cx.me.moves_bytes(hello.ranks.is_empty()) {
            true => cx.deployments.ranks(&hello.deployment),
            false => hello.ranks.iter().map(|rank| rank.0.saturating_add(1)).max().or(Some(0)),
        };
        if let Some(ranks) = ranks {
            self.accept(cx, conn, hello, ranks);
        } else if let Some(session) = self.sessions.get_mut(&conn) {
            session.hello = Some(hello);
            cx.send(conn, Message::DocumentWanted);
        }
    }

    /// Records which instance of its service the peer claims to be. The service must be the one in its certificate.
    fn identify(&mut self, me: &Identity, conn: ConnId, agent: &AgentId) -> Result<(), HelloRefusal> {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return Ok(());
        };
        if agent.service() != session.service.as_str() {
            return Err(HelloRefusal::Agent);
        }
        if *agent == me.agent {
            return Err(HelloRefusal::OwnName);
        }
        let found = agent.clone();
        match session.agent.get_or_insert_with(|| agent.clone()) {
            dialled if dialled != agent => Err(HelloRefusal::OtherInstance { found }),
            _ => Ok(()),
        }
    }

    fn check_hello(
        &self,
        cx: &Context<impl KnownDeployments>,
        conn: ConnId,
        hello: &Hello,
    ) -> Result<(), HelloRefusal> {
        if hello.versions.0 > VERSIONS.1 || hello.versions.1 < VERSIONS.0 {
            return Err(HelloRefusal::Version { ours: VERSIONS, theirs: hello.versions });
        }
        if hello.cluster != cx.me.cluster {
            return Err(HelloRefusal::Cluster { ours: cx.me.cluster.clone(), theirs: hello.cluster.clone() });
        }
        // Connections of an earlier life remain until the transport finds them dead. They are closed when this one is
        // welcome.
        let of_this_life = |(other, session): &(&ConnId, &Session)| {
            let life = session.peer.as_ref().map(|peer| peer.holder.incarnation);
            **other != conn
                && !session.dialled
                && session.agent.as_ref() == Some(&hello.agent)
                && life.is_none_or(|life| life == hello.incarnation)
        };
        let limit = cx.options.connections_per_agent;
        let session = self.sessions.get(&conn);
        let dialled = session.is_some_and(|session| session.dialled);
        if !dialled && self.sessions.iter().filter(of_this_life).count() >= limit {
            return Err(HelloRefusal::crowded(limit));
        }
        match self.life(&hello.agent) {
            Some(later) if later > hello.incarnation => Err(HelloRefusal::Superseded { later }),
            _ => Ok(()),
        }
    }

    fn on_document(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, document: &[u8]) {
        let session = self.sessions.get_mut(&conn);
        let Some(hello) = session.and_then(|session| session.hello.take()) else {
            return;
        };
        let found = DeploymentDigest::of(document);
        let refusal = if document.len() > MAX_DOCUMENT || found != hello.deployment {
            let why = "it is not the one that was announced".into();
            HelloRefusal::Document { why }
        } else {
            match cx.deployments.meet(found, document) {
                Ok(ranks) => return self.accept(cx, conn, hello, ranks),
                Err(difference) => HelloRefusal::Specs(difference),
            }
        };
        self.unwelcome(cx, conn, refusal);
    }

    fn accept(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, hello: Hello, ranks: u32) {
        let most = ranks.min(MAX_RANKS as u32);
        if let Some(&rank) = hello.ranks.iter().find(|rank| rank.0 >= most) {
            return self.unwelcome(cx, conn, HelloRefusal::Rank { rank, ranks });
        }
        let moves = cx.me.moves_bytes(hello.ranks.is_empty());
        if let Some(session) = self.sessions.get_mut(&conn) {
            if moves {
                cx.deployments.hold(&hello.deployment);
            }
            session.peer = Some(Peer {
                holder: Holder { deployment: hello.deployment, incarnation: hello.incarnation, ranks },
                ranks: hello.ranks.into_iter().collect(),
                codecs: hello.codecs,
            });
            cx.send(conn, Message::Welcome);
            self.up(cx, conn);
        }
    }

    fn unwelcome(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, refusal: HelloRefusal) {
        cx.send(conn, Message::Unwelcome(refusal.clone()));
        self.greeting_failed(cx, conn, &refusal);
        self.close(cx, conn, CloseReason::Refused(refusal));
    }

    fn on_unwelcome(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, refusal: HelloRefusal) {
        // The refusal is worded from the peer's point of view.
        let refusal = refusal.mirrored();
        if !self.waits_for_room(cx, conn, &refusal) {
            self.greeting_failed(cx, conn, &refusal);
        }
        self.close(cx, conn, CloseReason::Unwelcome(refusal));
    }

    /// Returns whether the dialled agent has too many connections at the moment, and will be dialled again.
    fn waits_for_room(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        conn: ConnId,
        refusal: &HelloRefusal,
    ) -> bool {
        let agent = self.agent(conn).filter(|_| refusal.is_transient()).cloned();
        let known = agent.and_then(|agent| self.agents.get_mut(&agent));
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return false;
        };
        dial.crowded.get_or_insert(cx.now);
        dial.has_patience(cx)
    }

    /// Reports that jobs which need this agent need not wait for it.
    fn greeting_failed(&self, cx: &mut Context<impl KnownDeployments>, conn: ConnId, refusal: &HelloRefusal) {
        if let Some(agent) = self.agent(conn)
            && self.connection(agent).is_none()
        {
            let (agent, refusal) = (agent.clone(), refusal.clone());
            cx.emit(Event::Unwelcome(agent, refusal));
        }
    }

    fn up(&mut self, cx: &mut Context<impl KnownDeployments>, conn: ConnId) {
        let session = self.sessions.get_mut(&conn);
        let Some(session) = session.filter(|session| session.is_up()) else {
            return;
        };
        session.up_since = Some(cx.now);
        let incarnation = session.peer.as_ref().map(|peer| peer.holder.incarnation);
        let Some((agent, incarnation)) = session.agent.clone().zip(incarnation) else {
            return;
        };
        let is_past = self.life(&agent).is_some_and(|past| past != incarnation);
        cx.timers.clear(&Timer::Hello(conn));
        cx.timers.clear(&Timer::Dial(agent.clone()));
        let known = self.agents.entry(agent.clone()).or_default();
        let past = match is_past {
            true => std::mem::take(&mut known.up),
            false => BTreeSet::new(),
        };
        known.up.insert(conn);
        if let Some(dial) = &mut known.dial {
            dial.asked = false;
            dial.hurried = false;
            dial.failures = 0;
            dial.given_up = false;
            dial.crowded = None;
        }
        for other in past {
            self.close(cx, other, CloseReason::Replaced);
        }
        cx.emit(Event::Up(agent, incarnation));
    }
}

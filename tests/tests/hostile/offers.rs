//! Rings that are offered for a transfer that is cancelled before the peer fetches them. The path stays usable, and the
//! next transfer takes it.

use std::time::Duration;

use tokio::time::sleep;
use transload_layout::Rank;
use transload_tests::cluster::{CLUSTER, Cache, Side, impatient, lease_of, open, transfer_of};
use transload_tests::words;
use transload_transfer::internal::handover::{Connection, Expected, Limits, Listener, connect};
use transload_transfer::internal::ring::random_token;
use transload_transfer::internal::slots::RingShape;
use transload_transfer::wire::Failure;
use transload_transfer::wire::internal::ring::{SocketName, Token};
use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::{Agent, Authority, ClusterName, Direction, Incarnation, Path, PathSet, Roles};

use crate::peer::{Hostile, ask};
use crate::source::{Source, Stream, Way, commit, halves};
use crate::town::{Destination, PATIENCE, Town, issue, owners_claims};

/// A time after which an offer has expired.
const LAPSED: Duration = Duration::from_secs(6);

async fn give_up(peer: &mut Hostile, ask: &Ask) {
    let (transfer, failure) = (ask.transfer, Failure::Cancelled);
    peer.say(Message::Abort { transfer, failure }).await;
}

/// A destination by hand, which pulls from an agent over a ring.
struct Guest<'a> {
    peer: Hostile,
    owner: &'a Agent,
    request: u64,
    asked: u8,
}

impl Guest<'_> {
    /// Asks; the agent must choose the ring.
    async fn pull(&mut self) -> Ask {
        self.asked += 1;
        let mut claims = owners_claims(self.owner, self.request);
        claims.time_left = PATIENCE;
        // No two transfers have the same.
        let number = 16 * self.request as u8 + self.asked;
        let mut ask = ask(number, &claims, &self.owner.ticket_key(), self.request);
        ask.paths = PathSet::ANY;
        ask.attempt = self.asked.into();
        self.peer.say(Message::Pull(ask.clone())).await;
        let accepted = |message: &Message| match message {
            Message::Accepted { path, .. } => Some(*path),
            _ => None,
        };
        assert_eq!(self.peer.wait_for(accepted).await, Some(Path::RING));
        ask
    }

    /// Returns the socket and the token with which the next pull's ring can be fetched.
    async fn offer(&mut self) -> (SocketName, Token) {
        let (socket, (first, second)) = self.peer.wait_for(words::offers_ring).await.expect("an offer");
        let token = std::array::from_fn(|i| [first.0, second.0][i / 16][i % 16]);
        (SocketName::try_from(socket).unwrap(), Token(token))
    }

    /// Fetches the ring, and receives everything that is pulled.
    async fn take(&mut self, ask: &Ask, (name, token): (SocketName, Token)) {
        let transfer = ask.transfer;
        let limits = Limits::default();
        let connection = connect(&name, &token, &limits).await.unwrap();
        let committed = |message: &Message| matches!(message, Message::Commit { .. }).then_some(());
        let ring = connection.accept_consumer().await;
        let _ring = ring.unwrap();
        // All of it has room in the ring.
        self.peer.wait_for(committed).await.expect("all was sent");
        self.peer.say(Message::Landed { transfer }).await;
    }

    /// Cancels a pull whose offer it does not fetch, and pulls again after a pause.
    async fn comes_again(&mut self, pause: Duration) {
        let ask = self.pull().await;
        let _unfetched = self.offer().await;
        give_up(&mut self.peer, &ask).await;
        sleep(pause).await;
        let ask = self.pull().await;
        let offer = self.offer().await;
        self.take(&ask, offer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_nobody_fetches_is_offered_again() {
    let authority = Authority::new(ClusterName::new(CLUSTER).unwrap()).unwrap();
    let cache = Cache::new(Side::Prefill);
    let mut options = impatient();
    // Longer than an offer stands.
    options.wire.stall = 4 * LAPSED;
    let identity = issue(&authority, "owner", Roles::all());
    let ranks = [Rank(0), Rank(1)];
    let owner = cache.agent(identity, ranks, Incarnation::new(1, 1), options);
    let mut leases = Vec::new();
    let mut guests = Vec::new();
    for (request, name) in [(6, "early"), (7, "late")] {
        let mut lease = lease_of(Side::Prefill, Rank(0), request);
        lease.ttl = 4 * LAPSED;
        lease.hard_bound = 4 * LAPSED;
        leases.push(open(&owner, Direction::Pull, lease).await);
        let identity = issue(&authority, name, Roles::all());
        guests.push(Guest {
            peer: Hostile::welcome(identity, &owner, Side::Decode).await,
            owner: &owner,
            request,
            asked: 0,
        });
    }
    let [early, late] = &mut guests[..] else { unreachable!("there are two") };
    // One waits when the first offer lapses, and one comes later.
    tokio::join!(early.comes_again(Duration::ZERO), late.comes_again(LAPSED));
    drop(guests);
    owner.shutdown(Duration::from_secs(1)).await;
}

/// A source by hand, which answers over a ring.
struct Host {
    listener: Listener,
}

impl Host {
    /// Agrees to a transfer over the ring.
    async fn accept(&self, peer: &mut Hostile, ask: &Ask) {
        let (transfer, path) = (ask.transfer, Path::RING);
        peer.say(Message::Accepted { transfer, path }).await;
    }

    /// Offers a ring and tells the peer where to fetch it.
    async fn offer(&self, peer: &mut Hostile) -> Expected {
        let token = random_token().unwrap();
        let expected = self.listener.expect(&token).unwrap();
        let (socket, token) = (self.listener.name().as_str(), halves(&token.0));
        peer.say(words::ring_offered(socket, token)).await;
        expected
    }

    /// Hands the ring over, and sends the whole transfer.
    async fn serve(&self, peer: &mut Hostile, ask: &Ask, guest: Connection) {
        let producer = guest.offer_producer(RingShape::DEFAULT).await.unwrap();
        let mut way = Way::Ring(producer);
        way.send(Stream::whole(ask)).await;
        commit(peer, ask).await;
        let landed = |message: &Message| matches!(message, Message::Landed { .. }).then_some(());
        peer.wait_for(landed).await.expect("it has landed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_for_a_pull_that_was_cancelled_serves_the_next() {
    let to = Destination::in_a(Town::new());
    for (request, stands) in [(6, true), (10, false)] {
        println!("stands: {stands}");
        let source = Source::new(&to.town, &request.to_string(), Roles::all());
        let host = Host { listener: Listener::bind(Limits::default()).unwrap() };
        let start = async || {
            let ticket = source.ticket(&to, Side::Prefill, request, Direction::Pull);
            let mut pull = transfer_of(Side::Decode, &[Rank(0)], ticket, request);
            pull.paths = PathSet::LOCAL;
            to.agent.start_pull(pull).await.unwrap()
        };
        let pull = start().await;
        let visit = Hostile::visited(&source.endpoints, Side::Prefill).await;
        let mut peer = visit.unwrap();
        let ask = peer.asked().await.unwrap();
        pull.cancel().await.unwrap();
        pull.finish().await.unwrap_err();
        // What was said before that was heard.
        host.accept(&mut peer, &ask).await;
        let offered = host.offer(&mut peer).await;

        let pull = start().await;
        let ask = peer.asked().await.unwrap();
        let expected = if stands {
            host.accept(&mut peer, &ask).await;
            offered
        } else {
            drop(offered);
            host.accept(&mut peer, &ask).await;
            host.offer(&mut peer).await
        };
        let guest = expected.connection(PATIENCE).await.unwrap();
        host.serve(&mut peer, &ask, guest).await;
        for route in &pull.finish().await.unwrap().routes {
            assert_eq!((route.path, route.attempts), (Path::RING, 1), "{route:?}");
        }
    }
    to.stays_well().await;
}

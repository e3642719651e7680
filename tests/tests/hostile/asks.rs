//! Asks that are not allowed: forged, replayed and misdirected tickets, other plans, other content.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Side, TOKENS, content_of, lease_of, mint, open, set_of};
use transload_transfer::plan::ids::{DeploymentDigest, PlanDigest, TransferId};
use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::wire::{Audience, Failure, Refusal};
use transload_transfer::{
    AgentId, Authority, Claims, ClusterName, Direction, Incarnation, Path, PathSet, Role, Role as RefusedRole, Roles,
    TicketKey,
};

use crate::peer::{Hostile, ask};
use crate::town::{Town, issue, owners_claims};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ask_that_is_not_allowed_is_refused_by_name() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let lease = open(owner, Direction::Pull, lease_of(Side::Prefill, Rank(0), 3)).await;
    let mut short = lease_of(Side::Prefill, Rank(0), 5);
    short.ttl = Duration::from_millis(1);
    let expired = open(owner, Direction::Pull, short).await;
    let cancelled = open(owner, Direction::Pull, lease_of(Side::Prefill, Rank(0), 7)).await;
    cancelled.cancel().await.unwrap();
    expired.ended().await.unwrap();
    cancelled.ended().await.unwrap();

    let good = owners_claims(owner, 3);
    let with = |change: &dyn Fn(&mut Claims)| {
        let mut claims = good.clone();
        change(&mut claims);
        ask(1, &claims, &key, 3)
    };
    let but = |change: &dyn Fn(&mut Ask)| {
        let mut ask = ask(1, &good, &key, 3);
        change(&mut ask);
        ask
    };
    let other = Authority::new(ClusterName::new("other").unwrap()).unwrap();
    let other = issue(&other, "hostile", Roles::all());
    let forged = TicketKey::new(other.ticket_secret().as_bytes());

    type Matches = fn(&Refusal) -> bool;
    let cases: Vec<(&str, Ask, Matches)> = vec![
        ("forged", but(&|ask| ask.ticket = mint(&forged, &good)), |r| *r == Refusal::Forged),
        ("of another cluster", with(&|claims| claims.cluster = ClusterName::new("other").unwrap()), |r| {
            matches!(r, Refusal::WrongCluster { .. })
        }),
        ("of another deployment", with(&|claims| claims.owner = DeploymentDigest([1; 32])), |r| {
            matches!(r, Refusal::WrongDeployment { .. })
        }),
        ("of another life", with(&|claims| claims.incarnation = Incarnation::new(0, 9)), |r| {
            matches!(r, Refusal::WrongIncarnation { .. })
        }),
        (
            "of another agent",
            with(&|claims| claims.audience = Some(Audience::Agent(AgentId::new("ordinary").unwrap()))),
            |r| *r == Refusal::WrongPeer,
        ),
        ("of the other direction", with(&|claims| claims.direction = Direction::Push), |r| {
            matches!(r, Refusal::WrongDirection { .. })
        }),
        ("expired", with(&|claims| claims.set = set_of(5)), |r| *r == Refusal::Expired),
        ("cancelled", with(&|claims| claims.set = set_of(7)), |r| *r == Refusal::Cancelled),
        ("of no lease", with(&|claims| claims.set = set_of(9)), |r| *r == Refusal::UnknownLease),
        ("other plan", but(&|ask| ask.plan = PlanDigest([7; 32])), |r| matches!(r, Refusal::PlanDigestMismatch { .. })),
        ("other content", but(&|ask| ask.content = content_of(4)), |r| *r == Refusal::DigestMismatch),
        ("too many tokens", but(&|ask| ask.request.tokens = TOKENS + 1), |r| {
            matches!(r, Refusal::NotEnoughTokens { .. })
        }),
        ("tokens that run over", but(&|ask| (ask.request.start, ask.request.tokens) = (u64::MAX, u64::MAX)), |r| {
            matches!(r, Refusal::NotEnoughTokens { .. })
        }),
        ("a rank that is not here", but(&|ask| ask.source = Rank(9)), |r| matches!(r, Refusal::RankNotHere { .. })),
        ("a rank that is nobody's", but(&|ask| ask.destination = Rank(4)), |r| {
            matches!(r, Refusal::RankNotYours { .. })
        }),
        ("no route", but(&|ask| ask.destination = Rank(3)), |r| matches!(r, Refusal::NoRoute { .. })),
        ("a path that is none", but(&|ask| ask.paths = PathSet::default()), |r| {
            matches!(r, Refusal::PathUnavailable { .. })
        }),
    ];
    for (number, (what, mut ask, matches)) in (1..).zip(cases) {
        ask.transfer = TransferId([number; 16]);
        let refusal = hostile.refused(Direction::Pull, ask).await;
        assert!(matches(&refusal), "{what}: {refusal}");
    }

    drop(hostile);
    let roles = Roles::from_iter([Role::Push, Role::Serve]);
    let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
    let refusal = hostile.refused(Direction::Pull, but(&|_| ())).await;
    assert_eq!(refusal, Refusal::RoleMissing { role: RefusedRole::Pull });
    drop(hostile);
    let roles = Roles::from_iter([Role::Pull]);
    let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
    let push = with(&|claims| claims.direction = Direction::Push);
    let refusal = hostile.refused(Direction::Push, push).await;
    assert_eq!(refusal, Refusal::RoleMissing { role: RefusedRole::Push });

    // And that the same ask is good where nothing is wrong with it; once.
    drop(hostile);
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    hostile.say(Message::Pull(but(&|_| ()))).await;
    assert!(matches!(hostile.hear().await, Some(Message::Accepted { path: Path::QUIC, .. })));
    let refusal = hostile.refused(Direction::Pull, but(&|ask| ask.transfer = TransferId([99; 16]))).await;
    assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
    drop(hostile);
    lease.ended().await.unwrap();
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_the_transfers_of_others() {
    let town = Town::new();
    let owner = &town.owner;
    let request = 6;
    let lease = open(owner, Direction::Pull, lease_of(Side::Prefill, Rank(0), request)).await;
    let identity = issue(&town.authority, "honest", Roles::all());
    let mut honest = Hostile::welcome(identity, owner, Side::Decode).await;
    let claims = owners_claims(owner, request);
    let good = ask(1, &claims, &owner.ticket_key(), request);
    honest.say(Message::Pull(good.clone())).await;
    let accepted = |message: &Message| matches!(message, Message::Accepted { .. }).then_some(());
    honest.wait_for(accepted).await.unwrap();

    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let transfer = good.transfer;
    for message in [
        Message::Landed { transfer },
        Message::Commit { transfer, streams: 1, bytes: 1 },
        Message::Abort { transfer, failure: Failure::Cancelled },
    ] {
        hostile.say(message).await;
    }
    // All of it was heard by now.
    let mut other = ask(2, &claims, &owner.ticket_key(), request);
    other.transfer = TransferId([9; 16]);
    let refusal = hostile.refused(Direction::Pull, other).await;
    assert!(matches!(refusal, Refusal::RankNotYours { .. }), "{refusal}");
    // It goes on: the same pair of ranks is taken.
    let mut again = good.clone();
    again.transfer = TransferId([8; 16]);
    let refusal = honest.refused(Direction::Pull, again).await;
    assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
    drop((honest, hostile));
    lease.ended().await.unwrap();
    town.stays_well().await;
}

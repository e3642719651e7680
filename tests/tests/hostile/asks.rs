//! Asks that are not allowed: one of each kind. The tests of `wire` have all refusals.

use transload_layout::Rank;
use transload_tests::cluster::{Side, lease_of, mint, open};
use transload_transfer::plan::ids::{PlanDigest, TransferId};
use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::wire::{Failure, Refusal};
use transload_transfer::{Direction, Path, PathSet, Role, Roles, TicketKey};

use crate::peer::{Hostile, ask};
use crate::town::{Town, issue, owners_claims};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ask_that_is_not_allowed_is_refused_by_name() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let lease = open(owner, Direction::Pull, lease_of(Side::Prefill, Rank(0), 3)).await;
    let good = owners_claims(owner, 3);
    let but = |change: &dyn Fn(&mut Ask)| {
        let mut ask = ask(1, &good, &key, 3);
        change(&mut ask);
        ask
    };
    let forged = TicketKey::new(&[4; 32]);

    type Matches = fn(&Refusal) -> bool;
    let cases: Vec<(&str, Ask, Matches)> = vec![
        ("forged", but(&|ask| ask.ticket = mint(&forged, &good)), |r| *r == Refusal::Forged),
        ("other plan", but(&|ask| ask.plan = PlanDigest([7; 32])), |r| matches!(r, Refusal::PlanDigestMismatch { .. })),
        ("tokens that run over", but(&|ask| (ask.request.start, ask.request.tokens) = (u64::MAX, u64::MAX)), |r| {
            matches!(r, Refusal::NotEnoughTokens { .. })
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
    assert_eq!(refusal, Refusal::RoleMissing { role: Role::Pull });

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

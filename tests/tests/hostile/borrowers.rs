//! Peers that take what is lent, or what is not lent to them.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Side, impatient, lease_of, open, transfer_of};
use transload_transfer::identity::{Role, Roles};
use transload_transfer::ids::{Direction, Incarnation, TransferId};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::wire::message::{Ask, LaneMessage, Message};
use transload_transfer::wire::{Failure, Path, PathSet, Refusal};

use crate::loans::{noise, say_blocks};
use crate::peer::{Hostile, ask};
use crate::source::{Source, failure, is_broken_by};
use crate::town::{Destination, Town, issue, owners_claims};

/// All roles but that to map memory.
fn without_map() -> Roles {
    let all = Roles::all();
    all.iter().filter(|role| *role != Role::Map).collect()
}

fn shared(number: u8, town: &Town, request: u64) -> Ask {
    let claims = owners_claims(&town.owner, request);
    let mut ask = ask(number, &claims, &town.owner.ticket_key(), request);
    ask.paths = PathSet::from_iter([Path::Shared]);
    ask
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_map_is_lent_nothing() {
    let town = Town::of_lenders();
    let request = 6;
    let lease = lease_of(Side::Prefill, Rank(0), request);
    let lease = open(&town.owner, Direction::Pull, lease).await;
    let identity = town.hostile(without_map());
    let mut hostile = Hostile::welcome(identity, &town.owner, Side::Decode).await;
    let refusal = hostile
        .refused(Direction::Pull, shared(1, &town, request))
        .await;
    let wanted = PathSet::from_iter([Path::Shared]);
    let offered = PathSet::from_iter([Path::Quic, Path::Ring]);
    assert_eq!(refusal, Refusal::PathUnavailable { wanted, offered });

    // Whoever may take any path is not given that one.
    let mut any = shared(2, &town, request);
    any.paths = PathSet::ANY;
    hostile.say(Message::Pull(any)).await;
    let path = hostile.wait_for(accepted).await;
    assert_eq!(path, Some(Path::Ring));
    drop(hostile);
    assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::PeerLost);
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_an_opening_does_not_choose_to_be_lent_memory() {
    // Only for its key and its canaries.
    let to = Destination::in_a(Town::of_lenders());
    let request = 6;
    let identity = issue(&to.town.authority, "prefill-1", Roles::all());
    let ranks = [Rank(0), Rank(1)];
    let life = Incarnation::new(3, 3);
    let pusher = to
        .town
        .owner_cache
        .agent(identity, ranks, life, impatient());
    let source = Source::new(&to.town, "owner", without_map());
    let ticket = source.ticket(&to, Side::Decode, request, Direction::Push);
    let push = transfer_of(Side::Prefill, &ranks, ticket, request);
    let mut lent = Vec::new();
    let serving = source.serve(Side::Decode, async |hostile, ask| {
        let (transfer, path) = (ask.transfer, Path::Shared);
        hostile.say(Message::Accepted { transfer, path }).await;
        // Up to where it is given up, which ends this.
        let heard = hostile
            .wait_for(|message| match message {
                Message::Lanes(message @ LaneMessage::Memory { .. }) => Some(message.clone()),
                Message::Lanes(message @ LaneMessage::Blocks { .. }) => Some(message.clone()),
                _ => None,
            })
            .await;
        lent.extend(heard);
    });
    let ended = tokio::select! {
        ended = pusher.push(push) => ended,
        () = serving => unreachable!("it listens on"),
    };
    let failure = failure(ended);
    assert!(is_broken_by(&failure, "not lent to this peer"), "{failure}");
    assert_eq!(lent, [], "nothing was offered");
    pusher.shutdown(Duration::from_secs(1)).await;
    to.stays_well().await;
}

fn accepted(message: &Message) -> Option<Path> {
    match message {
        Message::Accepted { path, .. } => Some(*path),
        _ => None,
    }
}

fn committed(message: &Message) -> Option<()> {
    matches!(message, Message::Commit { .. }).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_the_transfers_of_others() {
    let town = Town::of_lenders();
    let owner = &town.owner;
    let request = 6;
    let lease = lease_of(Side::Prefill, Rank(0), request);
    let lease = open(owner, Direction::Pull, lease).await;
    let identity = issue(&town.authority, "borrower", Roles::all());
    let mut borrower = Hostile::welcome(identity, owner, Side::Decode).await;
    let ask = shared(1, &town, request);
    borrower.say(Message::Pull(ask.clone())).await;
    assert_eq!(borrower.wait_for(accepted).await, Some(Path::Shared));
    let offered = |message: &Message| {
        matches!(message, Message::Lanes(LaneMessage::Memory { .. })).then_some(())
    };
    borrower.wait_for(offered).await.unwrap();

    let identity = town.hostile(Roles::all());
    let mut hostile = Hostile::welcome(identity, owner, Side::Decode).await;
    let transfer = ask.transfer;
    for _ in 0..20 {
        noise(&mut hostile, transfer).await;
        // The borrower itself is alive, however long this takes.
        let copying = LaneMessage::Copying { transfer };
        borrower.say(Message::Lanes(copying)).await;
    }
    say_blocks(&mut hostile, transfer, 0, 0, vec![1; 8192]).await;
    for message in [
        Message::Taken { transfer },
        Message::Landed { transfer },
        Message::Commit {
            transfer,
            streams: 1,
            bytes: 1,
        },
        Message::Abort {
            transfer,
            failure: Failure::Cancelled,
        },
    ] {
        hostile.say(message).await;
    }
    // All of it was heard by now.
    let mut other = shared(2, &town, request);
    other.transfer = TransferId([9; 16]);
    other.destination = Rank(3);
    let refusal = hostile.refused(Direction::Pull, other).await;
    assert!(
        matches!(refusal, Refusal::WrongPeer | Refusal::NoRoute { .. }),
        "{refusal}"
    );
    assert!(borrower.hears_nothing().await, "it was not committed");

    borrower.say(Message::Taken { transfer }).await;
    borrower.wait_for(committed).await.unwrap();
    drop((borrower, hostile));
    assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::PeerLost);
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_copies_for_ever_meets_the_hard_bound() {
    let town = Town::of_lenders();
    let request = 6;
    let mut lease = lease_of(Side::Prefill, Rank(0), request);
    lease.ttl = Duration::from_millis(500);
    lease.hard_bound = Duration::from_secs(3);
    let lease = open(&town.owner, Direction::Pull, lease).await;
    let identity = town.hostile(Roles::all());
    let mut hostile = Hostile::welcome(identity, &town.owner, Side::Decode).await;
    let ask = shared(1, &town, request);
    let transfer = ask.transfer;
    hostile.say(Message::Pull(ask)).await;
    assert_eq!(hostile.wait_for(accepted).await, Some(Path::Shared));
    let mut ended = Box::pin(lease.ended());
    let end = loop {
        let copying = LaneMessage::Copying { transfer };
        hostile.say(Message::Lanes(copying)).await;
        let while_ = Duration::from_millis(50);
        if let Ok(ended) = tokio::time::timeout(while_, &mut ended).await {
            break ended.unwrap().end;
        }
    };
    assert_eq!(end, LeaseEnd::Expired);
    // Too late: what was copied is not committed.
    hostile.say(Message::Taken { transfer }).await;
    let failure = loop {
        match hostile.hear().await.expect("it is told") {
            Message::Abort { failure, .. } => break failure,
            Message::Commit { .. } => panic!("committed after the lease"),
            _ => {}
        }
    };
    assert_eq!(
        failure,
        Failure::LeaseEnded {
            end: LeaseEnd::Expired
        }
    );
    assert!(hostile.hears_nothing().await);
    drop(hostile);
    town.stays_well().await;
}

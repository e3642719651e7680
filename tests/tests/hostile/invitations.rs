//! Invitations that are not allowed, and holders that invite and then accept nothing.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Side, claims_of, content_of, lease_of, mint, open};
use transload_transfer::wire::Refusal;
use transload_transfer::wire::message::{Invitation, Message};
use transload_transfer::{
    Claims, Direction, Incarnation, Lease, LeaseEnd, Path, PathSet, RankAddress, Role, Roles, TicketKey,
};

use crate::peer::Hostile;
use crate::town::{Town, owners_claims};

/// A time that is longer than all tests, so that no lease ends by itself.
const LONG: Duration = Duration::from_secs(8);

/// Returns the claims of the hostile peer, which has no memory at all.
fn opened(hostile: &Hostile, request: u64) -> Claims {
    let (hello, _) = hostile.hello(Side::Decode);
    let address = RankAddress { agent: hello.agent, host: "127.0.0.1".to_owned(), port: 1 };
    let ranks = vec![address; hello.ranks.len()];
    let (owner, life) = (hello.deployment, hello.incarnation);
    claims_of(100 + request, Direction::Push, owner, life, ranks)
}

fn invitation(key: &TicketKey, leased: &Claims, into: &Claims, request: u64) -> Invitation {
    Invitation {
        id: request,
        ticket: mint(key, leased),
        into: mint(key, into),
        content: content_of(request),
        lanes: 1,
        by_layer: false,
        paths: PathSet::QUIC,
    }
}

/// Sends an invitation, and returns the answer.
async fn invite(hostile: &mut Hostile, invitation: Invitation) -> Result<(), Refusal> {
    let asked = invitation.id;
    hostile.say(Message::Invite(invitation)).await;
    let answer = |message: &Message| match message {
        Message::Invited { id, outcome } if *id == asked => Some(outcome.clone()),
        _ => None,
    };
    hostile.wait_for(answer).await.expect("an answer")
}

/// Returns leases of a request on both ranks of the owner.
async fn leases(town: &Town, request: u64, ttl: Duration) -> [Lease; 2] {
    let on = |rank| {
        let mut lease = lease_of(Side::Prefill, rank, request);
        lease.ttl = ttl;
        open(&town.owner, Direction::Pull, lease)
    };
    [on(Rank(0)).await, on(Rank(1)).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_invitation_that_is_not_allowed_is_refused_by_name() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let good = leases(&town, 3, LONG).await;

    let (leased, into) = (owners_claims(owner, 3), opened(&hostile, 3));
    let to = |change: &dyn Fn(&mut Claims)| {
        let mut into = into.clone();
        change(&mut into);
        invitation(&key, &leased, &into, 3)
    };
    let but = |change: &dyn Fn(&mut Invitation)| {
        let mut invitation = invitation(&key, &leased, &into, 3);
        change(&mut invitation);
        invitation
    };
    let forged = TicketKey::new(&[4; 32]);

    type Matches = fn(&Refusal) -> bool;
    let cases: Vec<(&str, Invitation, Matches)> = vec![
        ("into what is forged", but(&|invitation| invitation.into = mint(&forged, &into)), |r| *r == Refusal::Forged),
        ("into blocks of another life", to(&|claims| claims.incarnation = Incarnation::new(2, 2)), |r| {
            *r == Refusal::NotYourBlocks
        }),
        ("more than there could be", to(&|claims| claims.valid_tokens = u64::MAX), |r| {
            matches!(r, Refusal::NotEnoughTokens { .. })
        }),
    ];
    for (id, (what, mut invitation, matches)) in (1..).zip(cases) {
        invitation.id = id;
        let refusal = invite(&mut hostile, invitation).await.unwrap_err();
        assert!(matches(&refusal), "{what}: {refusal}");
    }
    drop(hostile);
    // To be pushed to takes the roles of one that reads, and of one whose blocks others write.
    let roles = Roles::from_iter([Role::Pull]);
    let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
    let refusal = invite(&mut hostile, but(&|_| ())).await.unwrap_err();
    assert_eq!(refusal, Refusal::RoleMissing { role: Role::Serve });
    drop(hostile);
    // And the same is good where nothing is wrong with it.
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    invite(&mut hostile, but(&|_| ())).await.unwrap();
    assert_eq!(hostile.asked().await.unwrap().ticket, mint(&key, &into));
    drop(hostile);
    for lease in good {
        assert_ne!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_invites_and_lets_nothing_in_keeps_no_blocks() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    for (request, hangs_up) in [(3, true), (4, false)] {
        let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
        let leased = leases(&town, request, Duration::from_secs(1)).await;
        let (from, into) = (owners_claims(owner, request), opened(&hostile, request));
        let invitation = invitation(&key, &from, &into, request);
        invite(&mut hostile, invitation).await.unwrap();
        let transfer = hostile.asked().await.unwrap().transfer;
        match hangs_up {
            true => drop(hostile),
            // And then reads nothing.
            false => {
                let path = Path::QUIC;
                hostile.say(Message::Accepted { transfer, path }).await;
            }
        }
        for lease in leased {
            let end = lease.ended().await.unwrap().end;
            assert_ne!(end, LeaseEnd::Completed, "{hangs_up}");
        }
    }
    town.stays_well().await;
}

//! Invitations that are not allowed, and holders that invite and then let nothing in.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Side, TOKENS, claims_of, content_of, lease_of, mint, open, set_of};
use transload_transfer::plan::ids::DeploymentDigest;
use transload_transfer::wire::message::{Invitation, Message};
use transload_transfer::wire::{Audience, Refusal};
use transload_transfer::{
    AgentId, Authority, Claims, ClusterName, Direction, Incarnation, Lease, LeaseEnd, Path, PathSet, RankAddress, Role,
    Role as RefusedRole, Roles, TicketKey,
};

use crate::peer::Hostile;
use crate::town::{Town, issue, owners_claims};

/// No lease ends within it by itself.
const LONG: Duration = Duration::from_secs(8);

/// What the hostile one says that it has opened: it has no memory at all.
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

/// Invites, and hears the answer.
async fn invite(hostile: &mut Hostile, invitation: Invitation) -> Result<(), Refusal> {
    let asked = invitation.id;
    hostile.say(Message::Invite(invitation)).await;
    let answer = |message: &Message| match message {
        Message::Invited { id, outcome } if *id == asked => Some(outcome.clone()),
        _ => None,
    };
    hostile.wait_for(answer).await.expect("an answer")
}

/// Leases of a request on both ranks of the owner.
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
    let cancelled = leases(&town, 7, LONG).await;
    for lease in cancelled {
        lease.cancel().await.unwrap();
        lease.ended().await.unwrap();
    }

    let (leased, into) = (owners_claims(owner, 3), opened(&hostile, 3));
    let out_of = |change: &dyn Fn(&mut Claims)| {
        let mut leased = leased.clone();
        change(&mut leased);
        invitation(&key, &leased, &into, 3)
    };
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
    let cluster = || ClusterName::new("other").unwrap();
    let other = issue(&Authority::new(cluster()).unwrap(), "hostile", Roles::all());
    let forged = TicketKey::new(other.ticket_secret().as_bytes());
    let ordinary = || AgentId::new("ordinary").unwrap();

    type Matches = fn(&Refusal) -> bool;
    let cases: Vec<(&str, Invitation, Matches)> = vec![
        ("a forged ticket", but(&|invitation| invitation.ticket = mint(&forged, &leased)), |r| *r == Refusal::Forged),
        ("the ticket of a push", out_of(&|claims| claims.direction = Direction::Push), |r| {
            matches!(r, Refusal::WrongDirection { .. })
        }),
        ("the ticket of another", out_of(&|claims| claims.audience = Some(Audience::Agent(ordinary()))), |r| {
            *r == Refusal::WrongPeer
        }),
        ("cancelled", out_of(&|claims| claims.set = set_of(7)), |r| *r == Refusal::Cancelled),
        ("of no lease", out_of(&|claims| claims.set = set_of(9)), |r| *r == Refusal::UnknownLease),
        ("other content", but(&|invitation| invitation.content = content_of(4)), |r| {
            matches!(r, Refusal::DigestMismatch)
        }),
        ("into what is forged", but(&|invitation| invitation.into = mint(&forged, &into)), |r| *r == Refusal::Forged),
        ("into another cluster", to(&|claims| claims.cluster = cluster()), |r| {
            matches!(r, Refusal::WrongCluster { .. })
        }),
        ("into a lease", to(&|claims| claims.direction = Direction::Pull), |r| {
            matches!(r, Refusal::WrongDirection { .. })
        }),
        ("into what another may push into", to(&|claims| claims.audience = Some(Audience::Agent(ordinary()))), |r| {
            *r == Refusal::WrongPeer
        }),
        ("into blocks of the owner's own", to(&|claims| claims.owner = leased.owner), |r| *r == Refusal::NotYourBlocks),
        ("into blocks of a deployment that is none", to(&|claims| claims.owner = DeploymentDigest([1; 32])), |r| {
            *r == Refusal::NotYourBlocks
        }),
        ("into blocks of another life", to(&|claims| claims.incarnation = Incarnation::new(2, 2)), |r| {
            *r == Refusal::NotYourBlocks
        }),
        (
            "into blocks of the ordinary peer",
            to(&|claims| {
                for address in &mut claims.ranks {
                    address.agent = ordinary();
                }
            }),
            |r| *r == Refusal::NotYourBlocks,
        ),
        ("more than is there", to(&|claims| claims.valid_tokens = TOKENS + 1), |r| {
            matches!(r, Refusal::NotEnoughTokens { .. })
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
    for (has, role) in [(Role::Serve, RefusedRole::Pull), (Role::Pull, RefusedRole::Serve)] {
        let roles = Roles::from_iter([has]);
        let mut hostile = Hostile::welcome(town.hostile(roles), owner, Side::Decode).await;
        let refusal = invite(&mut hostile, but(&|_| ())).await.unwrap_err();
        assert_eq!(refusal, Refusal::RoleMissing { role });
    }
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

/// What it does about the pushes that it has asked for.
#[derive(Clone, Copy, Debug)]
enum Welcome {
    Silent,
    Refuses,
    ReadsNothing,
    HangsUp,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_invites_and_lets_nothing_in_keeps_no_blocks() {
    use Welcome::{HangsUp, ReadsNothing, Refuses, Silent};

    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    for (request, welcome) in (3..).zip([Silent, Refuses, ReadsNothing, HangsUp]) {
        let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
        let leased = leases(&town, request, Duration::from_secs(1)).await;
        let (from, into) = (owners_claims(owner, request), opened(&hostile, request));
        let invitation = invitation(&key, &from, &into, request);
        invite(&mut hostile, invitation).await.unwrap();
        let transfer = hostile.asked().await.unwrap().transfer;
        match welcome {
            Silent => {}
            Refuses => {
                let refusal = Refusal::UnknownLease;
                hostile.say(Message::Refused { transfer, refusal }).await;
            }
            ReadsNothing => {
                let path = Path::QUIC;
                hostile.say(Message::Accepted { transfer, path }).await;
            }
            HangsUp => drop(hostile),
        }
        for lease in leased {
            let end = lease.ended().await.unwrap().end;
            assert_ne!(end, LeaseEnd::Completed, "{welcome:?}");
        }
    }
    town.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invitations_without_a_lease_wait_up_to_a_bound() {
    let town = Town::new();
    let owner = &town.owner;
    let key = owner.ticket_key();
    let mut hostile = Hostile::welcome(town.hostile(Roles::all()), owner, Side::Decode).await;
    let (mut leased, into) = (owners_claims(owner, 3), opened(&hostile, 3));
    let mut most = 0;
    for number in 0..3000 {
        leased.set = set_of(1000 + number);
        let mut invitation = invitation(&key, &leased, &into, 3);
        invitation.id = number;
        hostile.say(Message::Invite(invitation)).await;
        if number % 100 == 0 {
            most = most.max(owner.gauges().await.unwrap().early);
        }
    }
    assert!((1..=1024).contains(&most), "{most} waited");
    drop(hostile);
    town.stays_well().await;
}

//! The owner of a lease that is invited to push.

use super::*;

pub(super) fn into(n: u8) -> Claims {
    let address = RankAddress { agent: agent("holder"), host: "holder.example".into(), port: 7600 };
    Claims { owner: HOLDER.digest(), ranks: vec![address.clone(), address], ..claims(n, Direction::Push) }
}

pub(super) fn invitation(n: u8) -> Invitation {
    Invitation {
        id: 5,
        ticket: ticket(n),
        into: mint(&into(100 + n)),
        content: CONTENT,
        lanes: 1,
        by_layer: false,
        paths: PathSet::ANY,
    }
}

fn invite(t: &mut Table, invitation: Invitation) -> Option<Result<(), Refusal>> {
    t.said.clear();
    let id = invitation.id;
    t.hear(Message::Invite(invitation));
    answer(t, id)
}

fn answer(t: &Table, id: u64) -> Option<Result<(), Refusal>> {
    let answers = t.said.iter().filter_map(|message| match message {
        Message::Invited { id: of, outcome } if *of == id => Some(outcome.clone()),
        _ => None,
    });
    let answers: Vec<_> = answers.collect();
    assert!(answers.len() <= 1, "{answers:?}");
    answers.into_iter().next()
}

fn refused(t: &mut Table, invitation: Invitation) -> Refusal {
    invite(t, invitation).expect("an answer").unwrap_err()
}

fn pushes(t: &Table) -> Vec<Ask> {
    let said = t.said.iter().filter_map(|message| match message {
        Message::Push(ask) => Some(ask.clone()),
        _ => None,
    });
    said.collect()
}

fn read(t: &mut Table, ask: &Ask, path: Path) {
    let transfer = ask.transfer;
    t.hear(Message::Accepted { transfer, path });
    let bytes = t.took().into_iter().find_map(|action| match action {
        Action::Read(flow) if flow.transfer == transfer => {
            let (key, rank) = (spec(1, 0, Direction::Pull, true).key.set, flow.rank);
            assert_eq!(flow.blocks, BlocksOf::Lease(LeaseKey { set: key, rank }));
            let blocks = flow.blocks;
            assert_eq!(t.machine.blocks(blocks), Some(&"blocks"));
            Some(flow.bytes)
        }
        _ => None,
    });
    let bytes = bytes.expect("it is read");
    t.do_(|machine, now, _| machine.stream_sent(now, transfer, bytes));
}

fn invited() -> (Table, Vec<Ask>) {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.lease(1, 1, Direction::Pull, true);
    assert_eq!(invite(&mut t, invitation(1)), Some(Ok(())));
    let asks = pushes(&t);
    assert!(!asks.is_empty());
    (t, asks)
}

#[test]
fn pushes_and_its_leases_complete() {
    let (mut t, asks) = invited();
    assert!(asks.iter().all(|ask| ask.ticket == invitation(1).into && ask.content == CONTENT));
    for ask in &asks {
        read(&mut t, ask, Path::QUIC);
        assert!(t.ended().is_empty(), "what is committed has not landed");
    }
    for ask in &asks {
        let transfer = ask.transfer;
        t.hear(Message::Landed { transfer });
    }
    assert_eq!(t.ended(), [LeaseEnd::Completed; 2]);
    let done = t.said.iter().filter(|message| {
        matches!(message, Message::Notice(Notice { ticket, says: NoticeKind::Done { .. }, .. })
            if *ticket == invitation(1).into)
    });
    assert_eq!(done.count(), 2, "one for each rank");
    // Another rank of the holder sends its invitation late.
    t.said.clear();
    assert_eq!(invite(&mut t, invitation(1)), Some(Ok(())));
    assert!(pushes(&t).is_empty());
    let elsewhere = Invitation { into: mint(&into(9)), ..invitation(1) };
    assert_eq!(refused(&mut t, elsewhere), Refusal::Consumed);
}

#[test]
fn hears_the_same_from_each_rank_and_pushes_once() {
    let (mut t, _) = invited();
    let again = Invitation { id: 6, ..invitation(1) };
    assert_eq!(invite(&mut t, again), Some(Ok(())));
    assert!(pushes(&t).is_empty());
    let elsewhere = Invitation { into: mint(&into(9)), ..invitation(1) };
    assert_eq!(refused(&mut t, elsewhere), Refusal::Consumed);
    assert_eq!(t.refusal(Message::Pull(ask(1, 1))), Refusal::Consumed);
}

#[test]
fn pushes_on_while_it_drains_and_begins_nothing() {
    let (mut t, _) = invited();
    t.lease(2, 0, Direction::Pull, true);
    t.do_(|machine, now, _| machine.drain(now));
    let late = Invitation { id: 6, ..invitation(1) };
    assert_eq!(invite(&mut t, late), Some(Ok(())));
    assert_eq!(refused(&mut t, invitation(2)), Refusal::ShuttingDown);
    assert_eq!(refused(&mut t, invitation(3)), Refusal::ShuttingDown);
    assert_eq!(t.machine.gauges().jobs, 2);
}

#[test]
fn does_not_push_what_is_being_pulled() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    assert_eq!(refused(&mut t, invitation(1)), Refusal::Consumed);
}

/// The inviter makes the ticket of the write leases itself, so nothing in it about other agents is proven.
#[test]
fn leaves_others_alone_whatever_an_inviter_says_of_them() {
    let mut t = Table::owner();
    let victim = t.conn;
    t.lease(1, 0, Direction::Pull, true);
    t.lease(1, 1, Direction::Pull, true);
    t.lease(2, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(2, 1)));
    t.wait(secs(1));
    let hostile = Hello { incarnation: life(9), ..hello("near") };
    t.greet("near", Roles::all(), hostile);
    t.took();
    let address = |name, host: &str| RankAddress { agent: agent(name), host: host.into(), port: 7600 };
    let chosen = Claims {
        incarnation: life(9),
        ranks: vec![address("near", "near.example"), address("holder", "elsewhere.example")],
        ..into(3)
    };
    let hostile = Invitation { into: mint(&chosen), ..invitation(1) };
    invite(&mut t, hostile);
    assert!(!t.did.iter().any(|did| matches!(did, Action::Close { .. } | Action::Connect { .. })), "{:?}", t.did);
    assert_eq!(t.machine.peers.connection(&agent("holder")), Some(victim));
    let pulled = t.machine.flows.get(ask(2, 1).transfer).unwrap();
    assert!(!pulled.is_fencing());
    // Lost agents are not dialled for it either.
    t.do_(|machine, now, _| machine.disconnected(now, victim));
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    t.wait(secs(60));
    let dialled = |did: &Action<_>| matches!(did, Action::Connect { .. });
    assert!(!t.did.iter().any(dialled), "{:?}", t.did);
    assert_eq!(t.machine.gauges().agents, 0);
}

/// The inviter connects, and does so again.
#[test]
fn waits_a_while_for_a_holder_that_is_away() {
    for back in [true, false] {
        let (mut t, asks) = invited();
        t.do_(|machine, now, conn| machine.disconnected(now, conn));
        t.said.clear();
        t.wait(secs(9));
        assert_eq!(t.machine.gauges().jobs, 2);
        if back {
            t.greet("holder", Roles::all(), hello("holder"));
            t.wait(secs(9));
            assert_eq!(pushes(&t).len(), asks.len());
            assert_eq!(t.machine.gauges().jobs, 2);
            continue;
        }
        t.wait(secs(1));
        let agent = agent("holder");
        let over = |did: &Action<_>| match did {
            Action::Pushed(_, result) => {
                assert!(matches!(result, Err(JobError::Unreachable { agent: away, .. }) if *away == agent));
                true
            }
            Action::Connect { .. } => panic!("{did:?}"),
            _ => false,
        };
        assert_eq!(t.took().iter().filter(|did| over(did)).count(), 2);
    }
}

#[test]
fn waits_for_a_lease_that_is_not_there_yet() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    assert_eq!(invite(&mut t, invitation(1)), None, "rank 1 is late");
    let early = pushes(&t).len();
    assert!(early > 0, "rank 0 need not wait for it");
    t.lease(1, 1, Direction::Pull, true);
    assert_eq!(answer(&t, 5), Some(Ok(())));
    assert!(pushes(&t).len() > early);

    assert_eq!(invite(&mut t, invitation(2)), None);
    t.wait(secs(11));
    assert_eq!(answer(&t, 5), Some(Err(Refusal::UnknownLease)));
}

#[test]
fn forgets_what_has_waited_on_a_connection_that_is_lost() {
    let mut t = Table::owner();
    assert_eq!(invite(&mut t, invitation(1)), None);
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    assert_eq!(t.machine.gauges().early, 0);
    t.lease(1, 0, Direction::Pull, true);
    assert_eq!(t.machine.gauges().jobs, 0);
}

#[test]
fn refuses_what_must_not_be() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.lease(2, 0, Direction::Push, true);
    let to = |change: fn(&mut Claims)| {
        let mut into = into(3);
        change(&mut into);
        Invitation { into: mint(&into), ..invitation(1) }
    };
    let forged = Ticket::mint(&TicketKey::new(&[4; 32]), &into(3)).unwrap();
    let (start, valid) = (0, TOKENS);
    for (invitation, refusal) in [
        (to(|c| c.ranks.iter_mut().for_each(|rank| rank.agent = agent("third"))), Refusal::NotYourBlocks),
        (to(|c| c.owner = OWNER.digest()), Refusal::NotYourBlocks),
        (to(|c| c.incarnation = life(2)), Refusal::NotYourBlocks),
        (to(|c| c.cluster = ClusterName::new("east").unwrap()), Refusal::WrongCluster { ours: cluster() }),
        (to(|c| c.direction = Direction::Pull), Refusal::WrongDirection { ticket: Direction::Pull }),
        (to(|c| c.audience = Some(Audience::Agent(agent("third")))), Refusal::WrongPeer),
        (to(|c| c.valid_tokens += 1), Refusal::NotEnoughTokens { start, valid, asked: TOKENS + 1 }),
        (Invitation { into: forged.clone(), ..invitation(1) }, Refusal::Forged),
        (Invitation { ticket: forged, ..invitation(1) }, Refusal::Forged),
        (Invitation { content: ContentDigest([9; 32]), ..invitation(1) }, Refusal::DigestMismatch),
        (
            Invitation { ticket: mint(&claims(2, Direction::Push)), ..invitation(2) },
            Refusal::WrongDirection { ticket: Direction::Push },
        ),
    ] {
        assert_eq!(refused(&mut t, invitation), refusal);
    }
    assert!(pushes(&t).is_empty());
    assert_eq!(t.machine.gauges().jobs, 0);
    // None of it has used the lease.
    t.wait(secs(11));
    assert_eq!(t.ended(), [LeaseEnd::Expired; 2]);
}

#[test]
fn takes_the_roles_to_pull_and_to_serve() {
    for role in [Role::Pull, Role::Serve] {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.greet("holder", all_but(role), hello("holder"));
        t.lease(1, 0, Direction::Pull, true);
        let missing = Refusal::RoleMissing { role };
        assert_eq!(refused(&mut t, invitation(1)), missing);
    }
}

#[test]
fn has_only_so_many_pushes_under_way() {
    let mut t = Table::owner_with("holder", Options { jobs: 1, ..Options::default() });
    t.lease(1, 0, Direction::Pull, true);
    t.lease(2, 0, Direction::Pull, true);
    invite(&mut t, invitation(1));
    assert_eq!(refused(&mut t, invitation(2)), Refusal::Busy { limit: 1 });
}

/// The agents of one certificate leave room for others.
#[test]
fn has_only_so_many_pushes_under_way_for_each_service() {
    let options = Options { jobs: 3, invited_per_service: 2, ..Options::default() };
    let mut t = Table::lonely("owner", OWNER, options);
    // Rank 1 is late.
    for n in 1..5 {
        t.lease(n, 0, Direction::Pull, true);
    }
    for (n, name) in [(1, "holder/a"), (2, "holder/b"), (3, "holder/c"), (4, "near")] {
        t.greet(name, Roles::all(), hello(name));
        let mut into = into(100 + n);
        into.ranks.iter_mut().for_each(|rank| rank.agent = agent(name));
        let invitation = Invitation { into: mint(&into), ..invitation(n) };
        let begun = t.machine.gauges().jobs;
        match n {
            3 => assert_eq!(refused(&mut t, invitation), Refusal::Busy { limit: 2 }),
            _ => {
                invite(&mut t, invitation);
                assert_eq!(t.machine.gauges().jobs, begun + 1, "{name}");
            }
        }
    }
}

#[test]
fn has_only_so_many_pushes_under_way_for_each_agent() {
    let mut t = Table::owner_with("near", Options { transfers_per_agent: 1, ..Options::default() });
    t.greet("holder", Roles::all(), hello("holder"));
    for n in 1..4 {
        t.lease(n, 0, Direction::Pull, true);
    }
    assert_eq!(invite(&mut t, invitation(1)), None, "rank 1 is late");
    let busy = Refusal::Busy { limit: 1 };
    assert_eq!(refused(&mut t, invitation(2)), busy);
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), busy);
    assert_eq!(invite(&mut t, invitation(1)), None, "it has begun already");
    t.greet("near", Roles::all(), hello("near"));
    t.hear(Message::Pull(ask(3, 1)));
    let let_in = |said: &Message| matches!(said, Message::Accepted { .. });
    assert!(t.said.iter().any(let_in), "{:?}", t.said);
}

/// An invited push counts with the places of all its routes, even before any of them has begun.
#[test]
fn has_room_for_so_many_places() {
    let routes = routes(OWNER, (HOLDER, true), Rank(0), Request::tokens(TOKENS));
    let places: u64 = routes.iter().map(|route| route.places).sum();
    let owner = |options| {
        let mut t = Table::owner_with("holder", options);
        t.lease(1, 0, Direction::Pull, true);
        t.lease(2, 0, Direction::Pull, true);
        t
    };
    let mut t = owner(Options { places_per_agent: places, ..Options::default() });
    assert_eq!(invite(&mut t, invitation(1)), None, "rank 1 is late");
    let limit = u32::try_from(places).unwrap();
    assert_eq!(refused(&mut t, invitation(2)), Refusal::Busy { limit });
    let mut t = owner(Options { places_per_service: places - 1, ..Options::default() });
    let refusal = refused(&mut t, invitation(1));
    assert!(matches!(refusal, Refusal::Unplannable { .. }), "{refusal}");
}

/// A lease ends when its push has been fenced, for the first reason.
#[test]
fn that_is_cancelled_fences_before_it_gives_back() {
    let (mut t, asks) = invited();
    for ask in &asks {
        let (transfer, path) = (ask.transfer, Path::QUIC);
        t.hear(Message::Accepted { transfer, path });
    }
    t.took();
    let cancel = Notice { id: 7, ticket: ticket(1), says: NoticeKind::Cancel { content: None } };
    t.hear(Message::Notice(cancel));
    let fences = t.took();
    let fenced = fences.iter().filter(|action| matches!(action, Action::Fence { .. }));
    assert_eq!(fenced.count(), asks.len());
    assert_eq!(t.machine.gauges().leases, 2);
    for ask in &asks {
        let transfer = ask.transfer;
        t.do_(|machine, now, _| machine.fenced(now, transfer));
    }
    assert_eq!(t.ended(), [LeaseEnd::Cancelled; 2]);
    let told = t.said.iter().filter(|message| {
        matches!(message, Message::Notice(Notice { ticket, says: NoticeKind::Cancel { .. }, .. })
            if *ticket == invitation(1).into)
    });
    assert_eq!(told.count(), 2, "what was opened waits for nothing");
    let (gauges, pushes) = (t.machine.gauges(), t.machine.owner.pushes());
    assert_eq!((gauges.jobs, gauges.transfers, pushes), (0, 0, 0));
}

#[test]
fn that_is_refused_the_push_lets_go_of_its_lease() {
    let (mut t, asks) = invited();
    let refusal = Refusal::Cancelled;
    for ask in &asks {
        let (transfer, refusal) = (ask.transfer, refusal.clone());
        t.hear(Message::Refused { transfer, refusal });
    }
    let ends: Vec<_> = t.took();
    let ended =
        ends.iter().filter(|action| matches!(action, Action::LeaseEnded { end, .. } if *end == LeaseEnd::Cancelled));
    assert_eq!(ended.count(), 2);
    assert!(matches!(&ends[0], Action::Pushed(_, Err(JobError::Refused { .. }))), "{ends:?}");
}

/// A push extends its lease beyond the time to live, but not beyond the hard bound.
#[test]
fn pushes_no_longer_than_the_hard_bound() {
    let (mut t, asks) = invited();
    for ask in &asks {
        let (transfer, path) = (ask.transfer, Path::QUIC);
        t.hear(Message::Accepted { transfer, path });
    }
    for _ in 0..29 {
        t.wait(secs(1));
        for ask in &asks {
            let transfer = ask.transfer;
            t.do_(|machine, now, _| machine.moved(now, transfer, 1));
        }
    }
    assert!(t.ended().is_empty());
    t.wait(secs(2));
    for ask in &asks {
        let transfer = ask.transfer;
        t.do_(|machine, now, _| machine.fenced(now, transfer));
    }
    assert_eq!(t.ended(), [LeaseEnd::Expired; 2]);
}

/// The hard bound that its owner has moved applies, not that of the beginning.
#[test]
fn pushes_as_long_as_its_lease_is_renewed() {
    let (mut t, asks) = invited();
    for ask in &asks {
        let (transfer, path) = (ask.transfer, Path::QUIC);
        t.hear(Message::Accepted { transfer, path });
    }
    let keys = [0, 1].map(|rank| spec(1, rank, Direction::Pull, true).key);
    for key in keys {
        t.do_(|machine, now, _| machine.renew(now, key, secs(60))).unwrap();
    }
    let moving = |t: &mut Table, seconds| {
        for _ in 0..seconds {
            t.wait(secs(1));
            for ask in &asks {
                let transfer = ask.transfer;
                t.do_(|machine, now, _| machine.moved(now, transfer, 1));
            }
        }
    };
    t.took();
    moving(&mut t, 59);
    assert!(t.took().is_empty(), "nothing has to stop yet");
    moving(&mut t, 2);
    let stopped = t.took();
    let fences = stopped.iter().filter(|action| matches!(action, Action::Fence { .. }));
    assert_eq!(fences.count(), asks.len());
}

#[test]
fn pushes_layer_by_layer_out_of_a_lease_that_is_being_computed() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, false);
    let by_layer = Invitation { by_layer: true, ..invitation(1) };
    invite(&mut t, by_layer);
    let asks = pushes(&t);
    let (transfer, path) = (asks[0].transfer, Path::QUIC);
    assert!(asks[0].request.by_layer);
    t.hear(Message::Accepted { transfer, path });
    let key = spec(1, 0, Direction::Pull, false).key;
    t.took();
    t.do_(|machine, _, _| machine.ready(key, 1, TOKENS)).unwrap();
    assert!(matches!(t.took()[..], [Action::Readable { transfer: of, layer: 1, .. }] if of == transfer));
    t.do_(|machine, now, _| machine.finish_prefill(now, key)).unwrap();
    assert!(matches!(t.took()[..], [Action::AllReadable(of)] if of == transfer));
}

#[test]
fn whose_holder_restarts_is_lost_to_it() {
    let (mut t, asks) = invited();
    t.greet("holder", Roles::all(), Hello { incarnation: life(2), ..hello("holder") });
    for ask in &asks {
        let transfer = ask.transfer;
        t.do_(|machine, now, _| machine.fenced(now, transfer));
    }
    let ends = t.ended();
    assert_eq!(ends.len(), 2);
    assert!(!ends.contains(&LeaseEnd::Completed), "{ends:?}");
}

//! Asks to pull and to push, at the owner.

use super::*;

#[test]
fn are_refused_by_name() {
    let mut t = Table::owner();
    t.lease(2, 0, Direction::Pull, true);
    t.lease(3, 0, Direction::Pull, true);
    let key = spec(2, 0, Direction::Pull, true).key;
    t.do_(|machine, now, _| machine.cancel_lease(now, key)).unwrap();
    t.wait(secs(11));
    t.lease(4, 0, Direction::Pull, true);
    let pull = |change: fn(&mut Ask)| {
        let mut ask = ask(4, 1);
        change(&mut ask);
        ask
    };
    let by = |change: fn(&mut Claims)| {
        let mut claims = claims(4, Direction::Pull);
        change(&mut claims);
        Ask { ticket: mint(&claims), ..ask(4, 1) }
    };
    let forged = Ticket::mint(&TicketKey::new(&[4; 32]), &claims(4, Direction::Pull)).unwrap();
    let (start, valid, rank) = (0, TOKENS, Rank(2));
    let (ours, theirs) = (plan(false), PlanDigest([9; 32]));
    let nowhere = Refusal::NoRoute { owner: Rank(0), asker: Rank(1) };
    let unavailable = |wanted| Refusal::PathUnavailable { wanted, offered: PathSet::QUIC };
    for (ask, refusal) in [
        (Ask { ticket: forged, ..ask(4, 1) }, Refusal::Forged),
        (by(|c| c.cluster = ClusterName::new("east").unwrap()), Refusal::WrongCluster { ours: cluster() }),
        (by(|c| c.owner = DeploymentDigest([9; 32])), Refusal::WrongDeployment { ours: OWNER.digest() }),
        (by(|c| c.incarnation = life(0)), Refusal::WrongIncarnation { ours: life(1) }),
        (by(|c| c.direction = Direction::Push), Refusal::WrongDirection { ticket: Direction::Push }),
        (by(|c| c.audience = Some(Audience::Agent(agent("somebody-else")))), Refusal::WrongPeer),
        (ask(2, 1), Refusal::Cancelled),
        (ask(3, 1), Refusal::Expired),
        (pull(|a| a.source = Rank(2)), Refusal::RankNotHere { rank }),
        (pull(|a| a.destination = Rank(2)), Refusal::RankNotYours { rank }),
        (pull(|a| a.destination = Rank(1)), nowhere),
        (pull(|a| a.content = ContentDigest([9; 32])), Refusal::DigestMismatch),
        (pull(|a| a.plan = PlanDigest([9; 32])), Refusal::PlanDigestMismatch { ours, theirs }),
        (pull(|a| a.request.tokens += 1), Refusal::NotEnoughTokens { start, valid, asked: TOKENS + 1 }),
        (pull(|a| a.paths = PathSet::LOCAL), unavailable(PathSet::LOCAL)),
        (pull(|a| a.paths = PathSet::default()), unavailable(PathSet::default())),
        (pull(|a| a.request.codec = Codec::Q8), Refusal::Codec { codec: Codec::Q8 }),
    ] {
        assert_eq!(t.refusal(Message::Pull(ask)), refusal);
    }
    assert_eq!(t.machine.gauges().transfers, 0);
    let accepted = t.answer(Message::Pull(ask(4, 1)));
    assert!(matches!(accepted, Some(Message::Accepted { .. })), "none of that has bound it");
}

#[test]
fn are_for_ranks_that_the_asker_has() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.greet("holder", Roles::all(), Hello { ranks: vec![Rank(1)], ..hello("holder") });
    t.lease(1, 0, Direction::Pull, true);
    let rank = Rank(0);
    assert_eq!(t.refusal(Message::Pull(ask(1, 1))), Refusal::RankNotYours { rank });
}

/// The owner sends in a codec over the network only, and accepts exact bytes only.
#[test]
fn come_in_a_codec_of_the_hello() {
    let codec = Codec::Q8;
    let options = Options { codecs: vec![codec], ..Options::default() };
    let mut t = Table::owner_with("holder", options);
    let mut hellos = t.said.iter().filter_map(|said| match said {
        Message::Hello(hello) => Some(&hello.codecs[..]),
        _ => None,
    });
    assert_eq!(hellos.next_back(), Some(&[codec][..]));
    t.lease(1, 0, Direction::Pull, true);
    let coded = |ask: Ask| {
        let request = Request { codec, ..ask.request };
        Ask { request, ..ask }
    };
    let push = coded(push_ask(2, 1));
    assert_eq!(t.refusal(Message::Push(push)), Refusal::Codec { codec });
    let pull = coded(ask(1, 1));
    let plan = routes(OWNER, (HOLDER, true), Rank(0), pull.request)[0].digest;
    let local = Ask { plan, paths: PathSet::LOCAL, ..pull.clone() };
    let (wanted, offered) = (PathSet::LOCAL, PathSet::QUIC);
    let unavailable = Refusal::PathUnavailable { wanted, offered };
    assert_eq!(t.refusal(Message::Pull(local)), unavailable);
    let path = Path::QUIC;
    let transfer = pull.transfer;
    let accepted = t.answer(Message::Pull(Ask { plan, ..pull }));
    assert_eq!(accepted, Some(Message::Accepted { transfer, path }));
}

#[test]
fn need_a_role() {
    let nothing = Roles::NONE;
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.greet("holder", nothing, hello("holder"));
    t.lease(1, 0, Direction::Pull, true);
    let role = Role::Pull;
    assert_eq!(t.refusal(Message::Pull(ask(1, 1))), Refusal::RoleMissing { role });
    let role = Role::Push;
    assert_eq!(t.refusal(Message::Push(push_ask(1, 1))), Refusal::RoleMissing { role });
    let renew = Message::Notice(Notice { id: 5, ticket: ticket(1), says: NoticeKind::Renew { ttl_ms: 1 } });
    let outcome = Err(Refusal::RoleMissing { role: Role::Renew });
    assert_eq!(t.answer(renew), Some(Message::NoticeHeard { id: 5, outcome }));
    let outcome = Err(Refusal::RoleMissing { role: Role::Pull });
    assert_eq!(t.answer(done(1, &[0])), Some(Message::NoticeHeard { id: 1, outcome }));
}

#[test]
fn are_told_how_a_lease_has_ended() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.wait(secs(11));
    assert_eq!(t.refusal(Message::Pull(ask(1, 1))), Refusal::Expired);
    t.lease(2, 0, Direction::Pull, true);
    let key = spec(2, 0, Direction::Pull, true).key;
    t.do_(|machine, now, _| machine.cancel_lease(now, key)).unwrap();
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Cancelled);
    t.lease(3, 0, Direction::Pull, true);
    t.hear(done(3, &[0, 1]));
    assert_eq!(t.refusal(Message::Pull(ask(3, 1))), Refusal::Consumed);
    let ends = [LeaseEnd::Expired, LeaseEnd::Cancelled, LeaseEnd::Completed];
    assert_eq!(t.ended(), ends);
}

#[test]
fn wait_for_their_lease_and_not_for_ever() {
    let mut t = Table::owner();
    let on = Awaited::Lease;
    let first = ask(1, 1);
    let waiting = Message::Waiting { transfer: first.transfer, on };
    assert_eq!(t.answer(Message::Pull(first.clone())), Some(waiting));
    assert_eq!(t.answer(Message::Pull(first.clone())), None, "it waits already");
    t.hear(Message::Pull(ask(2, 1)));
    t.lease(1, 0, Direction::Pull, true);
    let accepted = Message::Accepted { transfer: first.transfer, path: Path::QUIC };
    assert_eq!(t.said.pop(), Some(accepted));
    t.said.clear();
    t.wait(secs(11));
    let transfer = ask(2, 1).transfer;
    let refusal = Refusal::UnknownLease;
    assert!(t.said.contains(&Message::Refused { transfer, refusal }));
    assert_eq!(t.machine.gauges().early, 0);
}

#[test]
fn wait_in_bounded_number_and_may_be_withdrawn() {
    let mut t = Table::owner_with("holder", Options { early_per_agent: 2, ..Options::default() });
    t.hear(Message::Pull(ask(1, 1)));
    t.hear(Message::Pull(ask(2, 1)));
    let limit = 2;
    assert_eq!(t.refusal(Message::Pull(ask(3, 1))), Refusal::Busy { limit });
    let (id, outcome) = (5, Err(Refusal::Busy { limit }));
    assert_eq!(t.answer(Message::Invite(super::invitations::invitation(3))), Some(Message::Invited { id, outcome }));
    let failure = Failure::Cancelled;
    t.hear(Message::Abort { transfer: ask(1, 1).transfer, failure });
    assert_eq!(t.machine.gauges().early, 1);
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    assert_eq!(t.machine.gauges().early, 0);
}

#[test]
fn are_few_at_a_time() {
    let mut t = Table::owner_with("holder", Options { transfers_per_agent: 1, ..Options::default() });
    t.lease(1, 0, Direction::Pull, true);
    t.lease(2, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    let limit = 1;
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Busy { limit });
}

/// An agent chooses its instance name itself, so another name gives it no more room.
#[test]
fn are_few_at_a_time_of_one_service_too() {
    let places = route(false).places;
    let one = u32::try_from(places).unwrap();
    for (options, limit) in [
        (Options { transfers_per_service: 1, ..Options::default() }, 1),
        (Options { places_per_service: places, ..Options::default() }, one),
    ] {
        let mut t = Table::owner_with("holder/a", options);
        for n in 1..=3 {
            t.lease(n, 0, Direction::Pull, true);
        }
        let accepted = |answer| matches!(answer, Some(Message::Accepted { .. }));
        assert!(accepted(t.answer(Message::Pull(ask(1, 1)))));
        t.greet("holder/b", Roles::all(), hello("holder/b"));
        assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Busy { limit });
        t.greet("other/a", Roles::all(), hello("other/a"));
        assert!(accepted(t.answer(Message::Pull(ask(3, 1)))));
    }
}

#[test]
fn of_many_places_come_one_after_another() {
    let limit = route(false).places;
    let options = Options { places_per_agent: limit, ..Options::default() };
    let mut t = Table::owner_with("holder", options);
    t.lease(1, 0, Direction::Pull, true);
    t.lease(2, 0, Direction::Pull, true);
    let accepted = t.answer(Message::Pull(ask(1, 1)));
    assert!(matches!(accepted, Some(Message::Accepted { .. })));
    let limit = u32::try_from(limit).unwrap();
    assert_eq!(t.refusal(Message::Pull(ask(2, 1))), Refusal::Busy { limit });
    // A later attempt takes over the places of the earlier one.
    let waits = t.answer(Message::Pull(ask(1, 2)));
    assert!(matches!(waits, Some(Message::Waiting { .. })), "{waits:?}");
    // A single route may exceed the agent's limit, but not the service's.
    let mut answer = |places_per_agent, places_per_service| {
        let options = Options { places_per_agent, places_per_service, ..Options::default() };
        t = Table::owner_with("holder", options);
        t.lease(1, 0, Direction::Pull, true);
        t.answer(Message::Pull(ask(1, 1)))
    };
    let places = route(false).places;
    let accepted = answer(0, places);
    assert!(matches!(accepted, Some(Message::Accepted { .. })));
    let Some(Message::Refused { refusal, .. }) = answer(0, places - 1) else {
        panic!("it is bound");
    };
    assert!(matches!(refusal, Refusal::Unplannable { .. }), "{refusal}");
}

#[test]
fn of_a_later_attempt_wait_for_the_fence_of_the_earlier() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    t.took();
    let on = Awaited::Fence;
    let waiting = Message::Waiting { transfer: ask(1, 2).transfer, on };
    assert_eq!(t.answer(Message::Pull(ask(1, 2))), Some(waiting));
    let latest = 3;
    t.said.clear();
    t.hear(Message::Pull(ask(1, 3)));
    let refusal = Refusal::Superseded { latest };
    assert!(t.said.contains(&Message::Refused { transfer: ask(1, 2).transfer, refusal }));
    let fence = ask(1, 1).transfer;
    assert!(matches!(t.took()[..], [Action::Fence(transfer)] if transfer == fence));
    t.do_(|machine, now, _| machine.fenced(now, fence));
    let began = |action: &Action<_>| matches!(action, Action::Read(flow) if flow.transfer == ask(1, 3).transfer);
    assert!(t.took().iter().any(began));
    let refusal = Refusal::Superseded { latest };
    assert_eq!(t.refusal(Message::Pull(ask(1, 2))), refusal);
}

/// Two transfers with one id would share a fence, and one of their leases would never end.
#[test]
fn carry_a_number_of_their_own() {
    let mut t = Table::owner();
    let other_rank = Ask { source: Rank(1), ..ask(1, 1) };
    t.hear(Message::Pull(ask(1, 1)));
    t.said.clear();
    t.hear(Message::Pull(other_rank.clone()));
    assert_eq!(t.said, [], "one is pending under that number");
    t.lease(1, 0, Direction::Pull, true);
    t.lease(1, 1, Direction::Pull, true);
    t.hear(Message::Pull(other_rank));
    let gauges = t.machine.gauges();
    assert_eq!((gauges.transfers, gauges.early), (1, 0));
    t.took();
    t.wait(secs(40));
    t.do_(|machine, now, _| machine.fenced(now, transfer(17)));
    assert_eq!(t.ended().len(), 2, "both leases are over in time");
}

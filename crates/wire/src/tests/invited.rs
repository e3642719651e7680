//! The holder of a ticket that has the owner push.

use super::jobs::{job, meet_owner};
use super::*;

const INTO: u8 = 200;

fn into() -> Claims {
    let address = RankAddress { agent: agent("holder"), host: "holder.example".into(), port: 7600 };
    Claims { owner: HOLDER.digest(), ranks: vec![address.clone(), address], ..claims(INTO, Direction::Push) }
}

fn pull() -> JobSpec {
    JobSpec { ranks: BTreeSet::from([Rank(0)]), into: Some(mint(&into())), ..job(1, Direction::Pull) }
}

/// Returns a holder that has invited the owner, which the test plays.
fn inviting() -> (Table, JobId) {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let id = t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
    assert!(matches!(t.took()[..], [Action::Connect { .. }]));
    meet_owner(&mut t);
    let Some(Message::Invite(invitation)) = t.said.last() else {
        panic!("{:?}", t.said);
    };
    assert_eq!((invitation.id, &invitation.ticket, &invitation.into), (id.0, &ticket(1), &mint(&into())));
    (t, id)
}

fn ask_from(source: u32) -> Ask {
    let routes = routes(OWNER, (HOLDER, true), Rank(source), Request::tokens(TOKENS));
    let route = routes.iter().find(|route| route.peer_rank == Rank(0));
    Ask {
        transfer: transfer(source as u8 + 1),
        ticket: mint(&into()),
        source: Rank(source),
        plan: route.unwrap().digest,
        ..ask(1, 1)
    }
}

/// Returns the ranks of the owner that write into rank 0, with the number of bytes of each.
fn sources() -> Vec<(u32, u64)> {
    let routes = routes(HOLDER, (OWNER, false), Rank(0), Request::tokens(TOKENS));
    let routes = routes.into_iter();
    routes.map(|r| (r.peer_rank.0, r.bytes)).collect()
}

fn land(t: &mut Table, (source, bytes): (u32, u64)) {
    let ask = ask_from(source);
    let (transfer, nonce) = (ask.transfer, ask.nonce);
    t.hear(Message::Push(ask));
    assert!(matches!(t.said.last(), Some(Message::Accepted { .. })));
    let header = StreamHeader { transfer, nonce, stream: 0, offset: 0, length: bytes };
    let trailer = StreamTrailer { length: bytes, crc: 7 };
    let owner = agent("owner");
    t.do_(|machine, now, _| machine.admit(now, &owner, &header)).unwrap();
    t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 7));
    t.hear(Message::Commit { transfer, streams: 1, bytes });
    assert_eq!(t.said.last(), Some(&Message::Landed { transfer }));
}

fn done(ranks: &[u32]) -> Message {
    Message::Notice(Notice {
        id: 1,
        ticket: mint(&into()),
        says: NoticeKind::Done { ranks: ranks.iter().map(|rank| Rank(*rank)).collect(), content: CONTENT },
    })
}

fn invited(t: &mut Table, id: JobId, outcome: Result<(), Refusal>) {
    t.hear(Message::Invited { id: id.0, outcome });
}

fn cancels(t: &Table) -> usize {
    let cancels = t.said.iter().filter(|message| {
        matches!(message, Message::Notice(Notice { ticket: of, says: NoticeKind::Cancel { .. }, .. })
            if *of == ticket(1))
    });
    cancels.count()
}

#[test]
fn has_what_was_pushed() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.wait(secs(1));
    for source in sources() {
        land(&mut t, source);
    }
    let received = t.took();
    let into_the_job = |action: &Action<_>| match action {
        Action::Receive(flow) => t.machine.blocks(flow.blocks) == Some(&BLOCKS),
        _ => false,
    };
    assert_eq!(received.iter().filter(|a| into_the_job(a)).count(), sources().len());
    t.hear(done(&[0]));
    assert!(t.took().is_empty(), "rank 1 of the owner has not said so");
    t.hear(done(&[1]));
    let report = t.job().unwrap();
    let bytes = sources().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!((report.bytes, report.queued), (bytes, secs(1)));
    assert_eq!(report.routes.len(), sources().len());
    assert!(report.routes.iter().all(|route| route.attempts == 1));
    assert_eq!(cancels(&t), 0);
    assert_eq!(t.machine.gauges().leases, 0);
}

/// Everything that the owner pushes may overtake its answer.
#[test]
fn need_not_have_heard_before_it_has_everything() {
    let (mut t, id) = inviting();
    for source in sources() {
        land(&mut t, source);
    }
    t.hear(done(&[0, 1]));
    t.job().unwrap();
    invited(&mut t, id, Ok(()));
    assert!(t.took().is_empty());
}

#[test]
fn goes_on_while_the_agent_drains() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.do_(|machine, now, _| machine.drain(now));
    for source in sources() {
        land(&mut t, source);
    }
    t.hear(done(&[0, 1]));
    t.job().unwrap();
    assert_eq!(t.refusal(Message::Push(ask_from(0))), Refusal::ShuttingDown, "it is over");
}

#[test]
fn that_is_refused_fails_at_once() {
    for (refusal, kind, cancelled) in [
        (Refusal::Expired, "expired", 0),
        (Refusal::Consumed, "consumed", 0),
        (Refusal::DigestMismatch, "content", 0),
        (Refusal::NotYourBlocks, "refused", 1),
        (Refusal::UnknownLease, "unknown", 1),
    ] {
        let (mut t, id) = inviting();
        invited(&mut t, id, Err(refusal.clone()));
        let (agent, error) = (agent("owner"), t.job().unwrap_err());
        assert_eq!(error.kind(), kind);
        assert_eq!(error, JobError::NotPushed { agent, refusal });
        // A statement about another agent's invitation has no effect.
        assert_eq!(cancels(&t), cancelled);
        assert_eq!(t.refusal(Message::Push(ask_from(0))), Refusal::Cancelled);
    }
}

/// Busy is the only transient refusal.
#[test]
fn asks_again_after_a_pause_who_was_busy() {
    let (mut t, id) = inviting();
    let asked = |t: &mut Table| {
        let said = std::mem::take(&mut t.said).into_iter();
        said.filter(|message| matches!(message, Message::Invite(_))).count()
    };
    asked(&mut t);
    for pause in [50, 100, 200] {
        let refusal = Refusal::Busy { limit: 1 };
        invited(&mut t, id, Err(refusal.clone()));
        invited(&mut t, id, Err(refusal));
        let late = t.late(id).to_string();
        assert!(late.contains("it waited for its turn"), "{late}");
        t.wait(Duration::from_millis(pause - 1));
        assert_eq!(asked(&mut t), 0);
        t.wait(Duration::from_millis(1));
        assert_eq!(asked(&mut t), 1);
    }
    invited(&mut t, id, Ok(()));
    for source in sources() {
        land(&mut t, source);
    }
    t.hear(done(&[0, 1]));
    t.job().unwrap();
}

#[test]
fn that_is_busy_for_too_long_leaves_nothing() {
    let (mut t, id) = inviting();
    t.wait(secs(29));
    for _ in 0..9 {
        invited(&mut t, id, Err(Refusal::Busy { limit: 1 }));
        t.wait(Duration::from_millis(200));
    }
    assert!(matches!(t.job(), Err(JobError::TimedOut { .. })));
    t.wait(secs(60));
    let gauges = t.machine.gauges();
    assert_eq!((gauges.jobs, gauges.timers), (0, 0));
}

#[test]
fn that_is_cancelled_fences_first_and_tells_the_owner() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    let ask = ask_from(0);
    let transfer = ask.transfer;
    t.hear(Message::Push(ask));
    t.took();
    t.do_(|machine, now, _| machine.cancel_job(now, id));
    assert!(matches!(t.took()[..], [Action::Fence { .. }]));
    assert_eq!(cancels(&t), 0);
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    assert_eq!(t.job(), Err(JobError::Cancelled));
    assert_eq!(cancels(&t), 1);
}

#[test]
fn fails_when_the_owner_gives_up() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.hear(Message::Notice(Notice {
        id: 1,
        ticket: mint(&into()),
        says: NoticeKind::Cancel { content: Some(CONTENT) },
    }));
    let end = LeaseEnd::Cancelled;
    assert_eq!(t.job(), Err(JobError::LeaseEnded { end }));
}

#[test]
fn takes_no_longer_than_it_may() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.wait(secs(29));
    assert!(t.took().is_empty());
    t.wait(secs(2));
    assert_eq!(
        t.job().unwrap_err().to_string(),
        "it took longer than 30s: it waited for the owner's push, or word that all is pushed (agent owner at \
         owner.example:7600)"
    );
    assert_eq!(cancels(&t), 1);
}

#[test]
fn asks_again_on_a_new_connection_until_it_is_heard() {
    let (mut t, id) = inviting();
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    t.said.clear();
    meet_owner(&mut t);
    assert!(matches!(t.said.last(), Some(Message::Invite(_))));
    invited(&mut t, id, Ok(()));
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    t.said.clear();
    meet_owner(&mut t);
    assert_eq!(t.said.last(), Some(&Message::Welcome));
}

#[test]
fn asks_again_on_the_connection_that_is_left() {
    let (mut t, id) = inviting();
    let first = t.conn;
    meet_owner(&mut t);
    assert_eq!(t.said.last(), Some(&Message::Welcome), "once will do");
    t.said.clear();
    t.do_(|machine, now, _| machine.disconnected(now, first));
    assert!(matches!(&t.said[..], [Message::Invite(invitation)] if invitation.id == id.0));
    t.said.clear();
    invited(&mut t, id, Ok(()));
    let second = t.conn;
    meet_owner(&mut t);
    t.do_(|machine, now, _| machine.disconnected(now, second));
    assert_eq!(t.said.last(), Some(&Message::Welcome));
}

#[test]
fn fails_when_the_owner_is_gone() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    let owner = agent("owner");
    for _ in 0..3 {
        assert_eq!(t.machine.gauges().jobs, 1);
        t.wait(secs(1));
        t.do_(|machine, now, _| machine.connect_failed(now, &owner, "nobody answers"));
    }
    let (agent, why) = (owner, "nobody answers".into());
    assert_eq!(t.job(), Err(JobError::Unreachable { agent, why }));
}

/// A lost connection and a closed port suffice to fail: a host seldom reports more.
#[test]
fn fails_at_once_when_the_port_of_the_owner_is_closed_as_well() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    let owner = agent("owner");
    t.wait(secs(1));
    t.do_(|machine, now, _| machine.connect_refused(now, &owner, "its port is closed"));
    let (agent, why) = (owner, "its port is closed".into());
    assert_eq!(t.job(), Err(JobError::Unreachable { agent, why }));
}

#[test]
fn fails_when_the_owner_has_restarted() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
    t.connect("owner", Roles::all());
    t.hear(Message::Hello(Hello { deployment: OWNER.digest(), incarnation: life(2), ..hello("owner") }));
    let document = OWNER.document();
    t.hear(Message::Document { document });
    t.hear(Message::Welcome);
    assert!(matches!(t.job(), Err(JobError::Restarted { .. })));
}

/// Returns the error for an owner with such a certificate, which is not even asked.
fn not_asked(roles: Roles) -> JobError {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
    t.connect("owner", roles);
    t.hear(Message::Hello(Hello { deployment: OWNER.digest(), ..hello("owner") }));
    let document = OWNER.document();
    t.hear(Message::Document { document });
    t.hear(Message::Welcome);
    let asked = t.said.iter().any(|said| matches!(said, Message::Invite(_)));
    assert!(!asked, "{:?}", t.said);
    assert_eq!(cancels(&t), 1);
    t.job().unwrap_err()
}

#[test]
fn does_not_ask_who_may_not_serve() {
    let roles = all_but(Role::Serve);
    let agent = agent("owner");
    assert_eq!(not_asked(roles), JobError::MayNotServe { agent });
}

#[test]
fn does_not_ask_who_may_not_push() {
    let roles = all_but(Role::Push);
    let (agent, role) = (agent("owner"), Role::Push);
    let refusal = Refusal::RoleMissing { role };
    assert_eq!(not_asked(roles), JobError::PushRefused { agent, refusal });
}

/// The owner gives up too, but its message may not arrive.
#[test]
fn that_refuses_the_push_is_over() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    let other = Ask { plan: PlanDigest([9; 32]), ..ask_from(0) };
    t.said.clear();
    t.hear(Message::Push(other));
    let Some(Message::Refused { refusal, .. }) = t.said.first().cloned() else {
        panic!("{:?}", t.said);
    };
    assert!(matches!(refusal, Refusal::PlanDigestMismatch { .. }), "{refusal}");
    let agent = agent("owner");
    assert_eq!(t.job(), Err(JobError::PushRefused { agent, refusal }));
    assert_eq!(cancels(&t), 1);
    assert_eq!(t.machine.gauges().leases, 0);
}

#[test]
fn that_cannot_plan_the_push_is_over() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    t.compiles = false;
    t.hear(Message::Push(ask_from(0)));
    let plan = t.compiled.last().cloned().expect("it is asked for");
    t.do_(|machine, now, _| machine.compiled(now, &plan, Err("too long")));
    let (agent, why) = (agent("owner"), "too long".into());
    let refusal = Refusal::Unplannable { why };
    assert_eq!(t.job(), Err(JobError::PushRefused { agent, refusal }));
}

/// An agent that is not the owner cannot end it, even with the ticket of the write leases.
#[test]
fn that_refuses_a_third_party_goes_on() {
    let (mut t, _) = inviting();
    t.greet("third", all_but(Role::Push), hello("third"));
    let role = Role::Push;
    let refusal = t.refusal(Message::Push(ask_from(0)));
    assert_eq!(refusal, Refusal::RoleMissing { role });
    assert!(t.took().iter().all(|a| !matches!(a, Action::JobDone { .. })));
    assert_eq!(t.machine.gauges().jobs, 1);
}

/// The holder does not give up for reasons for which the owner does not either.
#[test]
fn that_refuses_what_was_overtaken_goes_on() {
    let (mut t, id) = inviting();
    invited(&mut t, id, Ok(()));
    let (source, bytes) = sources()[0];
    land(&mut t, (source, bytes));
    let again = Ask { transfer: transfer(99), attempt: 2, ..ask_from(source) };
    assert_eq!(t.refusal(Message::Push(again)), Refusal::Consumed);
    assert_eq!(t.machine.gauges().jobs, 1);
}

#[test]
fn that_cannot_be_are_not_begun() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let mut refused = |spec| {
        let refused = t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap_err();
        assert_eq!(refused.blocks, BLOCKS);
        *refused.error
    };
    let with = |into: Claims| JobSpec { into: Some(mint(&into)), ..pull() };
    for wrong in [
        Claims { direction: Direction::Pull, ..into() },
        Claims { incarnation: life(2), ..into() },
        Claims { owner: OWNER.digest(), ..into() },
    ] {
        let error = refused(with(wrong));
        assert!(matches!(error, JobError::WriteLease { .. }), "{error}");
    }
    let shorter = Claims { valid_tokens: TOKENS - 1, ..into() };
    assert!(matches!(refused(with(shorter)), JobError::Tokens { .. }));
    let push = JobSpec { into: pull().into, ..job(1, Direction::Push) };
    assert!(matches!(refused(push), JobError::WriteLease { .. }));
    t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
    let other = JobSpec { ticket: ticket(2), ..pull() };
    let refused = t.do_(|machine, now, _| machine.start(now, other, BLOCKS)).unwrap_err();
    let error = refused.error.to_string();
    assert!(error.contains("open already"), "{error}");
    let again = JobSpec { into: None, ..pull() };
    let refused = t.do_(|machine, now, _| machine.start(now, again, BLOCKS)).unwrap_err();
    assert!(matches!(*refused.error, JobError::UnderWay { .. }));
}

/// The device of the pushing owner is lost, or does not finish its work.
#[test]
fn a_push_that_a_device_fails_fails_the_pull_by_its_kind() {
    for failure in [Failure::DeviceLost, Failure::DeviceStalled] {
        let (mut t, id) = inviting();
        invited(&mut t, id, Ok(()));
        let (source, _) = sources()[0];
        let ask = ask_from(source);
        let transfer = ask.transfer;
        t.hear(Message::Push(ask));
        t.hear(Message::Abort { transfer, failure: failure.clone() });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        let failed = JobError::Failed { rank: Rank(0), peer_rank: Rank(source), attempts: 1, failure };
        assert_eq!(t.job(), Err(failed));
    }
}

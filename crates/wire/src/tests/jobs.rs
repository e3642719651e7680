//! The holder of a ticket.

mod reaching;

use super::*;

pub(super) fn job(n: u8, direction: Direction) -> JobSpec {
    JobSpec {
        ticket: mint(&claims(n, direction)),
        ranks: BTreeSet::from([Rank(0)]),
        request: Request::tokens(TOKENS),
        content: CONTENT,
        lanes: 1,
        paths: PathSet::ANY,
        timeout: secs(30),
        keep_leases: false,
        prefilled: true,
        into: None,
    }
}

fn holder(direction: Direction) -> (Table, JobId) {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let id = t.do_(|machine, now, _| machine.start(now, job(1, direction), BLOCKS)).unwrap();
    assert!(matches!(t.took()[..], [Action::Connect { .. }]));
    meet_owner(&mut t);
    (t, id)
}

pub(super) fn meet_owner(t: &mut Table) {
    t.dialled("owner");
    greet_as_owner(t);
}

fn greet_as_owner(t: &mut Table) {
    let hello = Hello { deployment: OWNER.digest(), ..hello("owner") };
    t.hear(Message::Hello(hello));
    if t.said.last() == Some(&Message::DocumentWanted) {
        let document = OWNER.document();
        t.hear(Message::Document { document });
    }
    t.hear(Message::Welcome);
}

fn asked(t: &Table) -> Ask {
    match t.said.last() {
        Some(Message::Pull(ask) | Message::Push(ask)) => ask.clone(),
        other => panic!("{other:?}"),
    }
}

fn refused(t: &mut Table, spec: JobSpec) -> JobError {
    let refused = t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap_err();
    assert_eq!(refused.blocks, BLOCKS);
    *refused.error
}

#[test]
fn of_our_own_tickets_are_refused_at_once() {
    for direction in [Direction::Pull, Direction::Push] {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        assert_eq!(refused(&mut t, job(1, direction)), JobError::OwnTicket);
        // The agent of another rank is of the same engine.
        let mut sibling = Table::lonely("owner-1", OWNER, Options::default());
        let own = refused(&mut sibling, job(1, direction));
        assert_eq!(own, JobError::OwnTicket);
        let (found, agent) = (life(1), agent("owner"));
        let incarnation = life(9);
        let before = Claims { incarnation, ..claims(1, direction) };
        let restarted = refused(&mut t, JobSpec { ticket: mint(&before), ..job(1, direction) });
        let ticket = incarnation;
        assert_eq!(restarted, JobError::Restarted { agent, found, ticket });
        assert!(t.took().is_empty(), "nobody is dialled");
        assert_eq!(t.machine.gauges(), Gauges::default());
    }
}

#[test]
fn that_cannot_be_are_not_begun() {
    let mut t = Table::lonely("holder", HOLDER, Options { jobs: 1, ..Options::default() });
    let pull = || job(1, Direction::Pull);
    let ranks = BTreeSet::from([Rank(7)]);
    let rank = Rank(7);
    assert_eq!(refused(&mut t, JobSpec { ranks, ..pull() }), JobError::NotOurs { rank });
    let ranks = BTreeSet::new();
    assert_eq!(refused(&mut t, JobSpec { ranks, ..pull() }), JobError::NoRanks);
    let (start, end, first, valid) = (5, 15, 0, TOKENS);
    let request = Request { start, ..Request::tokens(TOKENS) };
    assert_eq!(refused(&mut t, JobSpec { request, ..pull() }), JobError::Tokens { start, end, first, valid });
    let part = JobSpec { request: Request::tokens(5), ..job(1, Direction::Push) };
    assert!(matches!(refused(&mut t, part), JobError::Tokens { .. }), "a push moves all of it");
    let forged = Ticket::mint(&TicketKey::new(&[4; 32]), &claims(1, Direction::Pull)).unwrap();
    let forged = refused(&mut t, JobSpec { ticket: forged, ..pull() });
    assert_eq!(forged, JobError::Ticket(crate::ticket::TicketError::Forged));
    t.do_(|machine, now, _| machine.start(now, pull(), BLOCKS)).unwrap();
    let limit = 1;
    assert_eq!(refused(&mut t, pull()), JobError::TooMany { limit });
}

#[test]
fn tell_a_refusal_as_seen_from_here() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    t.dialled("owner");
    let differ = |ours: &str, theirs: &str| {
        HelloRefusal::Specs(Difference { field: "heads".into(), ours: ours.into(), theirs: theirs.into() })
    };
    t.hear(Message::Unwelcome(differ("4", "2")));
    let (agent, refusal) = (agent("owner"), differ("2", "4"));
    assert_eq!(t.job(), Err(JobError::Hello { agent, refusal }));
}

#[test]
fn do_not_run_twice_at_a_time() {
    let (mut t, _) = holder(Direction::Pull);
    let rank = Rank(0);
    assert_eq!(refused(&mut t, job(1, Direction::Pull)), JobError::UnderWay { rank });
}

#[test]
fn pull_and_tell_every_owner() {
    let (mut t, _) = holder(Direction::Pull);
    let asked = asked(&t);
    let Action::Receive(flow) = t.took().remove(0) else {
        panic!("receives before it asks");
    };
    let transfer = asked.transfer;
    let header = StreamHeader { transfer, nonce: asked.nonce, stream: 0, offset: 0, length: flow.bytes };
    let trailer = StreamTrailer { length: flow.bytes, crc: 1 };
    let owner = agent("owner");
    t.wait(secs(2));
    t.do_(|machine, now, _| machine.admit(now, &owner, &header)).unwrap();
    t.wait(secs(1));
    t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 1));
    t.hear(Message::Accepted { transfer, path: Path::QUIC });
    t.said.clear();
    let (streams, bytes) = (1, flow.bytes);
    t.hear(Message::Commit { transfer, streams, bytes });
    let report = t.job().unwrap();
    assert_eq!((report.bytes, report.routes.len()), (flow.bytes, 1));
    assert_eq!((report.took, report.queued), (secs(3), secs(2)));
    let Some(Message::Notice(notice)) = t.said.pop() else {
        panic!("{:?}", t.said);
    };
    assert!(matches!(&notice.says, NoticeKind::Done { ranks, .. } if *ranks == [Rank(0)]));
    assert_eq!(t.said, [Message::Landed { transfer }]);
    t.hear(Message::NoticeHeard { id: notice.id, outcome: Ok(0) });
    assert!(t.machine.is_idle());
}

#[test]
fn try_again_after_the_fence() {
    let (mut t, _) = holder(Direction::Pull);
    let first = asked(&t);
    t.took();
    t.hear(Message::Abort { transfer: first.transfer, failure: Failure::Streams });
    assert!(matches!(t.took()[..], [Action::Fence { .. }]));
    t.wait(secs(1));
    assert!(t.took().is_empty(), "not before the fence");
    t.do_(|machine, now, _| machine.fenced(now, first.transfer));
    t.wait(secs(1));
    let second = asked(&t);
    assert_eq!((second.attempt, first.attempt), (2, 1));
    assert_ne!(second.transfer, first.transfer);
    assert_ne!(second.nonce, first.nonce);
}

#[test]
fn try_so_often_and_then_cancel() {
    let (mut t, _) = holder(Direction::Pull);
    let failure = Failure::Streams;
    for _ in 0..3 {
        let transfer = asked(&t).transfer;
        t.said.clear();
        t.hear(Message::Abort { transfer, failure: failure.clone() });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        t.wait(secs(1));
    }
    let attempts = 3;
    let (rank, peer_rank) = (Rank(0), Rank(0));
    assert_eq!(t.job(), Err(JobError::Failed { rank, peer_rank, attempts, failure }));
    let content = Some(CONTENT);
    assert!(matches!(t.said.last(), Some(Message::Notice(notice))
        if notice.says == NoticeKind::Cancel { content }));
}

#[test]
fn may_leave_the_leases_for_another_try() {
    let (mut t, first) = holder(Direction::Pull);
    let transfer = asked(&t).transfer;
    t.do_(|machine, now, _| machine.cancel_job(now, first));
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    assert_eq!(t.job(), Err(JobError::Cancelled));
    let keep_leases = true;
    let kept = JobSpec { keep_leases, ..job(2, Direction::Pull) };
    t.do_(|machine, now, _| machine.start(now, kept.clone(), BLOCKS)).unwrap();
    for _ in 0..3 {
        let transfer = asked(&t).transfer;
        t.said.clear();
        t.do_(|machine, now, _| machine.stream_failed(now, transfer, "broken"));
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        t.wait(secs(2));
    }
    assert!(matches!(t.job(), Err(JobError::Failed { .. })));
    let is_notice = |said: &Message| matches!(said, Message::Notice(_));
    assert!(!t.said.iter().any(is_notice), "{:?}", t.said);

    // The next job learns from the owner how many attempts there were.
    t.do_(|machine, now, _| machine.start(now, kept, BLOCKS)).unwrap();
    let Ask { transfer, attempt, .. } = asked(&t);
    assert_eq!(attempt, 1);
    let refusal = Refusal::Superseded { latest: 3 };
    t.hear(Message::Refused { transfer, refusal });
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    t.wait(secs(2));
    let Ask { transfer, attempt, .. } = asked(&t);
    assert_eq!(attempt, 4);

    // But it does not believe any number.
    let latest = u32::MAX;
    let refusal = Refusal::Superseded { latest };
    t.took();
    t.hear(Message::Refused { transfer, refusal });
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    assert!(matches!(t.job(), Err(JobError::Refused { .. })));
}

#[test]
fn do_not_cancel_what_is_not_theirs() {
    let (mut t, _) = holder(Direction::Pull);
    let transfer = asked(&t).transfer;
    t.said.clear();
    let refusal = Refusal::DigestMismatch;
    t.hear(Message::Refused { transfer, refusal: refusal.clone() });
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    let (rank, peer_rank) = (Rank(0), Rank(0));
    assert_eq!(t.job(), Err(JobError::Refused { rank, peer_rank, refusal }));
    assert!(t.said.is_empty() && t.machine.is_idle());
}

#[test]
fn wait_while_the_owner_is_busy() {
    let (mut t, _) = holder(Direction::Pull);
    for attempt in 1..10 {
        let asked = asked(&t);
        assert_eq!(asked.attempt, attempt);
        let transfer = asked.transfer;
        let refusal = Refusal::Busy { limit: 1 };
        t.hear(Message::Refused { transfer, refusal });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        t.wait(secs(2));
    }
    t.took();
    let transfer = asked(&t).transfer;
    t.wait(secs(15));
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    let Err(late) = t.job() else {
        panic!("it had no time left");
    };
    assert_eq!(
        late.to_string(),
        "it took longer than 30s: it waited for an answer (agent owner at owner.example:7600)"
    );
}

/// The owner's layout decides how many places there are, for the asker as for the owner.
#[test]
fn of_too_many_places_are_not_begun() {
    let routes = routes(HOLDER, (OWNER, false), Rank(0), Request::tokens(TOKENS));
    let places: u64 = routes.iter().map(|route| route.places).sum();
    for places_per_service in [places - 1, places] {
        let options = Options { places_per_service, ..Options::default() };
        let mut t = Table::lonely("holder", HOLDER, options);
        t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
        meet_owner(&mut t);
        if places_per_service == places {
            asked(&t);
            continue;
        }
        let Err(JobError::Plan { why }) = t.job() else {
            panic!("{:?}", t.said);
        };
        let why = why.to_string();
        assert!(why.contains(&format!("more than {places_per_service}")), "{why}");
    }
}

#[test]
fn say_that_they_waited_for_their_turn() {
    let (mut t, id) = holder(Direction::Pull);
    let transfer = asked(&t).transfer;
    let refusal = Refusal::Busy { limit: 1 };
    t.hear(Message::Refused { transfer, refusal });
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    let JobError::TimedOut { waiting, .. } = t.late(id) else {
        panic!("it is no time-out");
    };
    assert_eq!(
        waiting.unwrap().to_string(),
        "its turn, behind other transfers there (agent owner at owner.example:7600)"
    );
}

#[test]
fn take_no_path_that_they_did_not_want() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let spec = JobSpec { paths: PathSet::QUIC, ..job(1, Direction::Pull) };
    t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap();
    meet_owner(&mut t);
    let transfer = asked(&t).transfer;
    t.hear(Message::Accepted { transfer, path: Path::RING });
    assert!(matches!(t.said.last(), Some(Message::Abort { .. })));
}

#[test]
fn believe_a_push_has_landed_whose_answer_was_lost() {
    let (mut t, _) = holder(Direction::Push);
    let first = asked(&t);
    t.hear(Message::Accepted { transfer: first.transfer, path: Path::QUIC });
    let Action::Read(flow) = t.took().remove(0) else {
        panic!("reads once accepted");
    };
    t.do_(|machine, now, _| machine.stream_sent(now, first.transfer, flow.bytes));
    assert!(matches!(t.said.last(), Some(Message::Commit { .. })));
    t.do_(|machine, now, conn| machine.disconnected(now, conn));
    t.do_(|machine, now, _| machine.fenced(now, first.transfer));
    t.wait(secs(1));
    meet_owner(&mut t);
    let second = asked(&t);
    t.took();
    let refusal = Refusal::Consumed;
    t.hear(Message::Refused { transfer: second.transfer, refusal });
    assert!(t.job().is_ok());
}

#[test]
fn push_layer_by_layer() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let spec = JobSpec { request: request(true), prefilled: false, ..job(1, Direction::Push) };
    let id = t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap();
    meet_owner(&mut t);
    t.took();
    t.machine.job_ready(id, Rank(0), 3, TOKENS);
    let transfer = asked(&t).transfer;
    t.hear(Message::Accepted { transfer, path: Path::QUIC });
    assert!(matches!(&t.took()[..], [Action::Read(flow)]
        if flow.ready == [(3, TOKENS)] && !flow.all_readable));
    t.do_(|machine, _, _| machine.job_ready(id, Rank(0), 4, TOKENS));
    t.do_(|machine, now, _| machine.job_prefilled(now, id));
    assert!(matches!(t.took()[..], [Action::Readable { layer: 4, .. }, Action::AllReadable { .. }]));
}

#[test]
fn can_be_cancelled() {
    let (mut t, id) = holder(Direction::Pull);
    let transfer = asked(&t).transfer;
    t.took();
    t.do_(|machine, now, _| machine.cancel_job(now, id));
    assert!(matches!(t.took()[..], [Action::Fence { .. }]));
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    assert_eq!(t.job(), Err(JobError::Cancelled));
}

//! Done, cancel and renew.

use super::jobs::job;
use super::*;

#[test]
fn cancel_what_nobody_holds_yet_even_before_it_is_opened() {
    let mut t = Table::owner();
    let cancel = |id, content| Notice { id, ticket: ticket(1), says: NoticeKind::Cancel { content } };
    t.lease(1, 0, Direction::Pull, true);
    let other = cancel(1, Some(ContentDigest([9; 32])));
    t.hear(Message::Notice(other));
    assert!(t.ended().is_empty(), "another request was meant");
    let heard = t.answer(Message::Notice(cancel(2, None)));
    assert_eq!(heard, Some(Message::NoticeHeard { id: 2, outcome: Ok(0) }));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
    t.lease(1, 1, Direction::Pull, true);
    assert_eq!(t.ended(), [LeaseEnd::Cancelled], "rank 1 was late");
    assert!(t.machine.is_idle());
}

#[test]
fn renew_within_bounds() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    let renew = |ttl_ms| {
        let says = NoticeKind::Renew { ttl_ms };
        Message::Notice(Notice { id: 1, ticket: ticket(1), says })
    };
    let heard = |left| Some(Message::NoticeHeard { id: 1, outcome: Ok(left) });
    assert_eq!(t.answer(renew(20_000)), heard(20_000));
    assert_eq!(t.answer(renew(u64::MAX)), heard(30_000));
    t.wait(secs(31));
    let outcome = Err(Refusal::Expired);
    assert_eq!(t.answer(renew(1)), Some(Message::NoticeHeard { id: 1, outcome }));
}

#[test]
fn about_our_own_leases_dial_nobody() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.lease(1, 0, Direction::Pull, true);
    t.do_(|machine, now, _| machine.renew_ticket(now, &ticket(1), secs(20))).unwrap();
    let renewed = t.took();
    assert!(
        matches!(renewed[..], [
        Action::NoticeDone(_, NoticeOutcome { heard: (1, 1), left: Some(left), refusal: None })
    ] if left == secs(20)),
        "{renewed:?}"
    );
    t.wait(secs(15));
    assert!(t.ended().is_empty(), "it lives on");
    let other = Some(ContentDigest([9; 32]));
    t.do_(|machine, now, _| machine.cancel_ticket(now, &ticket(1), other)).unwrap();
    let refused = Some(Refusal::DigestMismatch);
    assert!(matches!(&t.took()[..], [Action::NoticeDone(_, NoticeOutcome { refusal, .. })] if *refusal == refused));
    t.do_(|machine, now, _| machine.cancel_ticket(now, &ticket(1), None)).unwrap();
    let actions = t.took();
    assert!(
        matches!(
            actions[..],
            [
                Action::NoticeDone(_, NoticeOutcome { heard: (1, 1), .. }),
                Action::LeaseEnded { end: LeaseEnd::Cancelled, .. }
            ]
        ),
        "{actions:?}"
    );
    // A past life has left nothing.
    let past = mint(&Claims { incarnation: life(9), ..claims(2, Direction::Pull) });
    t.do_(|machine, now, _| machine.cancel_ticket(now, &past, None)).unwrap();
    let actions = t.took();
    assert!(matches!(actions[..], [Action::NoticeDone(_, NoticeOutcome { heard: (0, 1), .. })]), "{actions:?}");
    assert!(t.machine.is_idle());
}

#[test]
fn report_when_somebody_asked_for_it() {
    let mut t = Table::lonely("scheduler", HOLDER, Options::default());
    let id = t.do_(|machine, now, _| machine.renew_ticket(now, &ticket(1), secs(5))).unwrap();
    t.took();
    t.connect("owner", Roles::all());
    t.hear(Message::Hello(Hello { deployment: OWNER.digest(), ..hello("owner") }));
    t.hear(Message::Document { document: OWNER.document() });
    t.hear(Message::Welcome);
    assert!(matches!(t.said.last(), Some(Message::Notice(_))));
    t.hear(Message::NoticeHeard { id: id.0, outcome: Ok(4000) });
    let actions = t.took();
    assert!(
        matches!(actions[..], [
        Action::NoticeDone(notice, NoticeOutcome { heard: (1, 1), left: Some(left), refusal: None })
    ] if notice == id && left == secs(4)),
        "{actions:?}"
    );
}

#[test]
fn take_the_place_of_the_oldest() {
    let mut t = Table::lonely("holder", HOLDER, Options { notices: 2, ..Options::default() });
    let cancel = |t: &mut Table, n| t.do_(|machine, now, _| machine.cancel_ticket(now, &ticket(n), None)).unwrap();
    let first = cancel(&mut t, 1);
    cancel(&mut t, 2);
    t.took();
    cancel(&mut t, 3);
    assert!(matches!(t.took()[..], [
        Action::NoticeDone(notice, NoticeOutcome { heard: (0, 1), .. })
    ] if notice == first));
}

/// A crash is noticed late: until then, the connection of the past life looks intact.
#[test]
fn reach_the_life_that_the_ticket_means() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let greet = |t: &mut Table, n| {
        t.connect("owner", Roles::all());
        t.hear(Message::Hello(Hello { deployment: OWNER.digest(), incarnation: life(n), ..hello("owner") }));
        if t.said.last() == Some(&Message::DocumentWanted) {
            let document = OWNER.document();
            t.hear(Message::Document { document });
        }
        t.hear(Message::Welcome);
    };
    greet(&mut t, 1);
    t.wait(secs(1));
    let later = mint(&Claims { incarnation: life(2), ..claims(1, Direction::Pull) });
    t.took();
    t.do_(|machine, now, _| machine.renew_ticket(now, &later, secs(5))).unwrap();
    assert!(matches!(t.took()[..], [Action::Close { .. }, Action::Connect { .. }]));
    greet(&mut t, 2);
    assert!(matches!(t.said.last(), Some(Message::Notice(_))));
}

#[test]
fn are_not_tried_with_an_agent_that_misfits() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    t.do_(|machine, now, _| machine.renew_ticket(now, &ticket(2), secs(20))).unwrap();
    t.dialled("owner");
    t.took();
    t.hear(Message::Unwelcome(HelloRefusal::Specs(Difference {
        field: "dtype".into(),
        ours: "bf16".into(),
        theirs: "f32".into(),
    })));
    assert!(matches!(
        t.job(),
        Err(JobError::Hello { refusal, .. }) if refusal.is_misfit()
    ));
    t.wait(secs(30));
    let actions = t.took();
    let dials = |action: &Action<_>| matches!(action, Action::Connect(_));
    assert!(!actions.iter().any(dials), "{actions:?}");
    assert!(t.machine.is_idle(), "it waits for nobody");
}

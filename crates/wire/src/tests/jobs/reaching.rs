//! Tests how jobs reach the owner, and what happens if it cannot be reached.

use super::*;

/// Makes a holder whose owner has too many connections. Returns also how long its job lasts.
fn crowded(room_after: Duration) -> (Table, Duration) {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    let begun = t.now;
    loop {
        let did = t.took();
        let over = |did: &Action<_>| matches!(did, Action::JobDone { .. });
        let passed = t.now.since(begun);
        if did.iter().any(over) {
            t.did = did;
            return (t, passed);
        }
        if did.iter().any(|did| matches!(did, Action::Connect { .. })) {
            if passed >= room_after {
                meet_owner(&mut t);
                return (t, passed);
            }
            t.dialled("owner");
            let refusal = HelloRefusal::Crowded { limit: 512 };
            t.hear(Message::Unwelcome(refusal));
        } else {
            t.wait(Duration::from_millis(10));
        }
    }
}

#[test]
fn wait_for_a_place_among_connections() {
    let (t, _) = crowded(secs(2));
    assert!(asked(&t).attempt == 1, "it has begun");
}

#[test]
fn say_that_there_was_no_place_among_connections() {
    let (mut t, after) = crowded(secs(60));
    assert!(after >= secs(5), "{after:?}");
    let (agent, refusal) = (agent("owner"), HelloRefusal::Crowded { limit: 512 });
    assert_eq!(t.job(), Err(JobError::Hello { agent, refusal }));
}

#[test]
fn notice_a_restarted_owner_at_once() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    t.connect("owner", Roles::all());
    t.hear(Message::Hello(Hello { deployment: OWNER.digest(), incarnation: life(2), ..hello("owner") }));
    t.hear(Message::Document { document: OWNER.document() });
    t.hear(Message::Welcome);
    let (agent, found, ticket) = (agent("owner"), life(2), life(1));
    assert_eq!(t.job(), Err(JobError::Restarted { agent, found, ticket }));
    assert!(t.machine.is_idle(), "there is nobody to tell");
}

/// A crash is noticed late: until then, the connection of the past life looks intact.
#[test]
fn leave_a_life_that_the_ticket_shows_to_be_over() {
    let one_attempt = Options { attempts: 1, ..Options::default() };
    let mut t = Table::lonely("holder", HOLDER, one_attempt);
    let owner = |n| Hello { deployment: OWNER.digest(), incarnation: life(n), ..hello("owner") };
    let greet = |t: &mut Table, n| {
        t.connect("owner", Roles::all());
        t.hear(Message::Hello(owner(n)));
        if t.said.last() == Some(&Message::DocumentWanted) {
            let document = OWNER.document();
            t.hear(Message::Document { document });
        }
        t.hear(Message::Welcome);
    };
    greet(&mut t, 1);
    let dead = t.conn;
    t.wait(secs(1));
    let mut later = Claims { incarnation: life(2), ..claims(1, Direction::Pull) };
    for rank in &mut later.ranks {
        rank.host = "elsewhere.example".into();
    }
    let spec = JobSpec { ticket: mint(&later), ..job(1, Direction::Pull) };
    t.said.clear();
    t.took();
    t.do_(|machine, now, _| machine.start(now, spec.clone(), BLOCKS)).unwrap();
    let replaced = CloseReason::Replaced;
    let [Action::Close(conn, reason), Action::Connect(RankAddress { host, .. })] = &t.did[..] else {
        panic!("{:?}", t.did);
    };
    assert_eq!((*conn, reason, &host[..]), (dead, &replaced, "elsewhere.example"));
    greet(&mut t, 2);
    assert!(matches!(t.said.last(), Some(Message::Pull(_))), "it is asked");

    // The process that answers is alive. If it is not the one that the ticket means, that one is gone.
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap();
    t.wait(secs(1));
    greet(&mut t, 1);
    assert!(matches!(t.job(), Err(JobError::Restarted { .. })));
    assert!(t.machine.is_idle());
}

#[test]
fn take_nothing_from_who_may_not_serve() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    let roles = all_but(Role::Serve);
    t.connect("owner", roles);
    t.hear(Message::Hello(Hello { deployment: OWNER.digest(), ..hello("owner") }));
    t.hear(Message::Document { document: OWNER.document() });
    t.hear(Message::Welcome);
    let agent = agent("owner");
    assert_eq!(t.job(), Err(JobError::MayNotServe { agent }));
}

#[test]
fn give_up_on_who_cannot_be_reached() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    for _ in 0..3 {
        t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner"), "nobody answers"));
        t.wait(secs(1));
    }
    assert_eq!(t.job(), Err(JobError::Unreachable { agent: agent("owner"), why: "nobody answers".into() }));
    assert_eq!(t.machine.gauges().notices, 1, "it still wants to cancel");
    t.wait(secs(60));
    t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner"), "nobody answers"));
    assert!(t.machine.is_idle());
    assert_eq!(t.machine.gauges(), Gauges::default());
}

/// Silence is limited by time, in any number of attempts; quick failures are limited by their number.
#[test]
fn give_up_on_who_does_not_answer_for_so_long() {
    for (wait, silence, attempts) in [
        (5, secs(5), 1),
        (5, secs(3), 2),
        // Many attempts of 2 s, with a pause of 1 s between two.
        (25, secs(2), 9),
        (25, secs(0), 3),
    ] {
        let options = Options { connect_wait: secs(wait), ..Options::default() };
        let mut t = Table::lonely("holder", HOLDER, options);
        t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
        for attempt in 1..=attempts {
            let did = t.took();
            assert!(matches!(did[..], [Action::Connect { .. }]), "{silence:?}, attempt {attempt}: {did:?}");
            t.wait(silence);
            t.do_(|machine, now, _| match silence.is_zero() {
                true => machine.connect_failed(now, &agent("owner"), "its port is closed"),
                false => machine.connect_unanswered(now, &agent("owner"), "nobody answers"),
            });
            if attempt < attempts {
                t.wait(secs(1));
            }
        }
        assert!(matches!(t.job(), Err(JobError::Unreachable { .. })));
    }
}

/// Jobs that begin meanwhile have the owner dialled at once, and change nothing for earlier jobs: these end after as
/// many attempts, and at the same time, as alone. A job that begins after the owner was given up gets its own time
/// limit.
#[test]
fn give_up_in_time_whatever_begins_meanwhile() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let begin = |t: &mut Table, n| {
        let id = t.do_(|machine, now, _| machine.start(now, job(n, Direction::Pull), BLOCKS));
        let did = t.took();
        assert!(matches!(did[..], [Action::Connect(_)]), "{n}: {did:?}");
        id.unwrap()
    };
    let fail = |t: &mut Table| {
        t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner"), "its port is closed"));
    };
    for round in 0..2 {
        // Ten at once, and then one in 20 ms.
        for n in 1..=17 {
            if n > 10 {
                t.wait(Duration::from_millis(20));
            }
            // The second attempt is made after 50 ms, as if there were no others.
            match (n, &t.took()[..]) {
                (13, [Action::Connect(_)]) => fail(&mut t),
                (_, did) => assert!(did.is_empty(), "round {round}, {n}: {did:?}"),
            }
            begin(&mut t, 17 * round + n);
            fail(&mut t);
            assert_eq!(t.machine.gauges().jobs, n as usize, "round {round}");
        }
        // The third, 100 ms after the second has failed.
        t.wait(Duration::from_millis(20));
        fail(&mut t);
        assert_eq!(t.machine.gauges().jobs, 0, "round {round}");
        t.took();
    }
}

/// Makes a ticket of an owner that has moved, and a job for it while the owner is dialled at its old address.
fn moved(options: Options) -> (Table, JobId) {
    let mut t = Table::lonely("holder", HOLDER, options);
    t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
    let mut claims = claims(2, Direction::Pull);
    for rank in &mut claims.ranks {
        rank.host = "elsewhere.example".to_owned();
    }
    let spec = JobSpec { ticket: mint(&claims), ..job(2, Direction::Pull) };
    let id = t.do_(|machine, now, _| machine.start(now, spec, BLOCKS));
    (t, id.unwrap())
}

/// An owner that was silent at one address has not been asked at another.
#[test]
fn dial_an_owner_that_has_moved_before_they_give_it_up() {
    let options = Options { connect_wait: secs(5), ..Options::default() };
    let (mut t, _) = moved(options);
    t.took();
    t.wait(secs(5));
    t.do_(|machine, now, _| machine.connect_failed(now, &agent("owner"), "nobody answers"));
    t.wait(secs(1));
    let did = t.took();
    assert!(matches!(&did[..], [Action::Connect(to)] if to.host == "elsewhere.example"), "{did:?}");
}

/// An error must not name an address that was never dialled.
#[test]
fn name_only_addresses_that_were_asked() {
    let waiting = |t: &Table, id| match t.late(id) {
        JobError::TimedOut { waiting, .. } => waiting.unwrap().to_string(),
        other => panic!("{other}"),
    };
    let (t, id) = moved(Options::default());
    let dialled = "a connection (agent owner at owner.example:7600)";
    assert_eq!(waiting(&t, id), dialled);
    for (comes_by_itself, compiles, expected) in [
        (false, true, "an answer (agent owner at owner.example:7600)"),
        (true, true, "an answer (agent owner)"),
        (false, false, "its plan, which is compiled here (agent owner)"),
    ] {
        let mut t = Table::lonely("holder", HOLDER, Options::default());
        t.compiles = compiles;
        let id = t.do_(|machine, now, _| machine.start(now, job(1, Direction::Pull), BLOCKS)).unwrap();
        match comes_by_itself {
            true => t.connect("owner", Roles::all()),
            false => t.dialled("owner"),
        }
        greet_as_owner(&mut t);
        assert_eq!(waiting(&t, id), expected);
    }
}

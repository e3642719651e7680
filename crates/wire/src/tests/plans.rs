//! Plans: each is compiled once for everything that uses it, while everything else continues.

use super::*;
use crate::plans::MOST_COMPILING;

fn slow_owner(direction: Direction) -> Table {
    let mut t = Table::owner();
    t.lease(1, 0, direction, true);
    t.lease(1, 1, direction, true);
    t.compiles = false;
    t
}

fn compile(t: &mut Table) {
    let ask = t.compiled.last().unwrap().clone();
    let plan = t.machine.deployments().compile(&ask);
    t.do_(|machine, now, _| machine.compiled(now, &ask, plan));
}

fn pulls() -> Vec<Ask> {
    let ranks = (0..OWNER.ranks).map(Rank);
    let asks = ranks.flat_map(|source| {
        let routes = routes(OWNER, (HOLDER, true), source, Request::tokens(TOKENS));
        routes.into_iter().map(move |route| Ask {
            transfer: transfer(source.0 as u8 * 16 + route.peer_rank.0 as u8 + 1),
            source,
            destination: route.peer_rank,
            plan: route.digest,
            ..ask(1, 1)
        })
    });
    asks.collect()
}

#[test]
fn are_compiled_once_for_all_routes_that_are_asked_for() {
    let mut t = slow_owner(Direction::Pull);
    let asks = pulls();
    assert!(asks.len() > 1, "a plan with several routes");
    t.said.clear();
    for ask in &asks {
        t.hear(Message::Pull(ask.clone()));
    }
    assert!(t.said.is_empty() && t.compiled.len() == 1, "{:?}", t.said);
    compile(&mut t);
    let accepted = |t: &Table| {
        let said = t.said.iter();
        said.filter(|said| matches!(said, Message::Accepted { .. })).count()
    };
    assert_eq!(accepted(&t), asks.len());
    // Nothing is in progress for a moment, but the leases keep the plan for further asks.
    for ask in &asks {
        let (transfer, failure) = (ask.transfer, Failure::Cancelled);
        t.hear(Message::Abort { transfer, failure });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
    }
    assert_eq!(t.machine.gauges().transfers, 0);
    for ask in &asks {
        t.hear(Message::Pull(Ask { attempt: 2, ..ask.clone() }));
    }
    assert_eq!((accepted(&t), t.compiled.len()), (2 * asks.len(), 1));
    // The plan is dropped with the leases.
    for rank in [Rank(0), Rank(1)] {
        let (set, rank) = (set(1), rank);
        let key = LeaseKey { set, rank };
        t.do_(|machine, now, _| machine.cancel_lease(now, key).unwrap());
    }
    for ask in &asks {
        t.do_(|machine, now, _| machine.fenced(now, ask.transfer));
    }
    assert!(t.machine.is_idle() && t.machine.cx.plans.is_empty());
}

#[test]
fn are_compiled_once_for_all_routes_of_a_job() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let spec = JobSpec { ranks: (0..HOLDER.ranks).map(Rank).collect(), ..super::jobs::job(1, Direction::Pull) };
    t.do_(|machine, now, _| machine.start(now, spec, BLOCKS)).unwrap();
    t.compiles = false;
    super::jobs::meet_owner(&mut t);
    let asked = |t: &Table| {
        let said = t.said.iter();
        said.filter(|said| matches!(said, Message::Pull(_))).count()
    };
    assert_eq!((asked(&t), t.compiled.len()), (0, 1));
    compile(&mut t);
    let routes = (0..HOLDER.ranks).map(|rank| {
        let (rank, request) = (Rank(rank), Request::tokens(TOKENS));
        self::routes(HOLDER, (OWNER, false), rank, request).len()
    });
    assert_eq!((asked(&t), t.compiled.len()), (routes.sum(), 1));
}

#[test]
fn that_cannot_be_compiled_refuse_what_waits_for_them() {
    let mut t = slow_owner(Direction::Pull);
    t.said.clear();
    t.hear(Message::Pull(ask(1, 1)));
    let ask = t.compiled[0].clone();
    t.do_(|machine, now, _| machine.compiled(now, &ask, Err("too long")));
    let refusal = Refusal::Unplannable { why: "too long".into() };
    let transfer = self::ask(1, 1).transfer;
    assert_eq!(t.said, [Message::Refused { transfer, refusal }]);
    t.hear(Message::Pull(self::ask(1, 2)));
    assert_eq!(t.compiled.len(), 2, "it is tried again");
}

#[test]
fn nobody_waits_for_any_more_are_dropped() {
    let mut t = slow_owner(Direction::Pull);
    t.hear(Message::Pull(ask(1, 1)));
    let (transfer, failure) = (ask(1, 1).transfer, Failure::Cancelled);
    t.hear(Message::Abort { transfer, failure });
    t.said.clear();
    compile(&mut t);
    assert!(t.said.is_empty() && t.took().is_empty());
    assert!(t.machine.cx.plans.is_empty());
}

#[test]
fn that_take_too_long_leave_the_peer_to_try_again() {
    let mut t = slow_owner(Direction::Pull);
    for rank in [Rank(0), Rank(1)] {
        let key = LeaseKey { set: set(1), rank };
        t.do_(|machine, now, _| machine.renew(now, key, secs(30)).unwrap());
    }
    t.hear(Message::Pull(ask(1, 1)));
    t.said.clear();
    t.wait(Options::default().early_wait);
    let busy = Refusal::busy(MOST_COMPILING as u64);
    let transfer = ask(1, 1).transfer;
    let refusal = busy.clone();
    assert!(t.said.contains(&Message::Refused { transfer, refusal }));
}

/// A peer that chooses its requests also chooses how long compiling takes.
#[test]
fn are_only_so_many_at_a_time() {
    let mut t = Table::owner();
    t.compiles = false;
    let lease = LeaseSpec { valid_tokens: 1 << 20, ..spec(1, 0, Direction::Pull, true) };
    t.do_(|machine, now, _| machine.lease(now, lease, "blocks")).unwrap();
    let other = |n: usize| {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
        Message::Pull(Ask { transfer: TransferId(name), request: Request::tokens(n as u64 + 1), ..ask(1, 1) })
    };
    for n in 0..MOST_COMPILING {
        assert_eq!(t.answer(other(n)), None);
    }
    let busy = Refusal::busy(MOST_COMPILING as u64);
    assert_eq!(t.refusal(other(MOST_COMPILING)), busy);
    assert_eq!(t.compiled.len(), MOST_COMPILING);
}

/// Only a plan tells which ranks must write. A holder that is done before it is compiled is still heard.
#[test]
fn are_waited_for_by_who_is_done() {
    let mut t = slow_owner(Direction::Push);
    let done = Message::Notice(Notice {
        id: 1,
        ticket: mint(&claims(1, Direction::Push)),
        says: NoticeKind::Done { ranks: vec![Rank(0), Rank(1)], content: CONTENT },
    });
    let heard = t.answer(done);
    assert_eq!(heard, Some(Message::NoticeHeard { id: 1, outcome: Ok(0) }));
    assert_eq!((t.compiled.len(), t.machine.gauges().queued), (1, 2));
    compile(&mut t);
    assert_eq!(t.machine.gauges().queued, 0);
    let cancelled = LeaseEnd::Cancelled;
    assert_eq!(t.ended(), [cancelled, cancelled], "nobody has written");
}

/// Admitted transfers continue.
#[test]
fn are_waited_for_while_draining() {
    let mut t = slow_owner(Direction::Pull);
    t.hear(Message::Pull(ask(1, 1)));
    t.do_(|machine, now, _| machine.drain(now));
    t.said.clear();
    compile(&mut t);
    assert!(matches!(t.said[..], [Message::Accepted { .. }]));
}

/// Asks that wait for a plan are admitted without another check, so they count as in progress.
#[test]
fn are_waited_for_by_no_more_than_may_be_under_way() {
    let options = Options { transfers_per_agent: 1, ..Options::default() };
    let mut t = Table::owner_with("holder", options);
    t.lease(1, 0, Direction::Pull, true);
    t.compiles = false;
    assert_eq!(t.answer(Message::Pull(ask(1, 1))), None);
    let other = Ask { transfer: transfer(99), ..ask(1, 1) };
    assert_eq!(t.refusal(Message::Pull(other)), Refusal::busy(1));
}

//! Memory that does not finish its work after a transfer was stopped.

use super::*;

/// Returns the time that the machine waits for memory, and a little more.
fn too_long() -> Duration {
    Options::default().device_stall + secs(2)
}

fn overtaken() -> (Table, LeaseKey) {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    t.hear(Message::Pull(ask(1, 2)));
    t.took();
    t.said.clear();
    let (set, rank) = (set(1), Rank(0));
    (t, LeaseKey { set, rank })
}

fn stalled_leases(t: &mut Table) -> Vec<LeaseKey> {
    let stalled = t.took().into_iter().filter_map(|action| match action {
        Action::LeaseStalled(key) => Some(key),
        Action::LeaseEnded { .. } => panic!("its blocks may still be touched"),
        _ => None,
    });
    stalled.collect()
}

#[test]
fn fails_a_lease_and_refuses_what_waits_for_the_fence() {
    let (mut t, key) = overtaken();
    t.wait(too_long());
    assert_eq!(stalled_leases(&mut t), [key]);
    let refused = Message::Refused { transfer: ask(1, 2).transfer, refusal: Refusal::DeviceStalled };
    assert!(t.said.contains(&refused), "{:?}", t.said);
    assert_eq!((t.machine.gauges().queued, t.machine.gauges().stalled), (0, 2));
    t.wait(secs(600));
    assert_eq!(stalled_leases(&mut t), [], "it is told once");
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended().len(), 1, "memory is done after all");
    assert!(t.machine.is_idle());
}

/// When a frozen process runs again, all its deadlines are past, although fences may have arrived unread.
#[test]
fn is_waited_for_a_moment_longer_where_the_process_was_late_itself() {
    let (mut t, _) = overtaken();
    t.now = t.now + secs(3600);
    t.do_(|machine, now, _| machine.on_deadline(now));
    assert_eq!(t.machine.gauges().stalled, 0);
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    t.wait(too_long());
    assert!(!t.took().iter().any(|action| matches!(action, Action::LeaseStalled { .. })));
}

#[test]
fn fails_a_pull_whose_owner_hears_of_it_at_once() {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let job = super::jobs::job(1, Direction::Pull);
    let id = t.do_(|machine, now, _| machine.start(now, job, BLOCKS)).unwrap();
    super::jobs::meet_owner(&mut t);
    let Some(Message::Pull(asked)) = t.said.last().cloned() else {
        panic!("{:?}", t.said);
    };
    t.do_(|machine, now, _| machine.cancel_job(now, id));
    t.took();
    t.said.clear();
    let cancels = |t: &Table| {
        let cancels = |said: &&Message| matches!(said, Message::Notice(notice) if matches!(notice.says, NoticeKind::Cancel { .. }));
        t.said.iter().filter(cancels).count()
    };
    t.wait(Options::default().device_stall - secs(1));
    assert!(t.took().is_empty() && cancels(&t) == 0);
    t.wait(secs(3));
    let rank = Rank(0);
    let took = t.took();
    assert!(matches!(took[..], [Action::JobStalled(job, of)] if (job, of) == (id, rank)), "{took:?}");
    assert_eq!(cancels(&t), 1);
    t.do_(|machine, now, _| machine.fenced(now, asked.transfer));
    assert_eq!(t.job(), Err(JobError::Cancelled));
    assert_eq!(cancels(&t), 1, "it is told once");
}

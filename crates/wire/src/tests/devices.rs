//! Devices that are lost, and devices that do not finish their work.

use super::*;
use crate::lease::OpenFault;

fn lose(t: &mut Table) {
    t.do_(|machine, now, _| machine.device_lost(now, Rank(0)));
}

fn aborted(t: &Table) -> Vec<Failure> {
    let said = t.said.iter();
    let aborts = said.filter_map(|message| match message {
        Message::Abort { failure, .. } => Some(failure.clone()),
        _ => None,
    });
    aborts.collect()
}

fn asking(direction: Direction) -> (Table, Ask) {
    let mut t = Table::lonely("holder", HOLDER, Options::default());
    let job = super::jobs::job(1, direction);
    t.do_(|machine, now, _| machine.start(now, job, BLOCKS)).unwrap();
    super::jobs::meet_owner(&mut t);
    let asked = match t.said.last() {
        Some(Message::Pull(ask) | Message::Push(ask)) => ask.clone(),
        other => panic!("{other:?}"),
    };
    t.took();
    t.said.clear();
    (t, asked)
}

fn kind(t: &mut Table) -> &'static str {
    t.job().unwrap_err().kind()
}

#[test]
fn that_are_lost_end_their_leases_and_take_no_new_ones() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    let early = Ask { transfer: transfer(50), ..ask(2, 1) };
    t.hear(Message::Pull(early.clone()));
    t.took();
    t.said.clear();
    lose(&mut t);
    let end = LeaseEnd::DeviceLost;
    assert_eq!(aborted(&t), [Failure::LeaseEnded { end }]);
    let refused = Message::Refused { transfer: early.transfer, refusal: Refusal::DeviceLost };
    assert!(t.said.contains(&refused), "{:?}", t.said);
    assert_eq!(t.ended(), [], "its fence is not there yet");
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended(), [end]);
    let again = Ask { transfer: transfer(51), attempt: 2, ..ask(1, 1) };
    assert_eq!(t.refusal(Message::Pull(again)), Refusal::DeviceLost);
    let new = spec(3, 0, Direction::Pull, true);
    let refused = t.do_(|machine, now, _| machine.lease(now, new, BLOCKS));
    let reason = OpenFault::DeviceLost { rank: Rank(0) };
    assert_eq!(refused.unwrap_err().reason, reason);
    t.lease(3, 1, Direction::Pull, true);
    lose(&mut t);
    assert_eq!(t.ended(), [], "other ranks go on");
}

#[test]
fn that_are_lost_fail_jobs_whose_peers_hear_it() {
    for direction in [Direction::Pull, Direction::Push] {
        let (mut t, asked) = asking(direction);
        let (transfer, path) = (asked.transfer, Path::QUIC);
        t.hear(Message::Accepted { transfer, path });
        lose(&mut t);
        assert_eq!(aborted(&t), [Failure::DeviceLost]);
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        assert_eq!(t.job(), Err(JobError::DeviceLost { rank: Rank(0) }));
        let job = super::jobs::job(2, direction);
        let refused = t.do_(|machine, now, _| machine.start(now, job, BLOCKS));
        let error = *refused.unwrap_err().error;
        assert_eq!(error, JobError::DeviceLost { rank: Rank(0) });
        assert_eq!(error.kind(), "device_lost");
    }
}

/// A peer may report it in any way: there is no second attempt.
#[test]
fn of_peers_fail_jobs_by_their_kind() {
    for (end, told, refusal, expected) in [
        (LeaseEnd::DeviceLost, Failure::DeviceLost, Refusal::DeviceLost, "device_lost"),
        (LeaseEnd::DeviceStalled, Failure::DeviceStalled, Refusal::DeviceStalled, "device_stalled"),
    ] {
        for failure in [told, Failure::LeaseEnded { end }] {
            let (mut t, asked) = asking(Direction::Pull);
            let (transfer, path) = (asked.transfer, Path::QUIC);
            t.hear(Message::Accepted { transfer, path });
            t.hear(Message::Abort { transfer, failure });
            t.do_(|machine, now, _| machine.fenced(now, transfer));
            assert_eq!(kind(&mut t), expected);
        }
        let (mut t, asked) = asking(Direction::Pull);
        let transfer = asked.transfer;
        t.hear(Message::Refused { transfer, refusal });
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        assert_eq!(kind(&mut t), expected);
    }
}

/// A transfer whose memory does not finish its work fails at once, even if it was stopped before.
#[test]
fn that_stall_fail_a_lease_that_keeps_its_blocks() {
    for stopped in [false, true] {
        let mut t = Table::owner();
        t.lease(1, 0, Direction::Pull, true);
        t.hear(Message::Pull(ask(1, 1)));
        t.took();
        t.said.clear();
        let transfer = ask(1, 1).transfer;
        if stopped {
            let failure = Failure::Cancelled;
            t.hear(Message::Abort { transfer, failure });
        }
        t.do_(|machine, now, _| machine.device_stalled(now, transfer));
        let told = match stopped {
            true => vec![],
            false => vec![Failure::DeviceStalled],
        };
        assert_eq!(aborted(&t), told);
        t.do_(|machine, now, _| machine.device_stalled(now, transfer));
        let took = t.took().into_iter();
        let stalled = took.filter(|action| matches!(action, Action::LeaseStalled(_)));
        assert_eq!(stalled.count(), 1);
        let again = Ask { transfer: super::transfer(51), attempt: 2, ..ask(1, 1) };
        assert_eq!(t.refusal(Message::Pull(again)), Refusal::DeviceStalled);
        t.do_(|machine, now, _| machine.fenced(now, transfer));
        assert_eq!(t.ended(), [LeaseEnd::DeviceStalled]);
    }
}

#[test]
fn that_stall_fail_a_job_that_keeps_its_blocks() {
    let (mut t, asked) = asking(Direction::Pull);
    let (transfer, path) = (asked.transfer, Path::QUIC);
    t.hear(Message::Accepted { transfer, path });
    t.took();
    t.do_(|machine, now, _| machine.device_stalled(now, transfer));
    assert_eq!(aborted(&t), [Failure::DeviceStalled]);
    let took = t.took();
    let stalled = took.iter().any(|action| matches!(action, Action::JobStalled(..)));
    assert!(stalled, "{took:?}");
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    assert_eq!(t.job(), Err(JobError::DeviceStalled { rank: Rank(0) }));
}

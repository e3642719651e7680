//! The owner of a pull lease as data source.

use super::*;

fn key_of(n: u8) -> LeaseKey {
    spec(n, 0, Direction::Pull, true).key
}

#[test]
fn commit_and_complete() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    let id = ask(1, 1).transfer;
    t.hear(Message::Pull(ask(1, 1)));
    let Action::Read(flow) = t.took().remove(0) else {
        panic!("reads at once");
    };
    assert_eq!((flow.bytes, flow.path), (route(false).bytes, Some(Path::QUIC)));
    t.said.clear();
    t.do_(|machine, now, _| machine.stream_sent(now, id, flow.bytes - 1));
    assert!(t.said.is_empty(), "a byte is left");
    t.do_(|machine, now, _| machine.stream_sent(now, id, 1));
    let (streams, bytes) = (2, flow.bytes);
    assert_eq!(t.said.pop(), Some(Message::Commit { transfer: id, streams, bytes }));
    t.hear(Message::Landed { transfer: id });
    assert!(matches!(t.took()[..], [Action::Finished { .. }]));
    let again = Ask { transfer: transfer(99), attempt: 2, ..ask(1, 1) };
    assert_eq!(t.refusal(Message::Pull(again)), Refusal::Consumed);
    t.hear(done(1, &[0]));
    assert!(t.ended().is_empty());
    t.hear(done(1, &[1]));
    assert_eq!(t.ended(), [LeaseEnd::Completed]);
    assert!(!t.machine.is_idle(), "rank 1 may still be opened, and is to hear of it then");
    t.wait(secs(10));
    assert!(t.machine.is_idle());
}

#[test]
fn never_commit_what_is_over() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    let id = ask(1, 1).transfer;
    t.hear(Message::Pull(ask(1, 1)));
    t.said.clear();
    // The hard bound has passed, and no timer has fired.
    t.now = t.now + secs(31);
    t.do_(|machine, now, _| machine.stream_sent(now, id, route(false).bytes));
    let end = LeaseEnd::Expired;
    let failure = Failure::LeaseEnded { end };
    assert_eq!(t.said, [Message::Abort { transfer: id, failure }]);
    assert!(t.ended().is_empty(), "not before the fence");
    t.do_(|machine, now, _| machine.fenced(now, id));
    assert_eq!(t.ended(), [LeaseEnd::Expired]);
}

#[test]
fn wait_for_the_prefill_and_say_so() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, false);
    let id = ask(1, 1).transfer;
    t.hear(Message::Pull(ask(1, 1)));
    assert!(t.took().is_empty(), "nothing is read yet");
    let on = Awaited::Prefill;
    assert_eq!(t.said.pop(), Some(Message::Waiting { transfer: id, on }));
    t.said.clear();
    t.wait(secs(12));
    assert_eq!(t.said.len(), 12, "every second");
    t.do_(|machine, now, _| machine.finish_prefill(now, key_of(1))).unwrap();
    assert!(matches!(&t.took()[..], [Action::Read(flow)] if flow.all_readable));
}

#[test]
fn read_layer_by_layer() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, false);
    t.machine.ready(key_of(1), 0, TOKENS).unwrap();
    let (request, plan) = (request(true), plan(true));
    t.hear(Message::Pull(Ask { request, plan, ..ask(1, 1) }));
    let actions = t.took();
    assert!(
        matches!(&actions[..], [Action::Read(flow)]
            if !flow.all_readable && flow.ready == [(0, TOKENS)]),
        "{actions:?}"
    );
    t.said.clear();
    t.do_(|machine, _, _| machine.ready(key_of(1), 1, 5)).unwrap();
    assert!(matches!(t.took()[..], [Action::Readable { layer: 1, tokens: 5, .. }]));
    let id = ask(1, 1).transfer;
    t.do_(|machine, now, _| machine.stream_sent(now, id, route(true).bytes));
    assert_eq!(t.said.len(), 0, "no commit before the prefill's end");
    t.do_(|machine, now, _| machine.finish_prefill(now, key_of(1))).unwrap();
    assert!(matches!(t.said.last(), Some(Message::Commit { .. })));
}

#[test]
fn fail_what_does_not_add_up() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    let id = ask(1, 1).transfer;
    t.hear(Message::Pull(ask(1, 1)));
    t.do_(|machine, now, _| machine.stream_sent(now, id, u64::MAX));
    assert!(matches!(t.said.last(), Some(Message::Abort { failure: Failure::Local { .. }, .. })));
}

#[test]
fn forget_a_commit_that_nobody_answers() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    let id = ask(1, 1).transfer;
    t.hear(Message::Pull(ask(1, 1)));
    t.do_(|machine, now, _| machine.stream_sent(now, id, route(false).bytes));
    t.took();
    t.wait(secs(120));
    assert!(matches!(t.took()[..], [Action::LeaseEnded { end: LeaseEnd::Expired, .. }, Action::Fence { .. }]));
    t.do_(|machine, now, _| machine.fenced(now, id));
    assert!(t.machine.is_idle());
}

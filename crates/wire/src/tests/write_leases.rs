//! The owner of a push lease as data destination.

use super::*;

fn whole(ask: &Ask, bytes: u64) -> (StreamHeader, StreamTrailer) {
    let header = StreamHeader { transfer: ask.transfer, nonce: ask.nonce, stream: 0, offset: 0, length: bytes };
    (header, StreamTrailer { length: bytes, crc: 5 })
}

fn push_done(ranks: &[u32]) -> Message {
    let Message::Notice(notice) = done(1, ranks) else {
        unreachable!();
    };
    let ticket = mint(&claims(1, Direction::Push));
    Message::Notice(Notice { ticket, ..notice })
}

#[test]
fn complete_with_everything_that_had_to_be_written() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Push, true);
    let push = push_ask(1, 1);
    t.hear(Message::Push(push.clone()));
    let Action::Receive(flow) = t.took().remove(0) else {
        panic!("receives before it says so");
    };
    let (header, trailer) = whole(&push, flow.bytes);
    let (streams, bytes) = (1, flow.bytes);
    let transfer = push.transfer;
    let stranger = agent("stranger");
    let admitted = t.do_(|machine, now, _| machine.admit(now, &stranger, &header));
    assert_eq!(admitted, Err(StreamRefusal::Unknown), "it is not the stranger's");
    let holder = agent("holder");
    t.do_(|machine, now, _| machine.admit(now, &holder, &header)).unwrap();
    t.do_(|machine, now, _| machine.stream_arrived(now, &header, &trailer, 5));
    let landed = t.answer(Message::Commit { transfer, streams, bytes });
    assert_eq!(landed, Some(Message::Landed { transfer }));
    let again = push_ask(1, 2);
    assert_eq!(t.refusal(Message::Push(again)), Refusal::Consumed);
    t.took();
    t.hear(push_done(&[0, 1]));
    assert_eq!(t.ended(), [LeaseEnd::Completed]);
}

#[test]
fn are_not_complete_because_somebody_says_so() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Push, true);
    t.hear(push_done(&[0, 1]));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
}

#[test]
fn that_are_over_are_fenced_first() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Push, true);
    let push = push_ask(1, 1);
    t.hear(Message::Push(push.clone()));
    let bytes = 10;
    let (header, _) = whole(&push, bytes);
    let holder = agent("holder");
    t.do_(|machine, now, _| machine.admit(now, &holder, &header)).unwrap();
    t.took();
    let key = spec(1, 0, Direction::Push, true).key;
    t.do_(|machine, now, _| machine.cancel_lease(now, key)).unwrap();
    assert!(matches!(t.took()[..], [Action::Fence { .. }]));
    let late = StreamHeader { stream: 1, offset: 5, length: 1, ..header };
    let admitted = t.do_(|machine, now, _| machine.admit(now, &holder, &late));
    assert_eq!(admitted, Err(StreamRefusal::Unknown));
    t.do_(|machine, now, _| machine.fenced(now, push.transfer));
    assert_eq!(t.ended(), [LeaseEnd::Cancelled]);
}

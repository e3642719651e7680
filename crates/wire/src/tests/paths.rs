//! Messages about paths, and transfers whose path is lost.

use super::*;
use crate::path::negotiation::encode;

fn offer(n: u8) -> Vec<u8> {
    let (socket, token) = (SocketName::of(n.into()), Token([n; 32]));
    encode(&ring::Word { socket, token })
}

fn word(path: Path, word: Vec<u8>) -> Message {
    Message::Path { path, word }
}

impl Table {
    fn report(&mut self, path: Path, report: Report) {
        self.do_(|machine, now, conn| machine.path_reported(now, conn, path, report));
    }
}

fn read_over_a_ring() -> Table {
    let mut t = Table::owner_with("near", Options::default());
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    let (transfer, path) = (ask(1, 1).transfer, Path::RING);
    assert_eq!(t.said.last(), Some(&Message::Accepted { transfer, path }));
    t
}

#[test]
fn lanes_are_offered_to_who_has_dialled() {
    let mut t = Table::owner();
    let wanted = encode(&quic::Word::Wanted { lanes: 9 });
    t.hear(word(Path::QUIC, wanted.clone()));
    t.hear(word(Path::QUIC, wanted));
    assert_eq!(t.ordered, [(Path::QUIC, Order::Offer { lanes: 4 })]);
    let (ports, nonce) = (vec![7], Nonce([0; 16]));
    let word = encode(&quic::Word::Offer { ports, nonce });
    t.report(Path::QUIC, Report::Offered { word: word.clone() });
    assert_eq!(t.worded, [(Path::QUIC, word)]);
}

#[test]
fn a_connection_ends_with_its_lanes() {
    let mut t = read_over_a_ring();
    let (way, ending) = (Way::Out, Ending::Failed("cut".into()));
    t.report(Path::QUIC, Report::Ended { way, ending });
    let hung_up = |action: &Action<_>| matches!(action, Action::Close(_, CloseReason::PathFailed(_)));
    assert!(t.took().iter().any(hung_up));
    assert_eq!(t.machine.gauges().sessions, 0);
}

#[test]
fn a_ring_is_offered_and_what_waits_for_one_that_is_lost_goes_over_the_network() {
    let mut t = read_over_a_ring();
    assert_eq!(t.ordered, [(Path::RING, Order::Offer { lanes: 1 })]);
    t.report(Path::RING, Report::Offered { word: offer(1) });
    assert_eq!(t.worded, [(Path::RING, offer(1))]);
    t.took();
    let (way, ending) = (Way::Out, Ending::Lapsed);
    t.report(Path::RING, Report::Ended { way, ending });
    let fence = |action: &Action<_>| matches!(action, Action::Fence { .. });
    assert!(t.took().iter().any(fence), "what waited for it has failed");
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    t.hear(Message::Pull(ask(1, 2)));
    let (transfer, path) = (ask(1, 2).transfer, Path::QUIC);
    assert_eq!(t.said.last(), Some(&Message::Accepted { transfer, path }));
    // The other direction is not lost.
    t.lease(2, 0, Direction::Push, true);
    t.hear(Message::Push(push_ask(2, 1)));
    let (transfer, path) = (push_ask(2, 1).transfer, Path::RING);
    assert_eq!(t.said.last(), Some(&Message::Accepted { transfer, path }));
}

#[test]
fn a_ring_is_fetched_only_where_a_transfer_waits_for_it() {
    let mut t = Table::owner_with("near", Options::default());
    for n in 0..100 {
        t.hear(word(Path::RING, offer(n)));
    }
    assert_eq!(t.ordered, []);
    t.lease(2, 0, Direction::Push, true);
    t.hear(Message::Push(push_ask(2, 1)));
    assert_eq!(t.ordered, [(Path::RING, Order::Meet { word: offer(99) })]);
    t.hear(word(Path::RING, offer(3)));
    assert_eq!(t.ordered.len(), 1, "one is on its way");
}

#[test]
fn a_transfer_that_is_over_waits_for_no_path() {
    let mut t = read_over_a_ring();
    let (transfer, failure) = (ask(1, 1).transfer, Failure::Cancelled);
    t.hear(Message::Abort { transfer, failure });
    t.do_(|machine, now, _| machine.fenced(now, transfer));
    t.took();
    let (way, ending) = (Way::Out, Ending::Lapsed);
    t.report(Path::RING, Report::Ended { way, ending });
    t.hear(Message::Pull(ask(1, 2)));
    let (transfer, path) = (ask(1, 2).transfer, Path::RING);
    assert_eq!(t.said.last(), Some(&Message::Accepted { transfer, path }), "it is none the worse");
    assert_eq!(t.ordered.len(), 2, "and another ring is offered");
}

#[test]
fn what_peers_say_of_paths_that_are_not_there_is_not_heard() {
    let mut t = Table::owner();
    t.hear(word(Path::RING, offer(1)));
    t.hear(word(Path::new(9).unwrap(), vec![1]));
    t.report(Path::RING, Report::Offered { word: offer(1) });
    assert!(t.ordered.is_empty() && t.worded.is_empty() && t.took().is_empty());
    t.hear(word(Path::QUIC, vec![0; MAX_WORD + 1]));
    assert!(matches!(t.took()[..], [Action::Close { .. }]));
}

#[test]
fn a_transfer_whose_path_is_not_there_fails_at_once() {
    let mut t = read_over_a_ring();
    t.lease(2, 0, Direction::Pull, true);
    let (way, ending) = (Way::Out, Ending::Failed("torn".into()));
    t.report(Path::RING, Report::Ended { way, ending });
    t.took();
    let only_ring = Ask { paths: PathSet::from(Path::RING), ..ask(2, 1) };
    let (wanted, offered) = (only_ring.paths, PathSet::QUIC);
    let refusal = Refusal::PathUnavailable { wanted, offered };
    assert_eq!(t.refusal(Message::Pull(only_ring)), refusal);
}

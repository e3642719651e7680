//! Greetings: the exchange before any other message.

use super::*;

fn unwelcome(roles: Roles, hello: Hello) -> HelloRefusal {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.greet("holder", roles, hello);
    let closed = matches!(t.took()[..], [Action::Close { .. }]);
    assert!(closed && t.machine.gauges() == Gauges::default());
    match t.said.pop() {
        Some(Message::Unwelcome(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn say_why_somebody_is_not_welcome() {
    let ours = VERSIONS;
    let theirs = (VERSIONS.1 + 1, 9);
    let future = Hello { versions: theirs, ..hello("holder") };
    assert_eq!(unwelcome(Roles::all(), future), HelloRefusal::Version { ours, theirs });
    let east = ClusterName::new("east").unwrap();
    let stranger = Hello { cluster: east.clone(), ..hello("holder") };
    let (ours, theirs) = (cluster(), east);
    assert_eq!(unwelcome(Roles::all(), stranger), HelloRefusal::Cluster { ours, theirs });
    assert_eq!(unwelcome(Roles::all(), hello("somebody-else")), HelloRefusal::Agent);
    let (rank, ranks) = (Rank(2), 2);
    let greedy = Hello { ranks: vec![rank], ..hello("holder") };
    assert_eq!(unwelcome(Roles::all(), greedy), HelloRefusal::Rank { rank, ranks });
    // An agent without memory learns the number of ranks from the hello alone.
    let mut without_memory = Table::lonely("scheduler", Shape { ranks: 0, ..OWNER }, Options::default());
    without_memory.greet("holder", Roles::all(), Hello { ranks: vec![Rank(u32::MAX)], ..hello("holder") });
    let refusal = HelloRefusal::Rank { rank: Rank(u32::MAX), ranks: u32::MAX };
    assert_eq!(without_memory.said.last(), Some(&Message::Unwelcome(refusal)));
    let mixed_up = Hello { deployment: DeploymentDigest([9; 32]), ..hello("holder") };
    assert!(matches!(unwelcome(Roles::all(), mixed_up), HelloRefusal::Document { .. }));
}

fn dialled(meant: &str, says: &str) -> Table {
    let mut t = Table::lonely("owner/0", OWNER, Options::default());
    t.dialled(meant);
    t.hear(Message::Hello(hello(says)));
    t
}

#[test]
fn instances_of_one_service_are_told_apart() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    let reborn = |name: &str, n| Hello { incarnation: life(n), ..hello(name) };
    // One certificate, two instances, each with a life of its own.
    for (name, n) in [("holder/a", 1), ("holder/b", 2), ("holder/a", 1)] {
        t.connect("holder", Roles::all());
        t.hear(Message::Hello(reborn(name, n)));
        if t.said.last() == Some(&Message::DocumentWanted) {
            let document = HOLDER.document();
            t.hear(Message::Document { document });
        }
        t.hear(Message::Welcome);
    }
    assert_eq!(t.machine.gauges().sessions, 3);
    assert!(t.took().is_empty(), "nobody is taken for another's past");
    assert_eq!(t.machine.gauges().agents, 2);
}

#[test]
fn an_instance_is_of_the_service_that_its_certificate_proves() {
    for (certificate, says) in [("holder", "owner/a"), ("holder", "holders/a"), ("holder", "hold")] {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.connect(certificate, Roles::all());
        t.hear(Message::Hello(hello(says)));
        let refusal = HelloRefusal::Agent;
        assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal)), "{says}");
        assert_eq!(t.machine.gauges(), Gauges::default());
    }
}

#[test]
fn an_address_that_has_passed_to_another_instance_is_noticed() {
    let mut t = dialled("holder/a", "holder/b");
    let found = agent("holder/b");
    let refusal = HelloRefusal::OtherInstance { found };
    assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal)));
    assert!(matches!(t.took()[..], [Action::Close { .. }]));
    let mut t = dialled("holder/a", "holder/a");
    assert_eq!(t.said.pop(), Some(Message::DocumentWanted));
}

#[test]
fn two_of_one_name_are_told_the_cause() {
    let mut t = Table::lonely("owner/0", OWNER, Options::default());
    t.connect("owner", Roles::all());
    t.hear(Message::Hello(hello("owner/0")));
    let Some(Message::Unwelcome(refusal)) = t.said.pop() else {
        panic!("it is not refused");
    };
    assert_eq!(refusal, HelloRefusal::OwnName);
    let later = life(2);
    for refusal in [refusal, HelloRefusal::Superseded { later }] {
        assert!(refusal.to_string().contains("`instance`"), "{refusal}");
    }
    let error = JobError::Restarted { agent: agent("holder/a"), found: life(2), ticket: life(1) };
    assert!(error.to_string().contains("`instance`"), "{error}");
}

#[test]
fn connections_are_bounded_by_agent_and_by_service() {
    let options = Options { connections_per_agent: 2, connections_per_service: 4, ..Options::default() };
    let mut t = Table::lonely("owner", OWNER, options);
    let mut arrive = |name: &str| {
        t.connect("holder", Roles::all());
        t.hear(Message::Hello(hello(name)));
        match (&t.took()[..], t.said.last()) {
            ([], _) => None,
            (_, Some(Message::Unwelcome(HelloRefusal::Crowded { limit }))) => Some(*limit),
            (did, said) => panic!("{did:?} {said:?}"),
        }
    };
    assert_eq!([arrive("holder/a"), arrive("holder/a")], [None; 2]);
    assert_eq!(arrive("holder/a"), Some(2), "the third of one agent");
    assert_eq!([arrive("holder/b"), arrive("holder/c")], [None; 2]);
    assert_eq!(arrive("holder/d"), Some(4), "the fifth of one service");
    t.connect("other", Roles::all());
    t.hear(Message::Hello(hello("other/a")));
    assert!(t.took().is_empty());
}

#[test]
fn name_what_cannot_be_bridged() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    let document = vec![1, 2, 3];
    let deployment = DeploymentDigest::of(&document);
    t.greet("holder", Roles::all(), Hello { deployment, ..hello("holder") });
    // The helper has sent another document; do it again with this one.
    t.connect("holder", Roles::all());
    t.hear(Message::Hello(Hello { deployment, ..hello("holder") }));
    let refused = t.answer(Message::Document { document });
    let Some(Message::Unwelcome(HelloRefusal::Specs(difference))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(difference.to_string(), "document cannot be bridged: 2 bytes here, 3 bytes there");
}

#[test]
fn hand_documents_over_once() {
    let mut t = Table::owner();
    assert_eq!(t.said.iter().filter(|m| **m == Message::DocumentWanted).count(), 1);
    t.said.clear();
    t.greet("other", Roles::all(), hello("other"));
    assert!(!t.said.contains(&Message::DocumentWanted), "it is known by its digest");
}

#[test]
fn keep_to_their_turn() {
    for early in [Message::Pull(ask(1, 1)), done(1, &[0]), Message::Document { document: Vec::new() }] {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.connect("holder", Roles::all());
        t.hear(early);
        assert!(matches!(t.took()[..], [Action::Close(_, CloseReason::Violation(_))]));
    }
    let mut t = Table::owner();
    t.hear(Message::Hello(hello("holder")));
    assert!(matches!(t.took()[..], [Action::Close { .. }]));
}

#[test]
fn end_in_time() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.connect("holder", Roles::all());
    t.wait(secs(6));
    let reason = CloseReason::HelloLate;
    assert!(matches!(&t.took()[..], [Action::Close(_, r)] if *r == reason));
}

#[test]
fn drop_duplicates_and_notice_gaps() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    let envelope = Envelope { sequence: t.sequence, message: Message::Pull(ask(1, 1)) };
    t.said.clear();
    t.do_(|machine, now, conn| machine.on_message(now, conn, envelope));
    assert!(t.said.is_empty());
    t.took();
    t.sequence += 1;
    t.hear(done(1, &[0]));
    let fenced_then_closed = |actions: &[Action<_>]| matches!(actions, [Action::Close { .. }, Action::Fence { .. }]);
    assert!(fenced_then_closed(&t.took()));
}

#[test]
fn let_a_later_life_replace_an_earlier() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    t.took();
    let first = t.conn;
    let reborn = Hello { incarnation: life(2), ..hello("holder") };
    t.greet("holder", Roles::all(), reborn);
    let actions = t.took();
    assert!(
        matches!(&actions[..], [
            Action::Close(conn, CloseReason::Replaced),
            Action::Fence(fenced),
        ] if *conn == first && *fenced == ask(1, 1).transfer),
        "{actions:?}"
    );
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended(), [LeaseEnd::PeerLost]);
    t.greet("holder", Roles::all(), hello("holder"));
    let later = life(2);
    let refusal = HelloRefusal::Superseded { later };
    assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal)));
}

/// A limit of its own applies to a certificate's connections whose agent is unknown, and the refusal states that limit.
#[test]
fn unnamed_connections_are_told_their_limit() {
    let options = Options { unnamed_per_service: 2, ..Options::default() };
    let mut t = Table::lonely("owner", OWNER, options);
    t.connect("holder", Roles::all());
    t.hear(Message::Hello(hello("holder/a")));
    for _ in 0..3 {
        t.connect("holder", Roles::all());
    }
    let refusal = HelloRefusal::Crowded { limit: 2 };
    assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal.clone())));
    assert!(matches!(&t.took()[..], [Action::Close(_, CloseReason::Refused(why))] if *why == refusal));
}

//! What happens before anything else may be said.

use super::*;

fn unwelcome(permits: Permits, hello: Hello) -> HelloRefusal {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.greet("holder", permits, hello);
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
    let theirs = (2, 9);
    let future = Hello {
        versions: theirs,
        ..hello("holder")
    };
    assert_eq!(
        unwelcome(Permits::ALL, future),
        HelloRefusal::Version { ours, theirs }
    );
    let east = ClusterName::new("east").unwrap();
    let stranger = Hello {
        cluster: east.clone(),
        ..hello("holder")
    };
    let (ours, theirs) = (cluster(), east);
    assert_eq!(
        unwelcome(Permits::ALL, stranger),
        HelloRefusal::Cluster { ours, theirs }
    );
    assert_eq!(
        unwelcome(Permits::ALL, hello("somebody-else")),
        HelloRefusal::Agent
    );
    let (rank, ranks) = (Rank(2), 2);
    let greedy = Hello {
        ranks: vec![rank],
        ..hello("holder")
    };
    assert_eq!(
        unwelcome(Permits::ALL, greedy),
        HelloRefusal::Rank { rank, ranks }
    );
    let mixed_up = Hello {
        deployment: DeploymentDigest([9; 32]),
        ..hello("holder")
    };
    assert!(matches!(
        unwelcome(Permits::ALL, mixed_up),
        HelloRefusal::Document { .. }
    ));
}

#[test]
fn name_what_cannot_be_bridged() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    let document = vec![1, 2, 3];
    let deployment = DeploymentDigest::of(&document);
    t.greet(
        "holder",
        Permits::ALL,
        Hello {
            deployment,
            ..hello("holder")
        },
    );
    // The helper has sent another document; do it again with this one.
    t.connect("holder", Permits::ALL);
    t.hear(Message::Hello(Hello {
        deployment,
        ..hello("holder")
    }));
    let refused = t.answer(Message::Document { document });
    let Some(Message::Unwelcome(HelloRefusal::Specs(difference))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        difference.to_string(),
        "document cannot be bridged: 2 bytes here, 3 bytes there"
    );
}

#[test]
fn hand_documents_over_once() {
    let mut t = Table::owner();
    assert_eq!(
        t.said
            .iter()
            .filter(|m| **m == Message::DocumentWanted)
            .count(),
        1
    );
    t.said.clear();
    t.greet("other", Permits::ALL, hello("other"));
    assert!(
        !t.said.contains(&Message::DocumentWanted),
        "it is known by its digest"
    );
}

#[test]
fn keep_to_their_turn() {
    for early in [
        Message::Pull(ask(1, 1)),
        done(1, &[0]),
        Message::Document {
            document: Vec::new(),
        },
    ] {
        let mut t = Table::lonely("owner", OWNER, Options::default());
        t.connect("holder", Permits::ALL);
        t.hear(early);
        assert!(matches!(
            t.took()[..],
            [Action::Close {
                reason: CloseReason::Violation(_),
                ..
            }]
        ));
    }
    let mut t = Table::owner();
    t.hear(Message::Hello(hello("holder")));
    assert!(matches!(t.took()[..], [Action::Close { .. }]));
}

#[test]
fn end_in_time() {
    let mut t = Table::lonely("owner", OWNER, Options::default());
    t.connect("holder", Permits::ALL);
    t.wait(secs(6));
    let reason = CloseReason::HelloLate;
    assert!(matches!(&t.took()[..], [Action::Close { reason: r, .. }] if *r == reason));
}

#[test]
fn drop_duplicates_and_notice_gaps() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    let envelope = Envelope {
        sequence: t.sequence,
        message: Message::Pull(ask(1, 1)),
    };
    t.said.clear();
    t.do_(|machine, now, conn| machine.on_message(now, conn, envelope));
    assert!(t.said.is_empty());
    t.took();
    t.sequence += 1;
    t.hear(done(1, &[0]));
    let fenced_then_closed =
        |actions: &[Action<_>]| matches!(actions, [Action::Close { .. }, Action::Fence { .. }]);
    assert!(fenced_then_closed(&t.took()));
}

#[test]
fn let_a_later_life_replace_an_earlier() {
    let mut t = Table::owner();
    t.lease(1, 0, Direction::Pull, true);
    t.hear(Message::Pull(ask(1, 1)));
    t.took();
    let first = t.conn;
    let reborn = Hello {
        incarnation: life(2),
        ..hello("holder")
    };
    t.greet("holder", Permits::ALL, reborn);
    let actions = t.took();
    assert!(
        matches!(&actions[..], [
            Action::Close { conn, reason: CloseReason::Replaced },
            Action::Fence { transfer: fenced },
        ] if *conn == first && *fenced == ask(1, 1).transfer),
        "{actions:?}"
    );
    t.do_(|machine, now, _| machine.fenced(now, ask(1, 1).transfer));
    assert_eq!(t.ended(), [LeaseEnd::PeerLost]);
    t.greet("holder", Permits::ALL, hello("holder"));
    let later = life(2);
    let refusal = HelloRefusal::Superseded { later };
    assert_eq!(t.said.pop(), Some(Message::Unwelcome(refusal)));
}

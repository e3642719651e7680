//! Sources survive their destinations.

use std::time::Duration;

use transload_tests::cluster::{Side, idle, ticket_of};
use transload_transfer::Direction;

use crate::blow::Blow;
use crate::peer::Peer;
use crate::request::{RANKS, ends, open};
use crate::siege::Siege;

/// Two other processes pull what this one holds; one or both die.
#[test]
fn a_source_survives_its_destinations() {
    a_source_survives(&Siege::new(2, None));
}

pub(crate) fn a_source_survives(siege: &Siege) {
    let cache = siege.cache(Side::Prefill);
    siege.lay(async || {
        let owner = siege.agent("prefill-0", &cache, &RANKS[..2]);
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut pullers = [
                Peer::start(siege, "decode-0", &RANKS[..2], incarnation).await,
                Peer::start(siege, "decode-1", &RANKS[2..], incarnation).await,
            ];
            let mut blow = Blow::default();
            loop {
                let request = siege.request();
                cache.fill(request);
                let leases = open(&owner, &cache, &RANKS[..2], request, Direction::Pull).await;
                let ticket = ticket_of(&owner, request, Direction::Pull);
                let mut done = true;
                let began = blow.begin(siege, pullers.each_ref());
                for puller in &mut pullers {
                    puller.say(&format!("move {request} {}", ticket.expose()));
                }
                for puller in &mut pullers {
                    done &= puller.hear().await.is_some_and(|said| {
                        assert!(!said.starts_with("wrong"), "round {round}: {said}");
                        said == format!("moved {request}")
                    });
                }
                let news = ends(leases, &cache, request).await;
                if done {
                    assert_eq!(news, "completed");
                } else {
                    assert!(blow.is_due(), "round {round}: nobody was killed");
                    siege.note(news);
                    break;
                }
                if blow.has_fallen() {
                    siege.note("idle".to_owned());
                    break;
                }
                blow.pass(began);
            }
            let victims = blow.victims();
            for puller in pullers {
                puller.ended(&victims, round);
            }
            idle(&owner).await;
            siege.over(round);
        }
        owner.shutdown(Duration::from_secs(1)).await;
    });
}

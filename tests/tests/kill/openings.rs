//! Write leases survive the death of the process that pushes into them.

use std::time::Duration;

use transload_tests::cluster::{Origins, Side, idle, ticket_of};
use transload_transfer::Direction;

use crate::blow::Blow;
use crate::peer::Peer;
use crate::request::{RANKS, ends, nothing_is_written, open};
use crate::siege::Siege;

/// Another process pushes into this one's write leases, and dies.
#[test]
fn an_opening_survives_who_pushes_into_it() {
    let siege = Siege::new(3, None);
    let cache = siege.cache(Side::Decode);
    let origins = Origins::new();
    siege.lay(async || {
        let owner = siege.agent("decode-0", &cache, &RANKS);
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut pusher = Peer::start(&siege, "prefill-0", &RANKS[..2], incarnation).await;
            let mut blow = Blow::default();
            loop {
                let request = siege.request();
                cache.clear();
                let openings = open(&owner, &cache, &RANKS, request, Direction::Push).await;
                let ticket = ticket_of(&owner, request, Direction::Push);
                let began = blow.begin(&siege, [&pusher]);
                pusher.say(&format!("move {request} {}", ticket.expose()));
                let said = pusher.hear().await;
                let news = ends(openings, &cache, request).await;
                match news.as_str() {
                    "completed" => origins.check(&cache, request, &RANKS).unwrap(),
                    _ => nothing_is_written(&cache, round).await,
                }
                if said.is_none() {
                    siege.note(news);
                    break;
                }
                assert_eq!((said, news), (Some(format!("moved {request}")), "completed".into()));
                if blow.has_fallen() {
                    siege.note("idle".to_owned());
                    break;
                }
                blow.pass(began);
            }
            blow.victims();
            drop(pusher);
            idle(&owner).await;
            siege.over(round);
        }
        owner.shutdown(Duration::from_secs(1)).await;
    });
}

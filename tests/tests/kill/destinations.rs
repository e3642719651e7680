//! Destinations survive their sources.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Origins, Side, claims_of, idle, mint, transfer_of};
use transload_transfer::{Direction, Path};

use crate::blow::Blow;
use crate::peer::Peer;
use crate::request::{RANKS, SOON, kind, nothing_is_written};
use crate::siege::{Siege, choose_path};

/// Two agents pull what two other processes hold, of which one or both die.
#[test]
fn destinations_survive_their_sources() {
    destinations_survive(&Siege::new(1, None), &[&RANKS[..2], &RANKS[2..]]);
}

/// One agent pulls from both sources, over a ring from each.
#[test]
fn a_destination_of_two_rings_survives_its_sources() {
    destinations_survive(&Siege::new(4, Some(Path::RING)), &[&RANKS]);
}

pub(crate) fn destinations_survive(siege: &Siege, shares: &[&'static [Rank]]) {
    let cache = siege.cache(Side::Decode);
    let origins = Origins::new();
    siege.lay(async || {
        let names = ["decode-0", "decode-1"].into_iter().zip(shares);
        let pullers = names.map(|(name, ranks)| (siege.agent(name, &cache, ranks), *ranks));
        let pullers: Vec<_> = pullers.collect();
        for round in siege.rounds() {
            let incarnation = siege.incarnation();
            let mut sources = [
                Peer::start(siege, "prefill-0", &RANKS[..1], incarnation).await,
                Peer::start(siege, "prefill-1", &RANKS[1..2], incarnation).await,
            ];
            let (owner, addresses) = (sources[0].owner, sources.each_ref().map(Peer::address));
            let mut blow = Blow::default();
            let mut news = "idle".to_owned();
            loop {
                let request = siege.request();
                let mut leased = true;
                for source in &mut sources {
                    source.say(&format!("lease {request}"));
                }
                for source in &mut sources {
                    leased &= source.hear().await.is_some();
                }
                if !leased {
                    break;
                }
                let addresses = addresses.to_vec();
                let claims = claims_of(request, Direction::Pull, owner, incarnation, addresses);
                let ticket = mint(&pullers[0].0.ticket_key(), &claims);
                cache.clear();
                let began = blow.begin(siege, sources.each_ref());
                let pulls = pullers.iter().map(|(agent, ranks)| {
                    let mut pull = transfer_of(Side::Decode, ranks, ticket.clone(), request);
                    choose_path(siege.path, &mut pull);
                    let agent = agent.clone();
                    tokio::spawn(async move { agent.pull(pull).await })
                });
                let mut failed = false;
                for (pull, (_, ranks)) in pulls.collect::<Vec<_>>().into_iter().zip(&pullers) {
                    match pull.await.unwrap() {
                        Ok(report) => {
                            origins.check(&cache, request, ranks).unwrap();
                            siege.took_its_path(&report).unwrap();
                        }
                        Err(error) => {
                            news = kind(&error);
                            failed = true;
                        }
                    }
                }
                if failed {
                    assert!(blow.is_due(), "round {round}: nobody was killed: {news}");
                    assert!(began.elapsed() < SOON, "round {round}: {:?}", began.elapsed());
                    nothing_is_written(&cache, round).await;
                    break;
                }
                blow.pass(began);
            }
            siege.note(news);
            let victims = blow.victims();
            for source in sources {
                source.ended(&victims, round);
            }
            for (agent, _) in &pullers {
                idle(agent).await;
            }
            siege.over(round);
        }
        for (agent, _) in pullers {
            agent.shutdown(Duration::from_secs(1)).await;
        }
    });
}

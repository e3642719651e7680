//! A process survives another one whose GPU uses slots of their ring: one is killed while its GPU stalls, and one loses
//! its GPU. It uses the fake driver, which stalls on command.

use std::time::Duration;

use tokio::time::timeout;
use transload_tests::cluster::{Origins, Side, claims_of, idle, mint, ticket_of, transfer_of};
use transload_tests::fake_cuda::run;
use transload_transfer::{Direction, Path, TransferError};

use crate::other::Fault;
use crate::peer::Peer;
use crate::request::{RANKS, SOON, ends, kind, nothing_is_written, open};
use crate::siege::{Siege, choose_path};

/// The faults of three other processes, one after another.
const FAULTS: [Option<Fault>; 3] = [Some(Fault::Holds), Some(Fault::Loses), None];

/// Makes operations of a GPU slow enough to stall in the middle.
const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "3000")];

/// This process sends to the others.
fn a_source_survives(test: u64, path: Path) {
    let siege = Siege::on_gpu(test, path);
    let cache = siege.cache(Side::Prefill);
    siege.lay(async || {
        let owner = siege.agent("prefill-0", &cache, &RANKS[..2]);
        for fault in FAULTS {
            let mut puller = Peer::start(&siege, "decode-0", &RANKS, siege.incarnation()).await;
            let request = siege.request();
            cache.fill(request);
            let leases = open(&owner, &cache, &RANKS[..2], request, Direction::Pull).await;
            let ticket = ticket_of(&owner, request, Direction::Pull);
            if let Some(fault) = fault {
                puller.say(fault.name());
            }
            puller.say(&format!("move {request} {}", ticket.expose()));
            let said = puller.hear().await.unwrap();
            let mut victims = Vec::new();
            match fault {
                Some(Fault::Holds) => {
                    assert_eq!(said, "holds");
                    victims.push(puller.id());
                    puller.kill();
                }
                Some(Fault::Loses) => assert_eq!(said, "failed: device_lost"),
                None => assert_eq!(said, format!("moved {request}")),
            }
            let news = ends(leases, &cache, request).await;
            assert_eq!(news == "completed", fault.is_none(), "{fault:?}: {news}");
            puller.ended(&victims, 0);
            idle(&owner).await;
        }
        owner.shutdown(Duration::from_secs(1)).await;
    });
}

/// This process receives from the others.
fn a_destination_survives(test: u64, path: Path) {
    let siege = Siege::on_gpu(test, path);
    let (cache, origins) = (siege.cache(Side::Decode), Origins::new());
    siege.lay(async || {
        let agent = siege.agent("decode-0", &cache, &RANKS);
        for fault in FAULTS {
            let incarnation = siege.incarnation();
            let mut source = Peer::start(&siege, "prefill-0", &RANKS[..2], incarnation).await;
            let request = siege.request();
            if let Some(fault) = fault {
                source.say(fault.name());
            }
            source.say(&format!("lease {request}"));
            assert_eq!(source.hear().await.unwrap(), format!("leased {request}"));
            let addresses = vec![source.address(); 2];
            let claims = claims_of(request, Direction::Pull, source.owner, incarnation, addresses);
            let ticket = mint(&agent.ticket_key(), &claims);
            cache.clear();
            let mut pull = transfer_of(Side::Decode, &RANKS, ticket, request);
            choose_path(siege.path, &mut pull);
            let pulling = tokio::spawn({
                let agent = agent.clone();
                async move { agent.pull(pull).await }
            });
            let mut victims = Vec::new();
            if fault == Some(Fault::Holds) {
                assert_eq!(source.hear().await.unwrap(), "holds");
                victims.push(source.id());
                source.kill();
            }
            let pulled = timeout(SOON, pulling).await.expect("it ends").unwrap();
            match fault {
                Some(fault) => {
                    let error = pulled.unwrap_err();
                    is_said(fault, &error);
                    nothing_is_written(&cache, 0).await;
                }
                None => {
                    origins.check(&cache, request, &RANKS).unwrap();
                    siege.took_its_path(&pulled.unwrap()).unwrap();
                }
            }
            source.ended(&victims, 0);
            idle(&agent).await;
        }
        agent.shutdown(Duration::from_secs(1)).await;
    });
}

/// Checks that a dead peer sends nothing, and that one that has lost its GPU reports it.
fn is_said(fault: Fault, error: &TransferError) {
    match fault {
        Fault::Holds => drop(kind(error)),
        Fault::Loses => assert_eq!(error.kind(), "device_lost", "{error}"),
    }
}

#[test]
fn sources_survive_over_a_staging_ring() {
    run("slots::sources_survive_over_a_staging_ring", SLOW, |_| {
        a_source_survives(13, Path::RING);
    });
}

#[test]
fn sources_survive_over_a_ring_on_the_device() {
    run("slots::sources_survive_over_a_ring_on_the_device", SLOW, |_| {
        a_source_survives(14, Path::DEVICE);
    });
}

#[test]
fn destinations_survive_over_a_staging_ring() {
    run("slots::destinations_survive_over_a_staging_ring", SLOW, |_| {
        a_destination_survives(15, Path::RING);
    });
}

#[test]
fn destinations_survive_over_a_ring_on_the_device() {
    run("slots::destinations_survive_over_a_ring_on_the_device", SLOW, |_| {
        a_destination_survives(16, Path::DEVICE);
    });
}

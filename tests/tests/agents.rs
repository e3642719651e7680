//! Agents that pull and push over QUIC, in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use transload_layout::Rank;
use transload_tests::pair::{Pair, fill};
use transload_transfer::agent::{LeaseRequest, PullError};
use transload_transfer::content::Content;
use transload_transfer::ids::{Direction, LeaseSetId};
use transload_transfer::lease::LeaseEnd;
use transload_transfer::wire::{JobError, Path, PathSet};

#[tokio::test]
async fn a_pull_brings_every_byte_and_ends_the_leases() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([1; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let report = pair
        .dst
        .agent
        .pull(pair.request(ticket, &pair.dst))
        .await
        .unwrap();
    assert_eq!(report.bytes, 100 * 4 * 4 * 64);
    assert_eq!(pair.found(), expected);
    for lease in leases {
        assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    pair.dst.agent.shutdown(Duration::from_secs(5)).await;
    pair.src.agent.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_path_is_the_one_that_was_required() {
    let pair = Pair::default();
    let expected = pair.expected();
    for (set, paths, path) in [
        (LeaseSetId([11; 16]), PathSet::QUIC, Path::Quic),
        (LeaseSetId([12; 16]), PathSet::LOCAL, Path::Ring),
        (LeaseSetId([13; 16]), PathSet::ANY, Path::Ring),
    ] {
        for (seed, memory) in (1..).zip(&pair.dst.memories) {
            fill(memory, seed);
        }
        let leases = pair.leases(&pair.src, set, false).await;
        let ticket = pair.ticket(&pair.src, set, Direction::Pull);
        let mut request = pair.request(ticket, &pair.dst);
        request.paths = paths;
        let report = pair.dst.agent.pull(request).await.unwrap();
        assert!(
            report.routes.iter().all(|route| route.path == path),
            "{report:?}"
        );
        assert_eq!(pair.found(), expected);
        for lease in leases {
            assert_eq!(lease.ended().await.unwrap().end, LeaseEnd::Completed);
        }
    }
}

#[tokio::test]
async fn a_push_brings_every_byte_and_ends_the_openings() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([2; 16]);
    let openings = pair.leases(&pair.dst, set, true).await;
    let ticket = pair.ticket(&pair.dst, set, Direction::Push);
    pair.src
        .agent
        .push(pair.request(ticket, &pair.src))
        .await
        .unwrap();
    for opening in openings {
        assert_eq!(opening.ended().await.unwrap().end, LeaseEnd::Completed);
    }
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn layers_leave_as_they_are_ready() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([3; 16]);
    let mut leases = Vec::new();
    for rank in [Rank(0), Rank(1)] {
        let mut request = LeaseRequest::new(
            set,
            rank,
            pair.src.tables.clone(),
            pair.content,
            pair.tokens,
        );
        request.prefilled = false;
        leases.push(pair.src.agent.lease(request).await.unwrap().unwrap());
    }
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.by_layer = true;
    let pull = pair.dst.agent.start(request, true).await.unwrap();
    for layer in 0..4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for lease in &leases {
            lease.ready(layer, pair.tokens).await.unwrap();
        }
    }
    for lease in &leases {
        lease.finish_prefill().await.unwrap();
    }
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
}

#[tokio::test]
async fn a_pull_of_other_content_is_refused() {
    let pair = Pair::default();
    let before = pair.found();
    let set = LeaseSetId([4; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.content = Content::first(2, &[7, 7]).unwrap().digest();
    let refused = pair.dst.agent.pull(request).await.unwrap_err();
    assert!(
        matches!(refused, PullError::Job(JobError::Refused { .. })),
        "{refused}"
    );
    assert_eq!(pair.found(), before, "nothing was written");
    drop(leases);
}

#[tokio::test]
async fn a_consumed_ticket_is_refused() {
    let pair = Pair::default();
    let set = LeaseSetId([5; 16]);
    let leases = pair.leases(&pair.src, set, false).await;
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    pair.dst.agent.pull(request.clone()).await.unwrap();
    for lease in leases {
        lease.ended().await.unwrap();
    }
    assert!(pair.dst.agent.pull(request).await.is_err());
}

#[tokio::test]
async fn an_early_pull_waits_for_its_lease() {
    let pair = Pair::default();
    let expected = pair.expected();
    let set = LeaseSetId([6; 16]);
    let ticket = pair.ticket(&pair.src, set, Direction::Pull);
    let request = pair.request(ticket, &pair.dst);
    let pull = pair.dst.agent.start(request, true).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let leases = pair.leases(&pair.src, set, false).await;
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
    assert_eq!(
        BTreeSet::from_iter(leases.iter().map(|lease| lease.key().rank)).len(),
        2
    );
}

//! Pulls whose owner pushes, of agents over QUIC and on one host.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use transload_layout::Rank;
use transload_tests::cluster::all_end;
use transload_tests::pair::{Pair, Side};
use transload_transfer::{
    AgentOptions, Direction, Lease, LeaseEnd, LeaseRequest, LeaseSetId, Path, PathSet, PullRequest,
};

const LEASED: LeaseSetId = LeaseSetId([1; 16]);
const OPENED: LeaseSetId = LeaseSetId([2; 16]);

/// Returns a pull of all ranks of the destination, with write leases for the source.
fn request(pair: &Pair, leased: LeaseSetId, opened: LeaseSetId) -> PullRequest {
    let ticket = pair.ticket(&pair.src, leased, Direction::Pull);
    let mut request = pair.request(ticket, &pair.dst);
    request.into = Some(pair.ticket(&pair.dst, opened, Direction::Push));
    request
}

/// Returns leases of blocks that are still being computed, on all ranks of the source.
async fn unfinished(pair: &Pair) -> Vec<Lease> {
    let mut leases = Vec::new();
    for rank in [Rank(0), Rank(1)] {
        let tables = pair.src.tables.clone();
        let mut request = LeaseRequest::new(LEASED, rank, tables, pair.content, pair.tokens);
        request.prefilled = false;
        leases.push(pair.src.agent.lease(request).await.unwrap());
    }
    leases
}

/// Checks that nothing is left of a push except the notices for peers that may be gone.
async fn is_over(side: &Side) {
    let gauges = side.agent.gauges().await.unwrap();
    assert_eq!((gauges.leases, gauges.transfers, gauges.jobs), (0, 0, 0));
}

#[tokio::test]
async fn brings_every_byte_by_every_path() {
    for (paths, path) in [(PathSet::QUIC, Path::QUIC), (PathSet::LOCAL, Path::RING)] {
        let pair = Pair::default();
        let expected = pair.expected();
        let leases = pair.leases(&pair.src, LEASED, false).await;
        let mut request = request(&pair, LEASED, OPENED);
        request.paths = paths;
        let report = pair.dst.agent.pull(request).await.unwrap();
        assert_eq!(pair.found(), expected, "{path}");
        assert_eq!(report.bytes, 100 * 4 * 4 * 64);
        assert!(report.routes.iter().all(|route| route.path == path), "{report:?}");
        assert!(report.queued <= report.took);
        all_end(leases, LeaseEnd::Completed).await;
        let (to, from) = (&pair.dst.agent, &pair.src.agent);
        let (to, from) = (to.metrics().await.unwrap(), from.metrics().await.unwrap());
        assert_eq!((to.pulls.begun, to.pulls.succeeded), (1, 1));
        let routes = report.routes.len() as u64;
        assert_eq!((to.received.succeeded, from.served.succeeded), (routes, routes));
        is_over(&pair.dst).await;
        is_over(&pair.src).await;
    }
}

/// Ended pushes do not need the other side any more.
#[tokio::test]
async fn leaves_its_connection_to_idle() {
    let mut options = AgentOptions { keep_idle: Duration::from_millis(10), ..AgentOptions::default() };
    options.wire.early_wait = Duration::from_millis(20);
    // Idle connections are looked for four times as often.
    options.wire.stall = Duration::from_secs(1);
    for impatient in [0, 1] {
        let mut each = [AgentOptions::default(), AgentOptions::default()];
        each[impatient] = options.clone();
        let pair = Pair::with_each_options(each);
        let leases = pair.leases(&pair.src, LEASED, false).await;
        let pull = pair.dst.agent.pull(request(&pair, LEASED, OPENED));
        pull.await.unwrap();
        all_end(leases, LeaseEnd::Completed).await;
        let side = [&pair.src, &pair.dst][impatient];
        while side.agent.gauges().await.unwrap().sessions > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn comes_layer_by_layer() {
    let pair = Pair::default();
    let expected = pair.expected();
    let leases = unfinished(&pair).await;
    let mut request = request(&pair, LEASED, OPENED);
    request.request.by_layer = true;
    let pull = pair.dst.agent.start_pull(request).await.unwrap();
    for layer in 0..4 {
        sleep(Duration::from_millis(20)).await;
        for lease in &leases {
            lease.ready(layer, pair.tokens).await.unwrap();
        }
    }
    for lease in &leases {
        lease.finish_prefill().await.unwrap();
    }
    pull.finish().await.unwrap();
    assert_eq!(pair.found(), expected);
    all_end(leases, LeaseEnd::Completed).await;
}

#[tokio::test]
async fn that_is_given_up_gives_the_blocks_back_on_both_sides() {
    let pair = Pair::default();
    let leases = unfinished(&pair).await;
    let keeper = Arc::new(());
    let kept = Arc::downgrade(&keeper);
    let mut request = request(&pair, LEASED, OPENED);
    request.keeper = Some(keeper);
    let pull = pair.dst.agent.start_pull(request).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    assert!(kept.upgrade().is_some());
    pull.cancel().await.unwrap();
    let given_up = pull.finish().await.unwrap_err();
    assert_eq!(given_up.kind(), "cancelled", "{given_up}");
    assert!(kept.upgrade().is_none());
    // Long before they would expire.
    all_end(leases, LeaseEnd::Cancelled).await;
    is_over(&pair.dst).await;
}

#[tokio::test]
async fn fails_when_the_owner_is_gone() {
    let pair = Pair::default();
    let leases = unfinished(&pair).await;
    let pull = pair.dst.agent.start_pull(request(&pair, LEASED, OPENED));
    let pull = pull.await.unwrap();
    sleep(Duration::from_millis(100)).await;
    pair.src.agent.shutdown(Duration::ZERO).await;
    let failed = pull.finish().await.unwrap_err();
    let kinds = ["failed", "unreachable", "peer_lost"];
    assert!(kinds.contains(&failed.kind()), "{failed}");
    drop(leases);
    is_over(&pair.dst).await;
}

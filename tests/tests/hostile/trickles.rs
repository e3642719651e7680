//! Transfers that always make progress and never end: a byte at a time.

use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Side, impatient, lease_of, open, pushed, ticket_of, transfer_of};
use transload_transfer::wire::Failure;
use transload_transfer::wire::message::Message;
use transload_transfer::{Direction, Incarnation, JobError, LeaseEnd, Path, Roles, TransferError};

use crate::peer::{Hostile, ask_with};
use crate::source::{Source, Stream, Way};
use crate::town::{Destination, RANKS, Town, issue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_trickles_ends_by_its_timeout() {
    let to = Destination::in_a(Town::new());
    for (request, path) in [(4, Path::QUIC), (6, Path::RING)] {
        let mut source = Source::new(&to.town, &path.to_string(), Roles::all());
        // Longer than an attempt may stand still.
        source.timeout = Duration::from_millis(2500);
        let mut way = None;
        let mut asked = 0;
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                asked += 1;
                Way::accept(hostile, &ask, path, &mut way).await;
                if let Some(way) = &mut way {
                    way.trickle(Stream::whole(&ask)).await;
                }
            })
            .await;
        let timed_out = matches!(ended, Err(TransferError::Job(JobError::TimedOut { .. })));
        assert!(timed_out, "{path}: {ended:?}");
        assert_eq!(asked, 1, "{path}: it moved all the time");
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_trickles_ends_by_the_hard_bound() {
    let to = Destination::in_a(Town::new());
    let request = 4;
    let mut opening = lease_of(Side::Decode, Rank(0), request);
    // So short that it would be over at once if bytes did not keep it alive.
    opening.ttl = Duration::from_millis(500);
    opening.hard_bound = Duration::from_secs(3);
    let opened = open(&to.agent, Direction::Push, opening).await;
    let ticket = ticket_of(&to.agent, request, Direction::Push);
    let mut hostile = Hostile::welcome(to.town.hostile(Roles::all()), &to.agent, Side::Prefill).await;
    let ask = ask_with(1, ticket, request);
    hostile.say(Message::Push(ask.clone())).await;
    let accepted = |message: &Message| matches!(message, Message::Accepted { .. }).then_some(());
    hostile.wait_for(accepted).await.unwrap();
    let (lane, _) = hostile.lane().await;
    let mut way = Way::Lane(lane);
    let began = std::time::Instant::now();
    let aborted = async {
        loop {
            if let Message::Abort { failure, .. } = hostile.hear().await.unwrap() {
                return failure;
            }
        }
    };
    let (failure, ()) = tokio::join!(aborted, way.trickle(Stream::whole(&ask)));
    let lasted = began.elapsed();
    assert_eq!(failure, Failure::LeaseEnded { end: LeaseEnd::Expired });
    // Not a measure of anything: it says which of the two bounds it was.
    assert!(lasted > Duration::from_millis(1500), "{lasted:?}");
    let ended = opened.ended().await.unwrap();
    assert_eq!(ended.end, LeaseEnd::Expired);
    to.is_quiet(request).await;
    drop((way, hostile));

    // The same blocks serve the next one.
    let next = Incarnation::new(3, 3);
    let honest = issue(&to.town.authority, "prefill-1", Roles::all());
    let ranks = [Rank(0), Rank(1)];
    let honest = to.town.owner_cache.agent(honest, ranks, next, impatient());
    let mut openings = Vec::new();
    for rank in RANKS {
        let opening = lease_of(Side::Decode, rank, 2);
        openings.push(open(&to.agent, Direction::Push, opening).await);
    }
    to.cache.clear();
    let ticket = ticket_of(&to.agent, 2, Direction::Push);
    honest.push(pushed(transfer_of(Side::Prefill, &ranks, ticket, 2))).await.unwrap();
    for opening in openings {
        let ended = opening.ended().await.unwrap();
        assert_eq!(ended.end, LeaseEnd::Completed);
    }
    to.origins.check(&to.cache, 2, &RANKS).unwrap();
    honest.shutdown(Duration::from_secs(1)).await;
    to.stays_well().await;
}

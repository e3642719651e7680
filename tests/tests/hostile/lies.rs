//! Sources that send wrong bytes, over lanes and over rings.

use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::wire::{Awaited, Failure};
use transload_transfer::{Path, Roles};

use crate::peer::Hostile;
use crate::source::{Source, Stream, Way, failure, is_broken_by};
use crate::town::{Destination, RANKS, Town};

/// The way in which a source sends the bytes of a route wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Bytes that were damaged on their way.
    Checksum,
    /// A trailer of another length.
    Length,
    /// The stream does not end in time.
    TooLong,
    /// A stream that ends early.
    TooShort,
    /// Bytes beyond the end of the route.
    Outside,
    /// The same bytes come in two streams.
    Twice,
    /// A commit of bytes that never came.
    Nothing,
    /// Fewer streams than there were.
    Miscounted,
    /// Fewer bytes than planned, in the commit.
    Less,
}

impl Lie {
    const ALL: [Lie; 9] = [
        Lie::Checksum,
        Lie::Length,
        Lie::TooLong,
        Lie::TooShort,
        Lie::Outside,
        Lie::Twice,
        Lie::Nothing,
        Lie::Miscounted,
        Lie::Less,
    ];

    /// Returns whether this is what the destination has to find.
    fn is_found(self, failure: &Failure) -> bool {
        match self {
            Lie::Checksum => is_broken_by(failure, "CRC32C"),
            Lie::Length => is_broken_by(failure, "and then said it had"),
            Lie::TooLong => is_broken_by(failure, "went on after"),
            Lie::TooShort => is_broken_by(failure, "ended after"),
            Lie::Outside | Lie::Twice | Lie::Miscounted => *failure == Failure::Streams,
            // A commit may overtake its streams, so only time can tell that there are none.
            Lie::Nothing => matches!(failure, Failure::Stalled { on: Awaited::Bytes { .. } }),
            Lie::Less => matches!(failure, Failure::Length { .. }),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lies_over_lanes_is_not_believed() {
    no_lie_is_believed(Path::QUIC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lies_over_a_ring_is_not_believed() {
    no_lie_is_believed(Path::RING).await;
}

async fn no_lie_is_believed(path: Path) {
    let to = Destination::in_a(Town::new());
    // Requests of which transfers take the network only, and others.
    let first = if path == Path::QUIC { 4 } else { 6 };
    let source = Source::new(&to.town, "honest", Roles::all());
    let mut way = None;
    let report = source
        .pulled(&to, &RANKS, first, async |hostile, ask| {
            Way::accept(hostile, &ask, path, &mut way).await;
            if let Some(way) = &mut way {
                way.send(Stream::whole(&ask)).await;
            }
            commit(hostile, &ask, 1, Stream::whole(&ask).header.length).await;
        })
        .await
        .expect("who does not lie is believed");
    assert!(report.routes.iter().all(|route| route.path == path));
    to.origins.check_canaries(&to.cache, first).unwrap();
    for (request, lie) in (first..).step_by(4).zip(Lie::ALL) {
        let source = Source::new(&to.town, &format!("{lie:?}").to_lowercase(), Roles::all());
        let mut way = None;
        let ended = source
            .pulled(&to, &RANKS, request, async |hostile, ask| {
                Way::accept(hostile, &ask, path, &mut way).await;
                if let Some(way) = &mut way {
                    tell(lie, hostile, &ask, way).await;
                }
            })
            .await;
        let failure = failure(ended);
        assert!(lie.is_found(&failure), "{lie:?}: {failure}");
        println!("{lie:?}: {failure}");
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

async fn tell(lie: Lie, hostile: &mut Hostile, ask: &Ask, way: &mut Way) {
    let good = Stream::whole(ask);
    let bytes = good.header.length;
    let mut stream = good.clone();
    let (mut streams, mut committed) = (1, bytes);
    match lie {
        Lie::Checksum => stream.trailer.crc ^= 1,
        Lie::Length => stream.trailer.length -= 1,
        Lie::TooLong => stream.behind = 1000,
        Lie::TooShort => stream.sent /= 2,
        Lie::Outside => stream.header.offset = 64,
        Lie::Twice => streams = 2,
        Lie::Nothing => {}
        Lie::Miscounted => streams = 0,
        Lie::Less => committed -= 1,
    }
    if lie != Lie::Nothing {
        way.send(stream).await;
    }
    // The same bytes once more; and a ring hears from the next stream that one has ended early.
    let again = matches!((lie, &way), (Lie::Twice, _) | (Lie::TooShort, Way::Ring(_)));
    if again {
        let mut second = good;
        second.header.stream = 1;
        way.send(second).await;
    }
    commit(hostile, ask, streams, committed).await;
}

async fn commit(hostile: &mut Hostile, ask: &Ask, streams: u32, bytes: u64) {
    let transfer = ask.transfer;
    hostile.say(Message::Commit { transfer, streams, bytes }).await;
}

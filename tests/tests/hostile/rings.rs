//! Rings that are handed over to an agent and are malformed.

use std::os::fd::OwnedFd;

use transload_layout::Rank;
use transload_tests::words;
use transload_transfer::plan::ids::Nonce;
use transload_transfer::wire::Failure;
use transload_transfer::wire::message::{Ask, Message};
use transload_transfer::{Path, Roles};

use crate::handover::{self, Gift, memfd, ring};
use crate::peer::Hostile;
use crate::source::{Source, commit, failure, halves, is_broken_by};
use crate::town::{Destination, Town};

/// The number and the size of the slots that agents give their rings. A ring also has a page for each end.
const SHAPE: (u32, u32) = (8, 256 << 10);
const BYTES: u64 = 8 * (256 << 10) + 8192;

/// Agrees to a transfer over a ring, and says where to fetch it.
async fn offer(hostile: &mut Hostile, ask: &Ask, (socket, token): (String, (Nonce, Nonce))) {
    let (transfer, path) = (ask.transfer, Path::RING);
    hostile.say(Message::Accepted { transfer, path }).await;
    hostile.say(words::ring_offered(&socket, token)).await;
}

/// One malformed offer of each kind. The tests of the handover have all variants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_is_not_as_announced_is_never_used() {
    let to = Destination::in_a(Town::new());
    let gift = |offer: Vec<u8>, descriptors: Vec<OwnedFd>| Gift { proof: true, offer, descriptors, shrink: None };
    let good = ring(SHAPE.0, SHAPE.1);
    type Make<'a> = Box<dyn Fn() -> Gift + 'a>;
    let cases: Vec<(&str, &str, Make<'_>)> = vec![
        (
            "who does not know the token",
            "does not hold the token",
            Box::new(|| Gift { proof: false, ..gift(good.clone(), vec![memfd(BYTES, true)]) }),
        ),
        (
            "a memfd that shrinks",
            "lacks seals",
            Box::new(|| Gift { shrink: Some(0), ..gift(good.clone(), vec![memfd(BYTES, false)]) }),
        ),
        ("a memfd shorter than announced", "announced were", Box::new(|| gift(good.clone(), vec![memfd(4096, true)]))),
        ("nothing at all", "too slow", Box::new(|| gift(vec![], vec![]))),
    ];
    for (number, (what, why, make)) in cases.iter().enumerate() {
        let request = 6 + 4 * number as u64;
        let source = Source::new(&to.town, &number.to_string(), Roles::all());
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                offer(hostile, &ask, handover::serve(make())).await;
                commit(hostile, &ask).await;
            })
            .await;
        let failure = failure(ended);
        println!("{what}: {failure}");
        assert!(is_broken_by(&failure, why), "{what}: {failure}");
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_do_not_exist_hand_nothing_over() {
    let to = Destination::in_a(Town::new());
    let nobody = format!("transload-{}", "0".repeat(32));
    for (request, socket, why) in [
        (6, nobody, Some("no process listens")),
        // What cannot be a name of ours is no offer: the honest one may still come.
        (10, "/proc/self/mem".to_owned(), None),
    ] {
        let source = Source::new(&to.town, &request.to_string(), Roles::all());
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                offer(hostile, &ask, (socket.clone(), halves(&[1; 32]))).await;
            })
            .await;
        let failure = failure(ended);
        let found = match why {
            Some(why) => is_broken_by(&failure, why),
            None => matches!(failure, Failure::Stalled { .. }),
        };
        assert!(found, "{socket:?}: {failure}");
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

//! Memory that is lent to an agent, and is not what it has to be: no read of ours may fault, and none
//! of it is believed.

use std::os::fd::OwnedFd;
use std::time::Duration;

use transload_layout::Rank;
use transload_tests::cluster::{Cache, Side, TOKENS};
use transload_transfer::identity::Roles;
use transload_transfer::ids::{Nonce, TransferId};
use transload_transfer::plan::{BlockTable, Plan, Request, Side as End};
use transload_transfer::transport::local::handover::{Expected, Limits, Link, Listener, Token};
use transload_transfer::wire::message::{Ask, LaneMessage, Message};
use transload_transfer::wire::{Failure, Path};

use crate::handover::{self, Gift, memfd, memories};
use crate::peer::Hostile;
use crate::source::{Source, failure, halves, is_broken_by, route_bytes};
use crate::town::{Destination, Town};

/// An honest lender, which others here differ from in one thing each.
pub(crate) struct Lender {
    pub(crate) cache: Cache,
    listener: Listener,
    request: u64,
}

impl Lender {
    /// One who lends what belongs to a request.
    pub(crate) fn new(request: u64) -> Self {
        let cache = Cache::lendable(Side::Prefill);
        cache.fill(request);
        let listener = Listener::bind(Limits::default()).unwrap();
        Self {
            cache,
            listener,
            request,
        }
    }

    /// Accepts, and says that the memory is lent.
    pub(crate) async fn accept(hostile: &mut Hostile, ask: &Ask) {
        let (transfer, path) = (ask.transfer, Path::Shared);
        hostile.say(Message::Accepted { transfer, path }).await;
        hostile.say(Message::Lent { transfer }).await;
    }

    /// The same, and says the blocks as well.
    pub(crate) async fn accept_with_blocks(&self, hostile: &mut Hostile, ask: &Ask) {
        Self::accept(hostile, ask).await;
        let (first, blocks) = self.blocks(ask);
        say_blocks(hostile, ask.transfer, 0, first, blocks).await;
    }

    /// Lends the memory of a rank: says where it can be fetched, and hands it over.
    pub(crate) async fn lend(&self, hostile: &mut Hostile, rank: Rank) -> Link {
        let expected = self.offer(hostile, rank).await;
        self.hand_over(expected, rank).await
    }

    /// Says where the memory of a rank can be fetched.
    async fn offer(&self, hostile: &mut Hostile, rank: Rank) -> Expected {
        let token = Token::random().unwrap();
        let expected = self.listener.expect(&token).unwrap();
        let offer = (self.listener.name().to_string(), halves(token.as_bytes()));
        say_memory(hostile, offer, rank, 0, 1).await;
        expected
    }

    /// Hands it over.
    async fn hand_over(&self, expected: Expected, rank: Rank) -> Link {
        let connection = expected.connection(Duration::from_secs(5)).await.unwrap();
        connection.lend(&[self.cache.shared(rank)]).await.unwrap()
    }

    /// The blocks of a transfer, in the one piece that an honest lender sends.
    fn blocks(&self, ask: &Ask) -> (u64, Vec<u32>) {
        let (src, dst) = (Side::Prefill.deployment(), Side::Decode.deployment());
        let plan = Plan::compile(&src, &dst, &Request::tokens(TOKENS)).unwrap();
        let touched = plan.table_entries(0, End::Source);
        let tables = Side::Prefill.tables(self.request);
        let BlockTable::List(list) = &tables.0[0] else {
            unreachable!("the tables of a cluster are lists")
        };
        let blocks = list[touched.start as usize..touched.end as usize].to_vec();
        assert_eq!((ask.start, ask.tokens), (0, TOKENS));
        (touched.start, blocks)
    }
}

pub(crate) async fn say_memory(
    hostile: &mut Hostile,
    (socket, token): (String, (Nonce, Nonce)),
    rank: Rank,
    first: u32,
    count: u32,
) {
    let memory = LaneMessage::Memory {
        socket,
        token,
        rank,
        first,
        count,
    };
    hostile.say(Message::Lanes(memory)).await;
}

pub(crate) async fn say_blocks(
    hostile: &mut Hostile,
    transfer: TransferId,
    group: u32,
    first: u64,
    blocks: Vec<u32>,
) {
    let blocks = LaneMessage::Blocks {
        transfer,
        group,
        first,
        blocks,
    };
    hostile.say(Message::Lanes(blocks)).await;
}

/// Hears that all was copied; `None` where it was given up instead.
pub(crate) async fn taken(hostile: &mut Hostile) -> Option<()> {
    let taken = |message: &Message| matches!(message, Message::Taken { .. }).then_some(());
    hostile.wait_for(taken).await
}

pub(crate) async fn commit(hostile: &mut Hostile, ask: &Ask) {
    let (transfer, bytes) = (ask.transfer, route_bytes(ask));
    let streams = 1;
    let commit = Message::Commit {
        transfer,
        streams,
        bytes,
    };
    hostile.say(commit).await;
}

/// What has nothing to do with any transfer, or with this one: all of it is passed over.
pub(crate) async fn noise(hostile: &mut Hostile, of: TransferId) {
    let nowhere = || ("nowhere".to_owned(), (Nonce([0; 16]), Nonce([0; 16])));
    let other = TransferId([0xAB; 16]);
    for (rank, first, count) in [
        (0, 0, 0),
        (0, 0, 17),
        (0, u32::MAX, u32::MAX),
        (0, 1, 1),
        (1, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        say_memory(hostile, nowhere(), Rank(rank), first, count).await;
    }
    for transfer in [other, TransferId([0; 16])] {
        say_blocks(hostile, transfer, 0, 0, vec![3; 8192]).await;
        say_blocks(hostile, transfer, u32::MAX, u64::MAX, vec![u32::MAX; 8192]).await;
        hostile.say(Message::Lent { transfer }).await;
        hostile.say(Message::Taken { transfer }).await;
    }
    for transfer in [of, other] {
        let copying = LaneMessage::Copying { transfer };
        hostile.say(Message::Lanes(copying)).await;
        hostile.say(Message::Landed { transfer }).await;
    }
    hostile.say(Message::Taken { transfer: of }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_is_not_as_announced_is_never_read() {
    let to = Destination::in_a(Town::new());
    let bytes = Cache::lendable(Side::Prefill).shared(Rank(0));
    let bytes = bytes.regions().map(|(_, bytes)| bytes as u64).sum::<u64>();
    let gift = |offer: Vec<u8>, descriptors: Vec<OwnedFd>| Gift {
        proof: true,
        offer,
        descriptors,
        shrink: None,
    };
    let one = memories(&[&[bytes]]);
    type Make<'a> = Box<dyn Fn() -> Gift + 'a>;
    let cases: Vec<(&str, &str, Make<'_>)> = vec![
        (
            "who does not know the token",
            "does not hold the token",
            Box::new(|| Gift {
                proof: false,
                ..gift(one.clone(), vec![memfd(bytes, true)])
            }),
        ),
        (
            "garbage",
            "malformed",
            Box::new(|| gift(vec![0xFF; 60], vec![memfd(bytes, true)])),
        ),
        (
            "a ring",
            "something else than was agreed",
            Box::new(|| gift(handover::ring(8, 256 << 10), vec![memfd(bytes, true)])),
        ),
        (
            "no descriptor",
            "1 descriptors announced, 0 came",
            Box::new(|| gift(one.clone(), vec![])),
        ),
        (
            "too many descriptors",
            "1 descriptors announced, 2 came",
            Box::new(|| gift(one.clone(), vec![memfd(bytes, true), memfd(bytes, true)])),
        ),
        (
            "a file",
            "no memfd",
            Box::new(|| {
                let file = std::fs::File::open("/proc/self/exe").unwrap();
                gift(one.clone(), vec![file.into()])
            }),
        ),
        (
            "a memfd that shrinks",
            "lacks seals",
            Box::new(|| Gift {
                shrink: Some(0),
                ..gift(one.clone(), vec![memfd(bytes, false)])
            }),
        ),
        (
            "a memfd shorter than announced",
            "announced were",
            Box::new(|| gift(one.clone(), vec![memfd(4096, true)])),
        ),
        (
            "an empty memfd",
            "announced were",
            Box::new(|| gift(one.clone(), vec![memfd(0, true)])),
        ),
        (
            "less memory than the layout takes",
            "bytes",
            Box::new(|| {
                gift(
                    memories(&[&[bytes - 4096]]),
                    vec![memfd(bytes - 4096, true)],
                )
            }),
        ),
        (
            "two allocations in place of one",
            "allocation",
            Box::new(|| {
                // The second begins at the next huge page.
                let lens: &[u64] = &[4096, bytes - 4096];
                let all = (2 << 20) + bytes - 4096;
                gift(memories(&[lens]), vec![memfd(all, true)])
            }),
        ),
        (
            "more memory than anybody maps",
            "bytes of shared memory",
            Box::new(|| gift(memories(&[&[1 << 40]]), vec![memfd(1 << 40, true)])),
        ),
        (
            "lengths that run over",
            "too large",
            Box::new(|| gift(memories(&[&[u64::MAX, u64::MAX]]), vec![memfd(bytes, true)])),
        ),
        (
            "nothing at all",
            "too slow",
            Box::new(|| gift(vec![], vec![])),
        ),
    ];
    for (number, (what, why, make)) in cases.iter().enumerate() {
        let request = 6 + 4 * number as u64;
        let source = Source::new(&to.town, &number.to_string(), Roles::all());
        let lender = Lender::new(request);
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                lender.accept_with_blocks(hostile, &ask).await;
                say_memory(hostile, handover::serve(make()), Rank(0), 0, 1).await;
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
async fn sockets_that_do_not_exist_lend_nothing() {
    let to = Destination::in_a(Town::new());
    let nobody = format!("transload-{}", "0".repeat(32));
    for (request, socket, why) in [
        (6, nobody, Some("nobody listens")),
        // What cannot be a name of ours is no offer: the honest one may still come.
        (10, "/proc/self/mem".to_owned(), None),
    ] {
        let source = Source::new(&to.town, &request.to_string(), Roles::all());
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                Lender::accept(hostile, &ask).await;
                let offer = (socket.clone(), halves(&[1; 32]));
                say_memory(hostile, offer, Rank(0), 0, 1).await;
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

/// What a lender does wrong with its block tables, where its memory is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tables {
    /// The second half before the first.
    OutOfOrder,
    /// One entry too many.
    TooLong,
    /// All of it twice.
    Again,
    /// Of a group that there is not.
    OtherGroup,
    /// A place that runs over.
    Overflow,
    /// A block beyond the last.
    Beyond,
    /// No block at all, where one is read.
    Unset,
    /// None, and a commit.
    Missing,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_do_not_fit_are_not_copied_by() {
    let to = Destination::in_a(Town::new());
    let cases = [
        (Tables::OutOfOrder, "does not fit in"),
        (Tables::TooLong, "does not fit in"),
        (Tables::Again, "does not fit in"),
        (Tables::OtherGroup, "does not fit in"),
        (Tables::Overflow, "does not fit in"),
        (Tables::Beyond, "block"),
        (Tables::Unset, "block"),
        (Tables::Missing, ""),
    ];
    for (number, (wrong, why)) in (0..).zip(cases) {
        let request = 6 + 4 * number;
        let source = Source::new(&to.town, &number.to_string(), Roles::all());
        let lender = Lender::new(request);
        let mut links = Vec::new();
        let ended = source
            .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
                Lender::accept(hostile, &ask).await;
                if links.is_empty() {
                    links.push(lender.lend(hostile, Rank(0)).await);
                }
                let id = ask.transfer;
                let (first, mut blocks) = lender.blocks(&ask);
                match wrong {
                    Tables::OutOfOrder => {
                        let behind = blocks.split_off(blocks.len() / 2);
                        let at = first + blocks.len() as u64;
                        say_blocks(hostile, id, 0, at, behind).await;
                        say_blocks(hostile, id, 0, first, blocks).await;
                    }
                    Tables::TooLong => {
                        blocks.push(0);
                        say_blocks(hostile, id, 0, first, blocks).await;
                    }
                    Tables::Again => {
                        // Short of the end, or it would be copied by at once.
                        let last = blocks.pop();
                        say_blocks(hostile, id, 0, first, blocks.clone()).await;
                        say_blocks(hostile, id, 0, first, blocks).await;
                        assert!(last.is_some());
                    }
                    Tables::OtherGroup => say_blocks(hostile, id, 1, first, blocks).await,
                    Tables::Overflow => {
                        say_blocks(hostile, id, 0, u64::MAX, blocks).await;
                    }
                    Tables::Beyond => {
                        blocks[1] = u32::MAX - 1;
                        say_blocks(hostile, id, 0, first, blocks).await;
                    }
                    Tables::Unset => {
                        blocks[1] = BlockTable::NONE;
                        say_blocks(hostile, id, 0, first, blocks).await;
                    }
                    Tables::Missing => {}
                }
                commit(hostile, &ask).await;
            })
            .await;
        let failure = failure(ended);
        println!("{wrong:?}: {failure}");
        let found = match wrong {
            // They may still be on their way, for all that the destination can tell.
            Tables::Missing => matches!(failure, Failure::Stalled { .. }),
            _ => is_broken_by(&failure, why),
        };
        assert!(found, "{wrong:?}: {failure}");
        to.is_quiet(request).await;
    }
    to.stays_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_about_lanes_is_passed_over() {
    let to = Destination::in_a(Town::new());
    let request = 6;
    let source = Source::new(&to.town, "noisy", Roles::all());
    let lender = Lender::new(request);
    let mut links = Vec::new();
    let report = source
        .pulled(&to, &[Rank(0)], request, async |hostile, ask| {
            noise(hostile, ask.transfer).await;
            Lender::accept(hostile, &ask).await;
            noise(hostile, ask.transfer).await;
            let (first, blocks) = lender.blocks(&ask);
            say_blocks(hostile, ask.transfer, 0, first, blocks).await;
            links.push(lender.lend(hostile, Rank(0)).await);
            if taken(hostile).await.is_some() {
                // What is copied once is not copied again.
                let transfer = ask.transfer;
                hostile.say(Message::Lent { transfer }).await;
                commit(hostile, &ask).await;
                noise(hostile, ask.transfer).await;
            }
        })
        .await
        .unwrap();
    assert!(report.routes.iter().all(|route| route.path == Path::Shared));
    to.origins.check(&to.cache, request, &[Rank(0)]).unwrap();
    to.stays_well().await;
}

//! The oracle of client connections: however the bytes are cut, they are followed as by a [slow reading](reading), and
//! a hyper [server](server) behind the stream reads the same requests.

pub(super) mod reading;
pub(super) mod server;

use self::reading::End;
use super::{Next, Refusal, Requests};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) heads: u64,
    pub(super) passed: usize,
    pub(super) refusal: Option<Refusal>,
    pub(super) in_body: bool,
    pub(super) upgrade: bool,
}

/// Checks the pieces one after the other, each together with the bytes that were held back before it.
pub(super) fn follow<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut requests = Requests::default();
    let (mut held, mut passed) = (Vec::new(), 0);
    let mut next = Next::More;
    for piece in pieces {
        held.extend_from_slice(piece);
        let checked = requests.check(&held, u64::MAX);
        held.drain(..checked.passed);
        passed += checked.passed;
        next = checked.next;
    }
    Outcome {
        heads: requests.heads(),
        passed,
        refusal: match next {
            Next::Refused(refusal) => Some(refusal),
            _ => None,
        },
        in_body: requests.in_body(),
        upgrade: next == Next::Upgrade,
    }
}

/// Panics unless the outcome of the bytes, whole and in these pieces, is that of the slow reading.
pub(crate) fn check(pieces: &[&[u8]]) {
    let bytes = pieces.concat();
    let whole = follow([&bytes[..]]);
    let reading = reading::read(&bytes);
    assert_eq!(whole.heads, reading.requests.len() as u64);
    assert_eq!(whole.passed, reading.passed);
    let end = match whole.refusal {
        _ if whole.upgrade => End::Upgrade,
        None => End::More,
        Some(_) if whole.in_body => End::BadBody,
        Some(refusal) => End::BadHead(refusal.status.as_u16()),
    };
    assert_eq!(end, reading.end, "{:?}", whole.refusal);
    assert_eq!(follow(pieces.iter().copied()), whole);
}

/// Panics unless a hyper server reads the slow reading's requests from these pieces: no request can be smuggled.
pub(crate) fn check_server(pieces: &[&[u8]]) {
    server::run(server::check(pieces));
}

//! How requests are followed: each rule by a case, everything against a slow reading of the whole bytes, and what hyper
//! makes of what passes.

mod cases;
mod oracle;
mod random;
mod server;

use super::{Next, Refusal, Requests};

/// What became of a connection's bytes.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    heads: u64,
    passed: usize,
    refusal: Option<Refusal>,
    in_body: bool,
    upgrade: bool,
}

/// Shows the pieces one after the other, each with what was held back before it.
fn follow<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut requests = Requests::default();
    let (mut held, mut passed) = (Vec::new(), 0);
    let mut next = Next::More;
    for piece in pieces {
        held.extend_from_slice(piece);
        let checked = requests.check(&held);
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

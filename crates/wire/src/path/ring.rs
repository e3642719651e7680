//! Negotiation of staging rings between two agents of one host.
//!
//! A source that is to send over a ring tells the peer where to fetch it: the name of its Unix socket and a token, over
//! the authenticated control connection. Once a transfer waits for the ring, the peer fetches it there, and receives
//! from it. Each direction has its own, independent ring, which is kept until the connection ends.
//!
//! An offer that is not fetched in time lapses. If the transfer that it was made for has ended by then, that is no
//! failure of the path: another offer is made for the next transfer, and a peer that came too late waits for that
//! offer.

mod word;

use std::collections::BTreeSet;

pub use word::{SocketName, SocketNameError, Token, Word};

use transload_plan::ids::TransferId;

use crate::path::Path;
use crate::path::negotiation::{Ending, Negotiation, Order, Report, Step, Steps, Traveller, Way, decode};

/// Negotiates the rings of one connection.
#[derive(Debug, Default)]
pub struct Rings {
    sending: Sending,
    receiving: Receiving,
}

#[derive(Debug, Default)]
struct Sending {
    /// Transfers that use the ring or wait for it, in order of arrival.
    transfers: Vec<TransferId>,
    /// The transfer that a ring was offered for. The peer may have fetched it since.
    offered: Option<TransferId>,
}

#[derive(Debug, Default)]
struct Receiving {
    transfers: BTreeSet<TransferId>,
    /// The last offer that was not fetched. It may have lapsed.
    offered: Option<Vec<u8>>,
    /// Whether a ring is there, or being fetched.
    met: bool,
}

impl Sending {
    /// Offers a ring for the first transfer that waits, unless one is offered.
    fn offer(&mut self, steps: &mut Steps) {
        if self.offered.is_none() {
            self.offered = self.transfers.first().copied();
            if self.offered.is_some() {
                steps.push(Step::Order(Order::Offer { lanes: 1 }));
            }
        }
    }

    fn ended(&mut self, ending: Ending, steps: &mut Steps) {
        let offered = self.offered.take();
        let waits = offered.is_some_and(|transfer| self.transfers.contains(&transfer));
        match ending {
            // The offer lapsed only because its transfer no longer waited. Others have come since, and the peer may
            // have been too late with the old offer.
            Ending::Lapsed if !waits => self.offer(steps),
            ending => {
                self.transfers.clear();
                steps.push(Step::Lose(Way::Out, ending.to_string()));
            }
        }
    }
}

impl Receiving {
    /// Fetches the offered ring, if a transfer waits for it and there is none. An offer alone is only remembered; if
    /// its transfer was cancelled, the offer serves the next one.
    fn meet(&mut self, steps: &mut Steps) {
        if self.met || self.transfers.is_empty() {
            return;
        }
        if let Some(word) = self.offered.take() {
            self.met = true;
            steps.push(Step::Order(Order::Meet { word }));
        }
    }

    fn ended(&mut self, ending: Ending, steps: &mut Steps) {
        self.met = false;
        match ending {
            // Another offer may have arrived meanwhile, or will.
            Ending::Lapsed => self.meet(steps),
            // A peer closes its rings before the connection. That is no failure while no transfer uses them.
            _ if self.transfers.is_empty() => {}
            ending => {
                self.transfers.clear();
                steps.push(Step::Lose(Way::In, ending.to_string()));
            }
        }
    }
}

impl Rings {
    /// Gives up rings in both directions until the connection ends.
    pub(in crate::path) fn lose(&mut self, why: &str, steps: &mut Steps) {
        *self = Self::default();
        for way in [Way::Out, Way::In] {
            steps.push(Step::Lose(way, why.to_owned()));
        }
    }

    pub(in crate::path) fn offered(&mut self, word: &[u8], steps: &mut Steps) {
        self.receiving.offered = Some(word.to_vec());
        self.receiving.meet(steps);
    }
}

impl Negotiation for Rings {
    fn path(&self) -> Path {
        Path::RING
    }

    fn begin(&mut self, traveller: Traveller, steps: &mut Steps) {
        match traveller.way {
            Way::Out => {
                self.sending.transfers.push(traveller.transfer);
                self.sending.offer(steps);
            }
            Way::In => {
                self.receiving.transfers.insert(traveller.transfer);
                self.receiving.meet(steps);
            }
        }
    }

    fn end(&mut self, transfer: TransferId) {
        self.sending.transfers.retain(|other| *other != transfer);
        self.receiving.transfers.remove(&transfer);
    }

    fn hear(&mut self, word: &[u8], steps: &mut Steps) {
        if decode::<Word>(word).is_some() {
            self.offered(word, steps);
        }
    }

    fn report(&mut self, report: Report, steps: &mut Steps) {
        match report {
            Report::Offered { word } => steps.push(Step::Say(word)),
            // A new connection gets new rings.
            Report::Ended { ending: ending @ Ending::Panicked, .. } => steps.push(Step::HangUp(ending.to_string())),
            Report::Ended { way, ending } => match way {
                Way::Out => self.sending.ended(ending, steps),
                Way::In => self.receiving.ended(ending, steps),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::negotiation::encode;

    fn all(steps: &mut Steps) -> Vec<Step> {
        std::iter::from_fn(|| steps.pop()).collect()
    }

    fn traveller(n: u8, way: Way) -> Traveller {
        let (transfer, lanes) = (TransferId([n; 16]), 1);
        Traveller { transfer, way, lanes }
    }

    fn word(n: u8) -> Vec<u8> {
        let (socket, token) = (SocketName::of(n.into()), Token([n; 32]));
        encode(&Word { socket, token })
    }

    fn ended(way: Way, ending: Ending) -> Report {
        Report::Ended { way, ending }
    }

    const OFFER: Step = Step::Order(Order::Offer { lanes: 1 });

    fn meet(n: u8) -> Step {
        Step::Order(Order::Meet { word: word(n) })
    }

    #[test]
    fn are_offered_once_for_all_that_wait() {
        let (mut rings, mut steps) = (Rings::default(), Steps::default());
        rings.begin(traveller(1, Way::Out), &mut steps);
        rings.begin(traveller(2, Way::Out), &mut steps);
        assert_eq!(all(&mut steps), [OFFER]);
        rings.report(Report::Offered { word: word(1) }, &mut steps);
        assert_eq!(all(&mut steps), [Step::Say(word(1))]);
    }

    #[test]
    fn that_lapse_are_offered_anew_unless_they_were_waited_for() {
        let (mut rings, mut steps) = (Rings::default(), Steps::default());
        rings.begin(traveller(1, Way::Out), &mut steps);
        rings.end(TransferId([1; 16]));
        rings.begin(traveller(2, Way::Out), &mut steps);
        assert_eq!(all(&mut steps), [OFFER], "one is offered already");
        rings.report(ended(Way::Out, Ending::Lapsed), &mut steps);
        assert_eq!(all(&mut steps), [OFFER], "for the second");
        rings.report(ended(Way::Out, Ending::Lapsed), &mut steps);
        let why = Ending::Lapsed.to_string();
        assert_eq!(all(&mut steps), [Step::Lose(Way::Out, why)]);
    }

    #[test]
    fn are_fetched_when_somebody_waits_for_them() {
        let (mut rings, mut steps) = (Rings::default(), Steps::default());
        rings.hear(&word(1), &mut steps);
        rings.hear(&word(2), &mut steps);
        assert_eq!(all(&mut steps), [], "nobody waits");
        rings.begin(traveller(1, Way::In), &mut steps);
        rings.begin(traveller(2, Way::In), &mut steps);
        assert_eq!(all(&mut steps), [meet(2)], "the last that was offered");
        rings.hear(&word(3), &mut steps);
        assert_eq!(all(&mut steps), [], "one is there");
        rings.report(ended(Way::In, Ending::Lapsed), &mut steps);
        assert_eq!(all(&mut steps), [meet(3)]);
        rings.report(ended(Way::In, Ending::Failed("torn".into())), &mut steps);
        assert_eq!(all(&mut steps), [Step::Lose(Way::In, "torn".into())]);
        rings.report(ended(Way::In, Ending::Failed("torn".into())), &mut steps);
        assert_eq!(all(&mut steps), [], "nothing goes over it");
    }

    #[test]
    fn of_other_names_are_never_fetched() {
        let (mut rings, mut steps) = (Rings::default(), Steps::default());
        rings.begin(traveller(1, Way::In), &mut steps);
        for socket in ["", "/run/dbus", "x11-0", "transload-0"] {
            rings.hear(&encode(&(socket, [0_u8; 32])), &mut steps);
        }
        let mut longer = word(1);
        longer.push(0);
        rings.hear(&longer, &mut steps);
        rings.hear(b"nonsense", &mut steps);
        assert_eq!(all(&mut steps), []);
    }

    #[test]
    fn whose_thread_has_panicked_take_the_connection_with_them() {
        let (mut rings, mut steps) = (Rings::default(), Steps::default());
        rings.report(ended(Way::In, Ending::Panicked), &mut steps);
        assert!(matches!(all(&mut steps)[..], [Step::HangUp(_)]));
    }
}

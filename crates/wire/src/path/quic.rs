//! Negotiation of lanes.
//!
//! The side that dialled the control connection opens the lanes, since it is known to reach the other. It asks where to
//! connect ([`Word::Wanted`]), gets ports and a nonce ([`Word::Offer`]), and connects. Streams go both ways over the
//! same lanes, so a source that was dialled just waits for them. Lanes are negotiated once for a connection, which is
//! useless without them.

use serde::{Deserialize, Serialize};
use transload_plan::ids::{Nonce, TransferId};

use crate::path::Path;
use crate::path::negotiation::{Negotiation, Order, Report, Step, Steps, Traveller, decode, encode};

/// A message of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// Asks where to connect lanes.
    Wanted {
        /// The number of lanes.
        lanes: u16,
    },
    /// Tells where to connect lanes.
    Offer {
        /// UDP ports at the host of the control endpoint.
        ports: Vec<u16>,
        /// The secret that assigns a lane to this connection.
        nonce: Nonce,
    },
}

/// Negotiates the lanes of one connection.
#[derive(Debug)]
pub struct Lanes {
    /// Whether this agent dialled the connection, and so opens the lanes.
    dialled: bool,
    most: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    None,
    /// Lanes were asked for, by this agent or by the peer.
    Wanted,
    /// Both agents know where the lanes are.
    Agreed,
}

impl Lanes {
    /// Negotiates at most `most` lanes, which this agent opens if it dialled the connection.
    pub fn new(dialled: bool, most: u16) -> Self {
        Self { dialled, most: most.max(1), state: State::None }
    }
}

impl Negotiation for Lanes {
    fn path(&self) -> Path {
        Path::QUIC
    }

    fn begin(&mut self, traveller: Traveller, steps: &mut Steps) {
        if self.dialled && self.state == State::None {
            self.state = State::Wanted;
            let lanes = traveller.lanes;
            steps.push(Step::Say(encode(&Word::Wanted { lanes })));
        }
    }

    fn end(&mut self, _transfer: TransferId) {}

    fn hear(&mut self, word: &[u8], steps: &mut Steps) {
        match decode(word) {
            // Accepted once, and only on the side that was dialled.
            Some(Word::Wanted { lanes }) if !self.dialled && self.state == State::None => {
                self.state = State::Wanted;
                let lanes = lanes.clamp(1, self.most);
                steps.push(Step::Order(Order::Offer { lanes }));
            }
            // Accepted once, and only if lanes were asked for.
            Some(Word::Offer { mut ports, nonce }) if self.dialled && self.state == State::Wanted => {
                self.state = State::Agreed;
                ports.truncate(self.most.into());
                let word = encode(&Word::Offer { ports, nonce });
                steps.push(Step::Order(Order::Meet { word }));
            }
            _ => {}
        }
    }

    fn report(&mut self, report: Report, steps: &mut Steps) {
        match report {
            Report::Offered { word } => {
                self.state = State::Agreed;
                steps.push(Step::Say(word));
            }
            Report::Ended { ending, .. } => steps.push(Step::HangUp(ending.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::negotiation::{Ending, Way};

    fn all(steps: &mut Steps) -> Vec<Step> {
        std::iter::from_fn(|| steps.pop()).collect()
    }

    fn traveller() -> Traveller {
        Traveller { transfer: TransferId([1; 16]), way: Way::In, lanes: 4 }
    }

    fn offer(ports: usize) -> Vec<u8> {
        let ports = vec![7; ports];
        let nonce = Nonce([1; 16]);
        encode(&Word::Offer { ports, nonce })
    }

    #[test]
    fn are_wanted_once_by_who_has_dialled() {
        let (mut dialled, mut steps) = (Lanes::new(true, 4), Steps::default());
        dialled.begin(traveller(), &mut steps);
        dialled.begin(traveller(), &mut steps);
        let wanted = encode(&Word::Wanted { lanes: 4 });
        assert_eq!(all(&mut steps), [Step::Say(wanted.clone())]);
        let mut other = Lanes::new(false, 2);
        other.begin(traveller(), &mut steps);
        assert_eq!(all(&mut steps), []);
        other.hear(&wanted, &mut steps);
        other.hear(&wanted, &mut steps);
        assert_eq!(all(&mut steps), [Step::Order(Order::Offer { lanes: 2 })]);
        let word = offer(2);
        other.report(Report::Offered { word: word.clone() }, &mut steps);
        assert_eq!(all(&mut steps), [Step::Say(word.clone())]);
        dialled.hear(&word, &mut steps);
        dialled.hear(&word, &mut steps);
        assert_eq!(all(&mut steps), [Step::Order(Order::Meet { word })]);
    }

    #[test]
    fn are_not_met_where_nobody_has_asked_for_them_and_no_more_than_allowed() {
        let (mut lanes, mut steps) = (Lanes::new(true, 2), Steps::default());
        lanes.hear(&offer(1), &mut steps);
        lanes.hear(&encode(&Word::Wanted { lanes: 1 }), &mut steps);
        lanes.hear(b"nonsense", &mut steps);
        lanes.hear(&[], &mut steps);
        assert_eq!(all(&mut steps), []);
        lanes.begin(traveller(), &mut steps);
        all(&mut steps);
        lanes.hear(&offer(400), &mut steps);
        let word = offer(2);
        assert_eq!(all(&mut steps), [Step::Order(Order::Meet { word })]);
    }

    #[test]
    fn take_the_connection_with_them() {
        let (mut lanes, mut steps) = (Lanes::new(true, 2), Steps::default());
        let ending = Ending::Failed("cut".into());
        let way = Way::Out;
        lanes.report(Report::Ended { way, ending }, &mut steps);
        assert_eq!(all(&mut steps), [Step::HangUp("cut".into())]);
    }
}

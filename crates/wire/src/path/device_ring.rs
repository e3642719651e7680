//! Negotiation of rings in device memory. It works as for staging rings, if both agents are on one GPU, or on two that
//! can access each other's memory.

mod word;

pub use word::{GpuId, Offer, Word};

use transload_plan::ids::TransferId;

use crate::path::Path;
use crate::path::negotiation::{Negotiation, Report, Step, Steps, Traveller, decode, encode};
use crate::path::ring::Rings;

/// Negotiates the rings of one connection.
#[derive(Debug)]
pub struct DeviceRings {
    gpu: GpuId,
    /// Other GPUs whose memory that GPU can access.
    reached: Vec<GpuId>,
    rings: Rings,
}

impl DeviceRings {
    /// Makes a negotiation for an agent whose memory lies on this GPU.
    pub fn new(gpu: GpuId) -> Self {
        Self { gpu, reached: Vec::new(), rings: Rings::default() }
    }

    /// Adds other GPUs whose memory that GPU can access.
    #[must_use]
    pub fn reaching(mut self, reached: Vec<GpuId>) -> Self {
        self.reached = reached;
        self
    }

    fn reaches(&self, gpu: GpuId) -> bool {
        gpu == self.gpu || self.reached.contains(&gpu)
    }
}

impl Negotiation for DeviceRings {
    fn path(&self) -> Path {
        Path::DEVICE
    }

    fn begin(&mut self, traveller: Traveller, steps: &mut Steps) {
        self.rings.begin(traveller, steps);
    }

    fn end(&mut self, transfer: TransferId) {
        self.rings.end(transfer);
    }

    fn hear(&mut self, word: &[u8], steps: &mut Steps) {
        let found = match decode::<Word>(word) {
            Some(Word::Offer(offer)) if self.reaches(offer.gpu) => {
                return self.rings.offered(word, steps);
            }
            Some(Word::Offer(offer)) => {
                steps.push(Step::Say(encode(&Word::Elsewhere(self.gpu))));
                offer.gpu
            }
            Some(Word::Elsewhere(gpu)) if gpu != self.gpu => gpu,
            _ => return,
        };
        // This holds for both directions, and until the connection ends.
        let why = format!("the peer's caches are on {found}, ours on {}, and one does not reach the other", self.gpu);
        self.rings.lose(&why, steps);
    }

    fn report(&mut self, report: Report, steps: &mut Steps) {
        self.rings.report(report, steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::negotiation::{Ending, Order, Way};
    use crate::path::ring::{self, SocketName, Token};

    const HERE: GpuId = GpuId([1; 16]);
    const THERE: GpuId = GpuId([2; 16]);

    fn all(steps: &mut Steps) -> Vec<Step> {
        std::iter::from_fn(|| steps.pop()).collect()
    }

    fn traveller(way: Way) -> Traveller {
        Traveller { transfer: TransferId([1; 16]), way, lanes: 1 }
    }

    fn offer(gpu: GpuId) -> Vec<u8> {
        let (socket, token) = (SocketName::of(1), Token([1; 32]));
        encode(&Word::Offer(Offer { gpu, slot_bytes: 1 << 20, fetch: ring::Word { socket, token } }))
    }

    fn lose_both(steps: &[Step]) -> bool {
        let lost = |way: Way| steps.iter().any(|s| matches!(s, Step::Lose(w, _) if *w == way));
        lost(Way::Out) && lost(Way::In) && steps.len() == 2
    }

    #[test]
    fn a_ring_on_our_gpu_is_fetched() {
        let (mut rings, mut steps) = (DeviceRings::new(HERE), Steps::default());
        rings.begin(traveller(Way::In), &mut steps);
        rings.hear(&offer(HERE), &mut steps);
        let word = offer(HERE);
        assert_eq!(all(&mut steps), [Step::Order(Order::Meet { word })]);
    }

    #[test]
    fn a_ring_on_a_gpu_that_ours_reaches_is_fetched() {
        let mut rings = DeviceRings::new(HERE).reaching(vec![THERE]);
        let mut steps = Steps::default();
        rings.begin(traveller(Way::In), &mut steps);
        rings.hear(&offer(THERE), &mut steps);
        let word = offer(THERE);
        assert_eq!(all(&mut steps), [Step::Order(Order::Meet { word })]);
    }

    #[test]
    fn a_ring_on_another_gpu_is_lost_to_both() {
        let (mut rings, mut steps) = (DeviceRings::new(HERE), Steps::default());
        rings.begin(traveller(Way::In), &mut steps);
        rings.hear(&offer(THERE), &mut steps);
        let said = all(&mut steps);
        let word = encode(&Word::Elsewhere(HERE));
        assert_eq!(said[0], Step::Say(word.clone()));
        assert!(lose_both(&said[1..]), "{said:?}");

        let mut source = DeviceRings::new(THERE);
        source.begin(traveller(Way::Out), &mut steps);
        assert_eq!(all(&mut steps), [Step::Order(Order::Offer { lanes: 1 })]);
        source.hear(&word, &mut steps);
        let heard = all(&mut steps);
        assert!(lose_both(&heard), "{heard:?}");
        // What the carrier finds later of the offer changes nothing.
        let (way, ending) = (Way::Out, Ending::Lapsed);
        source.report(Report::Ended { way, ending }, &mut steps);
        assert_eq!(all(&mut steps), []);
    }

    #[test]
    fn nonsense_is_not_heard() {
        let (mut rings, mut steps) = (DeviceRings::new(HERE), Steps::default());
        rings.begin(traveller(Way::In), &mut steps);
        let mut longer = offer(HERE);
        longer.push(0);
        let (socket, token) = (SocketName::of(1), Token([1; 32]));
        for word in
            [&b""[..], b"nonsense", &longer, &encode(&ring::Word { socket, token }), &encode(&Word::Elsewhere(HERE))]
        {
            rings.hear(word, &mut steps);
        }
        assert_eq!(all(&mut steps), []);
    }

    #[test]
    fn gpus_are_named_as_the_driver_does() {
        let named = GpuId(*b"0123456789abcdef").to_string();
        assert_eq!(named, "GPU-30313233-3435-3637-3839-616263646566");
    }
}

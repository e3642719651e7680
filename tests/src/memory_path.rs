//! A simple path between agents of one process, through channels. Tests can make it fail.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use transload_transfer::internal::carrier::{Carrier, Host, Link, Provider, Reporter};
use transload_transfer::internal::data::{InStream, Outgoing, Receiver};
use transload_transfer::plan::ids::TransferId;
use transload_transfer::wire::internal::negotiation::{
    Ending, Negotiation, Order, Report, Step, Steps, Traveller, Way,
};
use transload_transfer::wire::internal::stream::HEADER;
use transload_transfer::{AgentId, Path};

/// The path of this provider.
pub const MEMORY: Path = Path::new(9).unwrap();

/// The failures that a test has requested.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// This many streams break off in the middle.
    pub broken: Arc<AtomicUsize>,
    /// This many pieces arrive with a changed byte.
    pub damaged: Arc<AtomicUsize>,
    /// This many offers are refused.
    pub refused: Arc<AtomicUsize>,
}

fn happens(fault: &AtomicUsize) -> bool {
    let less = |n: usize| n.checked_sub(1);
    fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
}

/// A path between agents of one process that were given clones of this provider.
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    faults: Faults,
    offers: Arc<Mutex<HashMap<u64, mpsc::Sender<Piece>>>>,
    next: Arc<AtomicU64>,
}

impl InMemory {
    /// Makes a path with these faults.
    pub fn with(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }
}

/// The number and the bytes of a piece. The last one is empty.
type Piece = (u64, Vec<u8>);

impl Provider for InMemory {
    fn path(&self) -> Path {
        MEMORY
    }

    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>> {
        let provider = self.clone();
        Ok(Box::new(Memories { provider, host }))
    }
}

struct Memories {
    provider: InMemory,
    host: Host,
}

impl Carrier for Memories {
    fn reaches(&self, _address: SocketAddr) -> bool {
        true
    }

    fn negotiation(&self, _dialled: bool) -> Box<dyn Negotiation> {
        Box::new(Channels::default())
    }

    fn link(&self, _address: SocketAddr, reporter: Reporter) -> Box<dyn Link> {
        Box::new(Channel {
            provider: self.provider.clone(),
            receiver: self.host.receiver.clone(),
            reporter,
            sender: Arc::default(),
            waiting: Vec::new(),
        })
    }
}

/// The destination offers a channel, and the source takes it: the other way round than with a ring.
#[derive(Debug, Default)]
struct Channels {
    incoming: Vec<TransferId>,
    offered: bool,
}

impl Negotiation for Channels {
    fn path(&self) -> Path {
        MEMORY
    }

    fn begin(&mut self, traveller: Traveller, steps: &mut Steps) {
        if traveller.way == Way::In {
            self.incoming.push(traveller.transfer);
            if !std::mem::replace(&mut self.offered, true) {
                steps.push(Step::Order(Order::Offer { lanes: 1 }));
            }
        }
    }

    fn end(&mut self, transfer: TransferId) {
        self.incoming.retain(|other| *other != transfer);
    }

    fn hear(&mut self, word: &[u8], steps: &mut Steps) {
        if word.len() == 8 {
            let word = word.to_vec();
            steps.push(Step::Order(Order::Meet { word }));
        }
    }

    fn report(&mut self, report: Report, steps: &mut Steps) {
        match report {
            Report::Offered { word } => steps.push(Step::Say(word)),
            Report::Ended { way, ending } => steps.push(Step::Lose(way, ending.to_string())),
        }
    }
}

struct Channel {
    provider: InMemory,
    receiver: Receiver,
    reporter: Reporter,
    sender: Arc<Mutex<Option<mpsc::Sender<Piece>>>>,
    waiting: Vec<Outgoing>,
}

impl Link for Channel {
    fn obey(&mut self, order: Order, peer: &AgentId) {
        match order {
            Order::Offer { .. } if happens(&self.provider.faults.refused) => {
                let ending = Ending::Failed("there is no memory".to_owned());
                self.reporter.ended(Way::In, ending);
            }
            Order::Offer { .. } => {
                let number = self.provider.next.fetch_add(1, Ordering::Relaxed);
                let (sender, pieces) = mpsc::channel(4);
                let offers = self.provider.offers.lock();
                offers.unwrap_or_else(PoisonError::into_inner).insert(number, sender);
                let receiving = receive(self.receiver.clone(), peer.clone(), pieces);
                Handle::current().spawn(receiving);
                self.reporter.offered(number.to_le_bytes().to_vec());
            }
            Order::Meet { word } => {
                let number = u64::from_le_bytes(word.try_into().unwrap());
                let sender = self.provider.offers.lock().unwrap().remove(&number);
                *self.sender.lock().unwrap() = sender;
                for outgoing in std::mem::take(&mut self.waiting) {
                    self.carry(&outgoing);
                }
            }
        }
    }

    fn carry(&mut self, outgoing: &Outgoing) {
        let Some(sender) = self.sender.lock().unwrap().clone() else {
            return self.waiting.push(outgoing.clone());
        };
        let sending = send(outgoing.clone(), sender, self.provider.clone());
        Handle::current().spawn(sending);
    }

    fn forget(&mut self, outgoing: &Outgoing) {
        self.waiting.retain(|waiting| !waiting.is(outgoing));
    }
}

async fn send(outgoing: Outgoing, sender: mpsc::Sender<Piece>, provider: InMemory) {
    while let Some(mut stream) = outgoing.next_stream().await {
        let number = provider.next.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; 4096].into_boxed_slice();
        let broken = loop {
            let Some((filled, len)) = stream.fill(buffer).await else {
                return;
            };
            buffer = filled;
            let mut piece = buffer[..len].to_vec();
            if len > HEADER && happens(&provider.faults.damaged) {
                piece[0] ^= 1;
            }
            let broken = len > HEADER && happens(&provider.faults.broken);
            if broken || sender.send((number, piece)).await.is_err() {
                break true;
            }
            if len == 0 {
                break false;
            }
        };
        match broken {
            true => stream.fail("the channel broke"),
            false => stream.written(),
        }
    }
}

async fn receive(receiver: Receiver, peer: AgentId, mut pieces: mpsc::Receiver<Piece>) {
    let mut streams: HashMap<u64, InStream> = HashMap::new();
    while let Some((number, piece)) = pieces.recv().await {
        match (streams.remove(&number), &piece[..]) {
            (Some(stream), []) => stream.end().await,
            (Some(stream), bytes) => {
                if let Some(stream) = stream.take(bytes).await {
                    streams.insert(number, stream);
                }
            }
            (None, bytes) => {
                if let Ok(header) = bytes.try_into()
                    && let Some(stream) = receiver.begin(&peer, header).await
                {
                    streams.insert(number, stream);
                }
            }
        }
    }
}

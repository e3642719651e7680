//! Receiving: the admission of streams, and streams over lanes.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::Hash,
    mem::{replace, take},
    pin::Pin,
    sync::{Arc, Mutex, Weak},
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::timeout,
};

use super::{
    error::{BUSY, BoxError, FENCED, MALFORMED, ReceiveError, UNKNOWN},
    fence::Inside,
    intake::Intake,
    landing::Landing,
    operation::Operations,
    options::DataOptions,
};
use crate::quic::{ConnectionLost, DataReceiver, Lane};
use transload_memory::internal::settle;
use transload_plan::ids::{AgentId, ServiceName};
use transload_wire::internal::stream::{HEADER, StreamHeader, StreamTrailer};

/// Decides which streams may place bytes, and gets reports about them. The control plane implements it.
///
/// It is called on the threads that move bytes, so calls should take microseconds.
pub trait Arrivals: Send + Sync + 'static {
    /// Returns the landing of a stream that `peer` has opened, or `None` to reject it. The implementation must know the
    /// transfer, and check that the nonce in the header is the transfer's, that its source is this peer, and that no
    /// other stream has the same bytes.
    fn admit(&self, peer: &AgentId, header: &StreamHeader) -> Admitted;

    /// Reports that all bytes of an admitted stream are in place, and that their checksum `crc` matches the trailer.
    fn arrived(&self, header: &StreamHeader, trailer: &StreamTrailer, crc: u32);

    /// Reports that an admitted stream has failed. Not called if its landing was fenced.
    fn failed(&self, header: &StreamHeader, error: ReceiveError);
}

/// A future for the landing of a stream; `None` rejects the stream.
pub type Admitted = Pin<Box<dyn Future<Output = Option<Landing>> + Send>>;

/// Receives streams and places their bytes. Clones share their limits.
#[derive(Clone)]
pub struct Receiver {
    inner: Arc<Inner>,
}

struct Inner {
    arrivals: Box<dyn Arrivals>,
    options: DataOptions,
    /// Permits for streams: of all peers, of each service, and of each agent.
    streams: Arc<Semaphore>,
    of_services: Shares<ServiceName>,
    of_peers: Shares<AgentId>,
}

/// A limited number of permits for each key, kept while the key is in use.
#[derive(Debug)]
struct Shares<K> {
    most: usize,
    of: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Eq + Hash> Shares<K> {
    fn new(most: usize) -> Self {
        Self { most: most.min(Semaphore::MAX_PERMITS), of: Mutex::default() }
    }

    fn get(&self, of: K) -> Arc<Semaphore> {
        let mut shares = self.of.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(places) = shares.get(&of).and_then(Weak::upgrade) {
            return places;
        }
        shares.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.most));
        shares.insert(of, Arc::downgrade(&places));
        places
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// Pieces that are taken from a lane at once: about one batch of packets. More are not faster.
const PIECES: usize = 64;

/// Asynchronous memory gets this many bytes at a time, as long as they keep arriving: a GPU takes as long for a few
/// packets.
const BATCH: usize = 256 << 10;

impl Receiver {
    /// Makes a receiver. One receiver serves all lanes and rings of an agent.
    #[must_use]
    pub fn new(arrivals: impl Arrivals, options: &DataOptions) -> Self {
        let streams = options.streams.min(Semaphore::MAX_PERMITS);
        Self {
            inner: Arc::new(Inner {
                arrivals: Box::new(arrivals),
                options: options.clone(),
                streams: Arc::new(Semaphore::new(streams)),
                of_services: Shares::new(options.streams_of_service),
                of_peers: Shares::new(options.streams_of_peer),
            }),
        }
    }

    /// Returns the object that admits streams.
    pub fn arrivals(&self) -> &dyn Arrivals {
        &*self.inner.arrivals
    }

    /// Receives all streams of a lane, on its thread, until the lane is gone.
    ///
    /// A stream is read or stopped as soon as its landing is known: at once, or when its route is bound, which the peer
    /// cannot delay.
    pub fn serve(&self, lane: &Lane) -> JoinHandle<ConnectionLost> {
        let (this, accepting) = (self.clone(), lane.clone());
        let of_service = self.inner.of_services.get(ServiceName::from(lane.peer()));
        let of_peer = self.inner.of_peers.get(lane.peer().clone());
        lane.spawn(async move {
            loop {
                let stream = match accepting.accept_stream().await {
                    Ok(stream) => stream,
                    Err(lost) => return lost,
                };
                let of_all = this.inner.streams.clone().try_acquire_owned();
                let of_service = of_service.clone().try_acquire_owned();
                let of_peer = of_peer.clone().try_acquire_owned();
                match of_all.and_then(|of_all| Ok([of_all, of_service?, of_peer?])) {
                    Ok(places) => {
                        let (this, peer) = (this.clone(), accepting.peer().clone());
                        accepting.spawn(async move { this.receive(&peer, stream, places).await });
                    }
                    Err(_) => stream.stop(BUSY),
                }
            }
        })
    }

    async fn receive(&self, peer: &AgentId, mut stream: DataReceiver, _places: [OwnedSemaphorePermit; 3]) {
        let header = match self.header(&mut stream).await {
            Ok(header) => header,
            Err(error) => {
                tracing::debug!(%peer, %error, "stopped a stream without a header");
                return stream.stop(MALFORMED);
            }
        };
        let arrivals = &self.inner.arrivals;
        let Some(landing) = arrivals.admit(peer, &header).await else {
            return stream.stop(UNKNOWN);
        };
        let Some(inside) = landing.enter() else {
            return stream.stop(FENCED);
        };
        let placed = inside.unless_raised(place(&mut stream, &landing, &header, &inside)).await;
        match placed {
            None => stream.stop(FENCED),
            Some(Ok((trailer, crc))) => arrivals.arrived(&header, &trailer, crc),
            Some(Err(error)) => {
                stream.stop(error.code());
                arrivals.failed(&header, error);
            }
        }
        // After an error, bytes may have been taken and not submitted. Their stores are completed here.
        settle();
        // The transfer can be fenced only after this. Then its id may be reused, and a report about this stream must
        // not be taken for one about the next transfer's.
        drop(inside);
    }

    async fn header(&self, stream: &mut DataReceiver) -> Result<StreamHeader, BoxError> {
        let after = self.inner.options.header_timeout;
        let mut bytes = [0; HEADER];
        let received = timeout(after, stream.recv_exact(&mut bytes)).await;
        received.map_err(|_| "no header in time")??;
        Ok(StreamHeader::decode(&bytes)?)
    }
}

/// Places the bytes of a stream, up to its end. While memory places some, the next are taken as they arrive.
async fn place(
    stream: &mut DataReceiver,
    landing: &Landing,
    header: &StreamHeader,
    inside: &Inside,
) -> Result<(StreamTrailer, u32), ReceiveError> {
    let mut intake = Intake::new(landing, header)?;
    let mut pieces = [const { Bytes::new() }; PIECES];
    let (mut taken, mut under_way) = (0, Operations::default());
    loop {
        let count = tokio::select! {
            biased;
            count = stream.recv_chunks(&mut pieces) => count?,
            done = &mut under_way, if taken > 0 || !under_way.are_done() => {
                // The peer pauses, and the memory is idle.
                done?;
                (taken, under_way) = (0, intake.submit(inside));
                continue;
            }
        };
        // Each piece is dropped while it is in the caches.
        for piece in pieces[..count.unwrap_or(0)].iter_mut().map(take) {
            intake.take(&piece, inside).await?;
            taken += piece.len();
        }
        if taken >= BATCH || count.is_none() {
            let before = replace(&mut under_way, intake.submit(inside));
            before.await?;
            taken = 0;
        }
        if count.is_none() {
            under_way.await?;
            return intake.end();
        }
    }
}

//! The threads that serve clients.
//!
//! Each thread has its own runtime and its own connections to servers. Both sockets of a request belong to the thread
//! of its client, so that no thread has to wake another one for a piece of an answer.

use std::io;
use std::net::TcpStream as Detached;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::connections::Seat;
use super::serve::connection;
use super::{Client, Front};

/// The most threads. Each handles more than ten thousand requests a second.
const MOST: usize = 8;

/// The threads that serve clients. They end after all listeners and connections have ended.
pub(super) struct Workers(Vec<Worker>);

struct Worker {
    clients: UnboundedSender<Handed>,
    places: Place,
}

type Handed = (Detached, Client, Arc<Seat>, Place);

/// A token whose reference count is the number of a thread's connections.
type Place = Arc<()>;

impl Workers {
    pub(super) fn start(front: &Front) -> io::Result<Self> {
        let cores = available_parallelism().map_or(1, usize::from);
        let count = cores.min(MOST);
        let workers = (0..count).map(|_| Worker::start(front.clone(), count));
        workers.collect::<io::Result<_>>().map(Self)
    }

    /// Passes a client to the thread with the fewest clients.
    pub(super) fn serve(&self, stream: TcpStream, client: Client, seat: Arc<Seat>) -> io::Result<()> {
        let stream = stream.into_std()?;
        let fewest = |worker: &&Worker| Arc::strong_count(&worker.places);
        if let Some(worker) = self.0.iter().min_by_key(fewest) {
            let place = worker.places.clone();
            // Threads end after all listeners, so the receiver exists.
            let _ = worker.clients.send((stream, client, seat, place));
        }
        Ok(())
    }
}

impl Worker {
    fn start(front: Front, of: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (clients, handed) = unbounded_channel();
        thread::Builder::new().name("clients".to_owned()).spawn(move || run(runtime, &front, of, handed))?;
        Ok(Self { clients, places: Place::default() })
    }
}

fn run(runtime: Runtime, front: &Front, of: usize, mut handed: UnboundedReceiver<Handed>) {
    runtime.block_on(async {
        let front = Arc::new(front.apart(of));
        let phase = front.phase.subscribe();
        while let Some((stream, client, seat, place)) = handed.recv().await {
            let (front, phase) = (front.clone(), phase.clone());
            tokio::spawn(async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => connection(&front, stream, client, seat, phase).await,
                    Err(error) => tracing::warn!(%error, "a connection cannot be served"),
                }
                drop(place);
            });
        }
        drop(phase);
        front.phase.closed().await;
    });
    // A DNS look-up may hang longer than the process should wait.
    runtime.shutdown_background();
}

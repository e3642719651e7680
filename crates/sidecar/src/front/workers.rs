//! The threads that serve clients.
//!
//! Each has a runtime and connections to servers of its own: both sockets of a request are read and written where its client
//! was handed to, and no thread has to wake another one for a piece of an answer.

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

/// How many threads there are at most. Each carries more than ten thousand requests a second.
const MOST: usize = 8;

/// Threads that serve clients until each listener and connection has ended.
pub(super) struct Workers(Vec<Worker>);

struct Worker {
    clients: UnboundedSender<Handed>,
    places: Place,
}

/// A client that is handed to a thread.
type Handed = (Detached, Client, Arc<Seat>, Place);

/// Counts the connections of a thread.
type Place = Arc<()>;

impl Workers {
    /// Starts a thread for each core.
    pub(super) fn start(front: &Front) -> io::Result<Self> {
        let cores = available_parallelism().map_or(1, usize::from);
        let count = cores.min(MOST);
        let workers = (0..count).map(|_| Worker::start(front.clone(), count));
        workers.collect::<io::Result<_>>().map(Self)
    }

    /// Hands a client to the thread that has the fewest.
    pub(super) fn serve(&self, stream: TcpStream, client: Client, seat: Arc<Seat>) -> io::Result<()> {
        let stream = stream.into_std()?;
        let fewest = |worker: &&Worker| Arc::strong_count(&worker.places);
        if let Some(worker) = self.0.iter().min_by_key(fewest) {
            let place = worker.places.clone();
            // A thread ends after all listeners.
            let _ = worker.clients.send((stream, client, seat, place));
        }
        Ok(())
    }
}

impl Worker {
    /// Starts one of so many.
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
    // A look-up of a name may hang for longer than anybody waits.
    runtime.shutdown_background();
}

//! Listeners, the connections that they accept, and the shutdown of both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connections::{Connections, Seat};
use super::workers::Workers;
use super::{Client, Front};
use crate::running::StartError;
use crate::socket::{self, Reset};
use crate::strict::{self, Stream};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// No connections are accepted; requests in flight continue.
    Draining,
    /// All connections are closed.
    Over,
}

/// Listeners that accept clients until they are drained. Dropping this closes all client connections.
pub(crate) struct Listeners {
    addresses: Vec<SocketAddr>,
    phase: watch::Sender<Phase>,
}

impl Listeners {
    /// Starts to accept clients. The listeners belong to the data-parallel ranks, in order.
    pub(crate) fn start(front: &Front, listeners: Vec<TcpListener>) -> Result<Self, StartError> {
        let mut addresses = Vec::with_capacity(listeners.len());
        for listener in &listeners {
            let address = listener.local_addr();
            addresses.push(address.map_err(|source| StartError::Listen { address: front.settings.listen, source })?);
        }
        let workers = Arc::new(Workers::start(front).map_err(StartError::Threads)?);
        let phase = front.phase.clone();
        let connections = Connections::new(front.settings.limits.connections);
        for (rank, listener) in (0..).zip(listeners) {
            let (workers, connections) = (workers.clone(), connections.clone());
            tokio::spawn(accept(workers, connections, listener, rank, phase.subscribe()));
        }
        Ok(Self { addresses, phase })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Stops accepting clients and waits for requests in flight. Connections that are still open after `within` are
    /// closed.
    pub(crate) async fn drain(self, within: Duration) {
        self.phase.send_replace(Phase::Draining);
        if tokio::time::timeout(within, self.phase.closed()).await.is_err() {
            self.phase.send_replace(Phase::Over);
            self.phase.closed().await;
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Over);
    }
}

async fn accept(
    workers: Arc<Workers>,
    connections: Arc<Connections>,
    listener: TcpListener,
    rank: u16,
    mut phase: watch::Receiver<Phase>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.changed() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let Some(seat) = connections.enter(address.ip()) else {
                    tracing::debug!(client = %address, "no place for a connection: all have requests under way");
                    continue;
                };
                if let Err(error) = workers.serve(stream, Client { address, rank }, seat) {
                    tracing::debug!(%error, "a connection broke before it was served");
                }
            }
            Err(error) => {
                let has_room = socket::no_file_left(&error) && connections.make_room();
                // Either the condition passes, or an operator has to see it.
                tracing::warn!(%error, "a connection could not be accepted");
                let pause = if has_room { 1 } else { 50 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }
}

pub(super) async fn connection(
    front: &Arc<Front>,
    stream: TcpStream,
    client: Client,
    seat: Arc<Seat>,
    phase: watch::Receiver<Phase>,
) {
    let _ = socket::prepare(&stream);
    let Some(tls) = &front.serving_tls else {
        return serve(front, stream, client, seat, phase).await;
    };
    // Boxed, so that clients without TLS do not carry the memory of a handshake.
    Box::pin(async {
        let mut ends = phase.clone();
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            // A client that has not sent a request yet is not waited for.
            _ = ends.wait_for(|phase| *phase != Phase::Serving) => return,
            () = seat.closed() => return,
        };
        match accepted {
            Ok(stream) => serve(front, stream, client, seat, phase).await,
            Err(error) => tracing::debug!(%error, client = %client.address, "no TLS with a client"),
        }
    })
    .await;
}

async fn serve<T>(front: &Arc<Front>, stream: T, client: Client, seat: Arc<Seat>, mut phase: watch::Receiver<Phase>)
where
    T: AsyncRead + AsyncWrite + Reset + Send + Unpin + 'static,
{
    let (stream, verdicts) = Stream::new(stream, front.settings.limits.head);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(seat.busy());
        let verdict = verdicts.next_request();
        front.answer(request, client, verdict, &verdicts)
    });
    let serving = strict::http1().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut serving = std::pin::pin!(serving);
    loop {
        tokio::select! {
            // A broken client connection needs no log line.
            _ = serving.as_mut() => return,
            () = seat.closed() => return,
            changed = phase.changed() => match changed.map(|()| *phase.borrow_and_update()) {
                Ok(Phase::Serving) => {}
                Ok(Phase::Draining) => serving.as_mut().graceful_shutdown(),
                Ok(Phase::Over) | Err(_) => return,
            },
        }
    }
}

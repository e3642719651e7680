//! The admin address: probes, metrics, status and a page, over plain HTTP.
//!
//! | path | answer |
//! |---|---|
//! | `/` | a page that shows `/status` as it changes |
//! | `/healthz` | 200 as long as this process runs |
//! | `/readyz` | 200 while requests can be served, 503 otherwise |
//! | `/metrics` | Prometheus' text format |
//! | `/status` | JSON, `transload.status/1` |
//!
//! It shows no client's text and changes nothing. The number of connections, the time to a request's head and the life
//! of each connection are bounded. On a loopback address it answers only requests whose `Host` is an IP address or
//! `localhost`, so that no web page can read it through DNS rebinding.

mod routes;
mod scrape;
mod source;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use routes::Routes;
pub use source::Source;

/// The most concurrent connections; further ones wait to be accepted.
const CONNECTIONS: usize = 64;
/// The time limit for a request's whole head, and for the pause between two requests of a connection.
const HEAD_TIME: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 16 << 10;
/// The longest life of a connection; clients reconnect.
const LIFE: Duration = Duration::from_secs(120);
/// The time for the last answer when a connection's life has ended.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// Serves the admin address until the future is dropped, which also closes its connections.
///
/// # Errors
/// Returns an error if `listener` has no local address.
pub async fn serve<S: Source>(listener: TcpListener, source: Arc<S>) -> io::Result<()> {
    let loopback = listener.local_addr()?.ip().is_loopback();
    let routes = Arc::new(Routes::new(source, loopback));
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = room.clone().acquire_owned().await else {
            return Ok(()); // unreachable: the semaphore is never closed
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let routes = routes.clone();
                connections.spawn(async move {
                    connection(stream, &routes).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin address cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection<S: Source>(stream: TcpStream, routes: &Routes<S>) {
    let service = service_fn(|request| async { Ok::<_, io::Error>(routes.answer(request).await) });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    // Errors come from clients that left or sent no HTTP; they need no log line.
    if tokio::time::timeout(LIFE, &mut connection).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LAST_ANSWER, connection).await;
    }
}

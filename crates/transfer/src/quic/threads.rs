//! The threads that drive sockets, and the runtime that quinn sees.

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Endpoint, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Handle};

use super::socket::BatchingUdpSocket;

/// Most threads for blocking work, made when they are needed and gone ten seconds after: for the addresses of host
/// names, plans and routes, mappings of rings, and certificates that are read again. Of each kind there are fewer at a time than it would
/// take to keep the others waiting.
const BLOCKING: usize = 32;

/// One thread with a tokio runtime on it, that nothing may block.
#[derive(Debug)]
pub(super) struct NetThread {
    runtime: Option<tokio::runtime::Runtime>,
    pub(super) handle: Handle,
}

impl NetThread {
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Lets a closed endpoint say goodbye to its peers, and then ends the thread. Does not wait for
    /// it, so this may happen inside of another runtime.
    pub(super) fn retire(&mut self, endpoint: Endpoint) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let goodbye = move || {
            runtime.block_on(async {
                // A peer that is too slow to hear it finds out by the idle timeout.
                let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
            });
            runtime.shutdown_background();
        };
        // Where no thread is to be had, peers find out by the idle timeout.
        if let Err(error) = std::thread::Builder::new().name("transload-goodbye".to_owned()).spawn(goodbye) {
            tracing::debug!(%error, "could not say goodbye");
        }
    }
}

impl Drop for NetThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes quinn spawn its tasks on a given thread, whichever runtime calls it.
#[derive(Debug)]
pub(super) struct OnThread {
    pub(super) thread: Handle,
    /// The largest payload that this endpoint will ever send or receive.
    pub(super) largest_payload: u16,
}

impl Runtime for OnThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _inside = self.thread.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.thread.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.thread.enter();
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(BatchingUdpSocket::new(socket, self.largest_payload)))
    }
}

/// How long closing waits for the last packets to leave.
pub(super) const GOODBYE: Duration = Duration::from_millis(500);

//! A relay in front of an etcd that disturbs connections as networks do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    upstream: SocketAddr,
    /// The number of bytes that are still passed from etcd, after which all connections are cut.
    budget: watch::Sender<Option<usize>>,
    /// Connections with a smaller number are cut or stop passing bytes.
    cut: watch::Sender<u64>,
    swallowed: AtomicU64,
    next: AtomicU64,
    cuts: AtomicU64,
    /// Whether watches are held back from etcd.
    hold: watch::Sender<bool>,
    held: AtomicU64,
    compactions: AtomicU64,
}

impl Relay {
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            upstream,
            budget: watch::Sender::new(None),
            cut: watch::Sender::new(0),
            swallowed: AtomicU64::new(0),
            next: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            hold: watch::Sender::new(false),
            held: AtomicU64::new(0),
            compactions: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().pass(stream));
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections after this many further bytes of etcd.
    pub(crate) fn cut_after(&self, bytes: usize) {
        match bytes {
            0 => self.shared.cut(),
            bytes => {
                self.shared.budget.send_replace(Some(bytes));
            }
        }
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Stops passing bytes on existing connections, and leaves them open.
    pub(crate) fn swallow(&self) {
        let next = self.shared.next.load(Ordering::SeqCst);
        self.shared.swallowed.store(next, Ordering::SeqCst);
    }

    pub(crate) fn hold_watches(&self) {
        self.shared.hold.send_replace(true);
    }

    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::SeqCst)
    }

    pub(crate) fn let_watches_pass(&self) {
        self.shared.hold.send_replace(false);
    }

    /// Returns the number of times that etcd has answered that the requested revision is compacted.
    pub(crate) fn compactions(&self) -> u64 {
        self.shared.compactions.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.cut();
    }
}

impl Shared {
    fn cut(&self) {
        self.cut.send_replace(self.next.load(Ordering::SeqCst));
    }

    async fn pass(self: Arc<Self>, client: TcpStream) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let Ok(etcd) = TcpStream::connect(self.upstream).await else {
            return;
        };
        let ((from_client, to_client), (from_etcd, to_etcd)) = (client.into_split(), etcd.into_split());
        let mut cut = self.cut.subscribe();
        tokio::select! {
            () = self.up(number, from_client, to_etcd) => {}
            () = self.down(number, from_etcd, to_client) => {}
            _ = cut.wait_for(|cut| *cut > number) => {
                self.cuts.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn swallows(&self, number: u64) -> bool {
        number < self.swallowed.load(Ordering::SeqCst)
    }

    async fn up(&self, number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let text = &buffer[..length];
            if text.starts_with(b"POST /v3/watch") && *self.hold.borrow() {
                self.held.fetch_add(1, Ordering::SeqCst);
                let _ = self.hold.subscribe().wait_for(|hold| !hold).await;
            }
            if !self.swallows(number) && to.write_all(text).await.is_err() {
                return;
            }
        }
    }

    async fn down(&self, number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let mut text = &buffer[..length];
            let compacted = text.windows(16).any(|window| window == b"compact_revision");
            self.compactions.fetch_add(compacted.into(), Ordering::SeqCst);
            let mut cut = false;
            self.budget.send_if_modified(|budget| {
                let Some(left) = budget else { return false };
                match left.checked_sub(length) {
                    Some(rest) if rest > 0 => *left = rest,
                    _ => {
                        text = &text[..*left];
                        cut = true;
                        *budget = None;
                    }
                }
                true
            });
            if !self.swallows(number) && to.write_all(text).await.is_err() {
                return;
            }
            if cut {
                self.cut();
            }
        }
    }
}

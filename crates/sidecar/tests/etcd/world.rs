//! Servers that announce themselves at an etcd, and a table of servers that follows it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use transload_sidecar::announce::{AnnounceError, Announcement, announce};
use transload_sidecar::discover::Source;
use transload_sidecar::etcd::Cluster;
use transload_sidecar::internal::discover::follow;
use transload_sidecar::internal::servers::Servers;
use transload_sidecar::settings::UpstreamTls;
use transload_sidecar::{Role, ServerUrl};
use transload_test_servers::PATIENCE;

pub(crate) fn announcement(etcd: &str, role: Role, url: &str) -> Announcement {
    Announcement {
        etcd: Cluster::parse(etcd).expect("a cluster"),
        role,
        url: ServerUrl::parse(url).expect("a URL"),
        name: None,
        tls: UpstreamTls::default(),
    }
}

pub(crate) struct Announcer {
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), AnnounceError>>,
}

impl Announcer {
    pub(crate) fn start(announcement: Announcement) -> Self {
        let (end, ended) = oneshot::channel();
        let announcing = announce(announcement, async {
            let _ = ended.await;
        });
        Self { end, task: tokio::spawn(announcing) }
    }

    /// Ends the announcer as a signal would.
    pub(crate) async fn end(self) {
        self.end.send(()).expect("it runs");
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("in time").expect("no panic").expect("no error");
    }

    /// Aborts the announcer without withdrawing the announcement.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|ended| ended.is_cancelled()));
    }
}

pub(crate) struct Looking {
    servers: Arc<Servers>,
    task: AbortHandle,
}

impl Looking {
    pub(crate) fn at(uri: &str) -> Self {
        Self::with(uri, &UpstreamTls::default())
    }

    pub(crate) fn with(uri: &str, tls: &UpstreamTls) -> Self {
        let servers = Arc::new(Servers::new(false));
        let source = Source::parse(uri).expect("a source");
        let following = follow(source, servers.clone(), tls).expect("certificates");
        Self { servers, task: tokio::spawn(following).abort_handle() }
    }

    pub(crate) fn found(&self) -> Vec<String> {
        let servers = self.servers.snapshot();
        let mut found: Vec<_> = servers.iter().map(|server| format!("{} {}", server.role.name(), server.url)).collect();
        found.sort();
        found
    }

    /// Waits until the table has exactly these servers.
    pub(crate) async fn finds(&self, expected: &[&str]) {
        let began = Instant::now();
        while self.found() != expected {
            let found = self.found();
            assert!(began.elapsed() < PATIENCE, "{found:?} and not {expected:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks for this long that the table never loses a server.
    pub(crate) async fn keeps(&self, server: &str, during: Duration) {
        let began = Instant::now();
        while began.elapsed() < during {
            let found = self.found();
            assert!(found.iter().any(|found| found == server), "only {found:?} after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

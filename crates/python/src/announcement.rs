//! Announcements of servers at an etcd, where `transload proxy --discover` finds them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use transload_sidecar::announce::{self, announce};
use transload_sidecar::etcd::Cluster;
use transload_sidecar::settings::UpstreamTls;
use transload_sidecar::{Role, ServerUrl};

use crate::logs;
use crate::runtime::{Made, handle};

/// The longest time that the end of a server waits for an etcd. An announcement that is not withdrawn by then ends with
/// its lease.
const FAREWELL: Duration = Duration::from_secs(2);

/// An announcement of a server at an etcd, where `transload proxy --discover` finds it from `begin` until `end`. It
/// also ends within 10 s of the end of this process. An unreachable etcd is retried.
///
/// Args:
///     etcd: `etcd://HOST:PORT[,HOST:PORT]/PREFIX`, or `etcds://` for TLS.
///     role: `prefill` or `decode`.
///     url: the URL of the server as a proxy reaches it: `http://HOST:PORT`.
///
/// Raises:
///     ValueError: an argument is invalid. Its value is not shown, since it may contain a password.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Announcement {
    announced: announce::Announcement,
    running: Mutex<Option<Running>>,
}

struct Running {
    made: Made,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[pymethods]
impl Announcement {
    #[new]
    fn new(etcd: &str, role: &str, url: &str) -> PyResult<Self> {
        let wrong = |what: &str, why: &dyn std::fmt::Display| PyValueError::new_err(format!("{what} is wrong: {why}"));
        let role = [Role::Prefill, Role::Decode]
            .into_iter()
            .find(|known| known.name() == role)
            .ok_or_else(|| wrong("role", &"give prefill or decode"))?;
        let announced = announce::Announcement {
            etcd: Cluster::parse(etcd).map_err(|why| wrong("etcd", &why))?,
            role,
            url: ServerUrl::parse(url).map_err(|why| wrong("url", &why))?,
            name: None,
            tls: UpstreamTls::default(),
        };
        Ok(Self { announced, running: Mutex::new(None) })
    }

    /// Starts to announce the server in the background.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        logs::start(py)?;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            return Ok(());
        }
        let (end, ended) = oneshot::channel::<()>();
        let announcement = self.announced.clone();
        let task = handle()?.spawn(async move {
            let ended = async {
                // This also completes when the object is dropped.
                let _ = ended.await;
            };
            if let Err(error) = announce(announcement, ended).await {
                tracing::error!(%error, "the server is not announced");
            }
        });
        *running = Some(Running { made: Made::here(), end, task });
        Ok(())
    }

    /// Withdraws the announcement, waiting 2 s at most.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { made, end, task }) = running else {
            return Ok(());
        };
        let _ = end.send(());
        let _ = made.wait(py, async { timeout(FAREWELL, task).await })?;
        Ok(())
    }
}

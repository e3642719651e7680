//! Agents: processes that hold KV memory and move it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::time::timeout;
use transload::layout::Rank;
use transload::transfer::internal::identity;
use transload::transfer::{self, AgentOptions, ContentDigest, Incarnation, InstanceName, PushRequest};

use crate::completion::{Completion, outcome};
use crate::deployment::Deployment;
use crate::errors::{AgentError, LeaseError, raise};
use crate::identity::Identity;
use crate::lease::{Lease, lease_request, not_opened};
use crate::logs;
use crate::mark::Mark;
use crate::memory::Memory;
use crate::metrics::metrics;
use crate::runtime::{Made, handle, patience, quiet, seconds};
use crate::ticket::Ticket;
use crate::transfer::{Transfer, failed, named_codec, notice_failed, transfer_request};

/// Returns a new number for the life of an engine instance, as agents draw it: greater than earlier ones, by the clock.
/// All agents of one instance need the same number.
#[pyfunction]
pub(crate) fn new_incarnation() -> PyResult<u128> {
    Ok(identity::new_incarnation()?.0)
}

/// Returns the default name of an engine instance: this host's name, which is the pod's on Kubernetes, and a port. It
/// is the same after a restart.
#[pyfunction]
pub(crate) fn default_instance(port: u16) -> String {
    identity::default_instance(port).to_string()
}

/// A process that holds KV memory and moves it, for some ranks of one deployment.
///
/// It lives until `shutdown`, or until the last reference to it is gone. Its leases and transfers end with it, and
/// registered memory is released by then.
///
/// Args:
///     identity: its certificate and key.
///     deployment: the layout of its engine's cache.
///     memories: for each rank, the memory of each group, in the order of the document.
///     bind: UDP address of the control port, `host:port`; with port 0 the system chooses one.
///     incarnation: the number of the deployment's life, the same on all ranks of one engine instance and greater after
///         a restart. If None, `new_incarnation` is called.
///     instance: its name within the service of its certificate, if several agents share a certificate: letters, digits
///         and . _ ~ -, 64 at most. It has to be the same after a restart. If None, `default_instance` of the control
///         port.
///     lanes: data connections to each peer over the network, each with its own socket, port and thread. One lane uses
///         about one core. If None, half the number of cores, 4 at most.
///     lane_ports: first and last UDP port for the lanes, as `(7700, 7703)`, at least as many as lanes. If None, the
///         system chooses.
///     early_wait: seconds that a pull waits for its lease if it arrives first; half of `stall_seconds` at most. If
///         None, 10.
///     notice_wait: seconds for which the agent tries to tell an unreachable owner that its leases are finished or
///         released. If None, 60.
///     keep_idle: seconds that an unused connection is kept; at least twice `early_wait`. If None, 60.
///     stall_seconds: seconds without progress, or without any message, after which a transfer with a peer fails and is
///         tried again. A process that has ended is noticed within a second if its host reports the closed port; this
///         limit is for hosts that vanish or are silent, and for processes that hang. Below 2, peers need the same
///         value. If None, 20, and 10 for silence.
///     connect_seconds: seconds for which an unresponsive agent is dialled, at each address of its host. Below 5,
///         incoming connections get the same limit until both sides have accepted each other. If None, 15.
///     codecs: the codecs in which others may pull from here, in addition to exact bytes: some of `q8` and `q4`.
///
/// Raises:
///     AgentError: memory or ranks do not fit the deployment, an option is invalid (it is named), or the address cannot
///         be bound.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Agent {
    inner: transfer::Agent,
    made: Made,
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (identity, deployment, memories, *, bind = "0.0.0.0:0", incarnation = None, instance = None,
        lanes = None, lane_ports = None, early_wait = None, notice_wait = None, keep_idle = None,
        stall_seconds = None, connect_seconds = None, codecs = Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        identity: &Identity,
        deployment: &Deployment,
        memories: BTreeMap<u32, Vec<PyRef<'_, Memory>>>,
        bind: &str,
        incarnation: Option<u128>,
        instance: Option<&str>,
        lanes: Option<u16>,
        lane_ports: Option<(u16, u16)>,
        early_wait: Option<f64>,
        notice_wait: Option<f64>,
        keep_idle: Option<f64>,
        stall_seconds: Option<f64>,
        connect_seconds: Option<f64>,
        codecs: Vec<String>,
    ) -> PyResult<Self> {
        logs::start(py)?;
        let mut options = AgentOptions::default();
        if let Some(lanes) = lanes {
            options.quic.lanes = lanes;
        }
        options.quic.lane_ports = lane_ports.map(|(first, last)| first..=last);
        for (name, given, option) in [
            ("early_wait", early_wait, &mut options.wire.early_wait),
            ("notice_wait", notice_wait, &mut options.wire.notice_wait),
            ("keep_idle", keep_idle, &mut options.keep_idle),
        ] {
            if let Some(given) = given {
                *option = seconds(name, given)?;
            }
        }
        if let Some(given) = stall_seconds {
            options = options.stall(patience("stall_seconds", given)?);
        }
        if let Some(given) = connect_seconds {
            options = options.connect_wait(patience("connect_seconds", given)?);
        }
        let codecs = codecs.iter().map(|name| named_codec(name));
        options.wire.codecs = codecs.collect::<PyResult<_>>()?;
        let addr: SocketAddr = bind.parse().map_err(|_| {
            PyValueError::new_err(format!("bind is {bind:?}: give an address and a port, as 0.0.0.0:7600 or [::1]:0"))
        })?;
        let mut builder =
            transfer::Agent::builder(identity.inner.clone(), (*deployment.inner).clone()).options(options);
        for (rank, groups) in &memories {
            let groups = groups.iter().map(|memory| memory.region());
            builder = builder.register(Rank(*rank), groups).map_err(raise!(AgentError))?;
        }
        if let Some(incarnation) = incarnation {
            builder = builder.incarnation(Incarnation(incarnation));
        }
        if let Some(instance) = instance {
            let instance = InstanceName::new(instance).map_err(raise!(AgentError))?;
            builder = builder.instance(instance);
        }
        let handle = handle()?;
        let inner = py.detach(|| {
            // Binding spawns tasks, for which it needs the runtime's context.
            let _entered = handle.enter();
            builder.bind(addr)
        });
        Ok(Self { inner: inner.map_err(raise!(AgentError))?, made: Made::here() })
    }

    /// The agent's name, `SERVICE/INSTANCE`: the service of its certificate, and its own name within it.
    #[getter]
    fn name(&self) -> &str {
        self.inner.id().as_str()
    }

    /// The UDP port of its control connections.
    #[getter]
    fn port(&self) -> u16 {
        self.inner.control_addr().port()
    }

    /// The number of the deployment's life.
    #[getter]
    fn incarnation(&self) -> u128 {
        self.inner.incarnation().0
    }

    /// Digest of its deployment, by which tickets name it.
    #[getter]
    fn deployment_digest(&self) -> [u8; 32] {
        self.inner.deployment_digest().0
    }

    /// Leases blocks of a rank for reading by holders of a ticket for the set.
    ///
    /// Args:
    ///     set: the lease set, 16 random bytes, the same on all ranks.
    ///     rank: the rank whose blocks they are.
    ///     tables: for each group, block numbers (-1: none), or None for block i = entry i.
    ///     content: the `Prompt.digest` of the blocks' content, as of the end of the prefill.
    ///     valid_tokens: how many tokens are valid, counted from position 0.
    ///     start: first token that is transferred.
    ///     ttl: seconds that the lease lives unless it is renewed or used.
    ///     hard_bound: seconds for which a running transfer can keep it alive.
    ///     prefilled: whether the blocks are complete already; otherwise report with `ready` and `finish_prefill`.
    ///     after: a `Mark` after the work that computes `prefilled` blocks. They are leased at once, and read after the
    ///         mark. If it can never be reached, the lease is cancelled.
    ///
    /// Raises:
    ///     LeaseError: such a lease is not possible.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (set, rank, tables, content, valid_tokens, *, start = 0, ttl = 60.0, hard_bound = 600.0,
        prefilled = true, after = None))]
    #[allow(clippy::too_many_arguments)]
    fn lease(
        &self,
        py: Python<'_>,
        set: [u8; 16],
        rank: u32,
        tables: &Bound<'_, PyAny>,
        content: [u8; 32],
        valid_tokens: u64,
        start: u64,
        ttl: f64,
        hard_bound: f64,
        prefilled: bool,
        after: Option<&Mark>,
    ) -> PyResult<Lease> {
        let mut request = lease_request((set, rank), tables, content, valid_tokens, (ttl, hard_bound))?;
        request.start = start;
        request.prefilled = prefilled;
        request.after = after.map(Mark::after).unwrap_or_default();
        let (keeper, quiet) = quiet();
        request.keeper = Some(keeper);
        let opened = self.made.wait(py, self.inner.lease(request))?;
        Lease::of(opened.map_err(not_opened)?, quiet)
    }

    /// Opens blocks of a rank for writing by holders of a ticket for the set: the destination of a `push`.
    ///
    /// Arguments and exceptions are those of `lease`, except for one:
    ///
    /// Args:
    ///     after: a `Mark` after the work that still reads the blocks. This method waits for it, `ttl` seconds at most,
    ///         without the interpreter's lock.
    #[pyo3(signature = (set, rank, tables, content, valid_tokens, *, start = 0, ttl = 60.0, hard_bound = 600.0,
        after = None))]
    #[allow(clippy::too_many_arguments)]
    fn open(
        &self,
        py: Python<'_>,
        set: [u8; 16],
        rank: u32,
        tables: &Bound<'_, PyAny>,
        content: [u8; 32],
        valid_tokens: u64,
        start: u64,
        ttl: f64,
        hard_bound: f64,
        after: Option<&Mark>,
    ) -> PyResult<Lease> {
        let mut request = lease_request((set, rank), tables, content, valid_tokens, (ttl, hard_bound))?;
        request.start = start;
        request.after = after.map(Mark::after).unwrap_or_default();
        let (bound, done) = (request.ttl, request.after.done());
        let reached = self.made.wait(py, async { timeout(bound, done).await })?;
        if reached.is_err() {
            return Err(LeaseError::new_err(format!(
                "the blocks cannot be opened: their mark was not reached within {ttl} s"
            )));
        }
        let (keeper, quiet) = quiet();
        request.keeper = Some(keeper);
        let opened = self.made.wait(py, self.inner.open(request))?;
        Lease::of(opened.map_err(not_opened)?, quiet)
    }

    /// Starts to pull the blocks of a ticket into own blocks. The blocks must not be used before it has ended.
    ///
    /// Args:
    ///     ticket: the ticket.
    ///     ranks: the ranks of this agent that receive; all of them have the same block tables.
    ///     tables: for each group, block numbers (-1: none), or None for block i = entry i.
    ///     content: the expected `Prompt.digest` of the source's blocks.
    ///     tokens: number of tokens, from `start` on.
    ///     start: first token.
    ///     by_layer: whether layers may arrive before the prefill is over.
    ///     paths: "any", "quic" (the network only), "local" (paths within one host), or one of those: "ring" (through
    ///         host memory) or "device" (through memory of the one GPU that has both caches).
    ///     timeout: seconds for the whole pull, retries included.
    ///     keep_leases: whether the leases survive a failure, so that the pull can be tried again soon.
    ///     into: a ticket for a push into these very blocks, if the owner is to push them. It is for a set without open
    ///         leases, for tokens `start` to `start + tokens`, and names all ranks of this deployment. Each rank pulls
    ///         with the same ticket, and its blocks are open meanwhile. It needs the role `serve` here and `push` at
    ///         the owner.
    ///     after: a `Mark` after the work that still reads or writes the blocks. The pull begins after it; this method
    ///         returns at once. Waiting for the mark may take `timeout` seconds in addition to the pull's own.
    ///     codec: the encoding of keys and values on the network: `exact`, or for f32, f16 and bf16 `q8` or `q4`, which
    ///         take fewer bytes and are not exact. The owner has to allow it in its `codecs`, and it excludes `into`.
    ///         The resulting blocks, and what is computed from them, must not be leased or saved as exact.
    ///
    /// Raises:
    ///     TransferError: the ticket is not for this.
    ///     AgentError: the agent has stopped.
    #[pyo3(signature = (ticket, ranks, tables, content, tokens, *, start = 0, by_layer = false, paths = "any",
        timeout = 300.0, keep_leases = false, into = None, after = None, codec = "exact"))]
    #[allow(clippy::too_many_arguments)]
    fn pull(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        ranks: Vec<u32>,
        tables: &Bound<'_, PyAny>,
        content: [u8; 32],
        tokens: u64,
        start: u64,
        by_layer: bool,
        paths: &str,
        timeout: f64,
        keep_leases: bool,
        into: Option<&Ticket>,
        after: Option<&Mark>,
        codec: &str,
    ) -> PyResult<Transfer> {
        let mut request = transfer_request(ticket, ranks, tables, content, (start, tokens), (paths, timeout))?;
        request.request.by_layer = by_layer;
        request.request.codec = named_codec(codec)?;
        request.keep_leases = keep_leases;
        request.into = into.map(|ticket| ticket.inner.clone());
        request.after = after.map(Mark::after).unwrap_or_default();
        Transfer::of_pull(py, self.made, &self.inner, request)
    }

    /// Starts to push own blocks into those that a ticket opens. `start` and `tokens` have to be those of the ticket.
    ///
    /// Args:
    ///     prefilled: whether the blocks are complete already; otherwise report with `ready` and `finish_prefill`.
    ///     after: a `Mark` after the work that computes `prefilled` blocks. The push begins at once, and reads them
    ///         after the mark.
    ///
    /// The other arguments, and the exceptions, are those of `pull`.
    #[pyo3(signature = (ticket, ranks, tables, content, tokens, *, start = 0, by_layer = false, paths = "any",
        timeout = 300.0, keep_leases = false, prefilled = true, after = None))]
    #[allow(clippy::too_many_arguments)]
    fn push(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        ranks: Vec<u32>,
        tables: &Bound<'_, PyAny>,
        content: [u8; 32],
        tokens: u64,
        start: u64,
        by_layer: bool,
        paths: &str,
        timeout: f64,
        keep_leases: bool,
        prefilled: bool,
        after: Option<&Mark>,
    ) -> PyResult<Transfer> {
        let common = transfer_request(ticket, ranks, tables, content, (start, tokens), (paths, timeout))?;
        let (keeper, quiet) = quiet();
        let mut request = PushRequest {
            request: common.request,
            paths: common.paths,
            timeout: common.timeout,
            keep_leases,
            prefilled,
            after: after.map(Mark::after).unwrap_or_default(),
            keeper: Some(keeper),
            ..PushRequest::new(common.ticket, common.ranks, common.tables, common.content, tokens)
        };
        request.request.by_layer = by_layer;
        let started = self.made.wait(py, self.inner.start_push(request))?;
        Transfer::of(started.map_err(|error| failed(py, &error))?, quiet)
    }

    /// Cancels the leases of a ticket for which no transfer has begun; with `content`, only leases of that content. It
    /// ends with two numbers, how many of the ticket's agents were told and how many there are, or with a
    /// TransferError.
    ///
    /// Raises:
    ///     AgentError: the agent was made before a fork.
    #[pyo3(signature = (ticket, content = None))]
    fn cancel(&self, ticket: &Ticket, content: Option<[u8; 32]>) -> PyResult<Completion> {
        let (agent, ticket) = (self.inner.clone(), ticket.inner.clone());
        self.made.later(async move {
            let notified = agent.cancel(ticket, content.map(ContentDigest)).await;
            outcome(move |py| match &notified {
                Ok(notified) => Ok(notified.heard.into_pyobject(py)?.into_any().unbind()),
                Err(error) => Err(notice_failed(py, error)),
            })
        })
    }

    /// Asks the owner of a ticket to extend its leases to at least `ttl` seconds from then. It ends with the number of
    /// seconds that they live, with None if no agent has answered so, or with a TransferError.
    ///
    /// Raises:
    ///     AgentError: the agent was made before a fork.
    fn renew(&self, ticket: &Ticket, ttl: f64) -> PyResult<Completion> {
        let (agent, ticket) = (self.inner.clone(), ticket.inner.clone());
        let ttl = seconds("ttl", ttl)?;
        self.made.later(async move {
            let notified = agent.renew(ticket, ttl).await;
            outcome(move |py| match &notified {
                Ok(notified) => {
                    let left = notified.left.map(|left| left.as_secs_f64());
                    Ok(left.into_pyobject(py)?.unbind())
                }
                Err(error) => Err(notice_failed(py, error)),
            })
        })
    }

    /// Returns the current numbers of leases, transfers, jobs, sessions and more, by name.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn gauges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let gauges = self.made.wait(py, self.inner.gauges())?.map_err(raise!(AgentError))?;
        let named = PyDict::new(py);
        for (name, value) in [
            ("sessions", gauges.sessions),
            ("agents", gauges.agents),
            ("leases", gauges.leases),
            ("early", gauges.early),
            ("queued", gauges.queued),
            ("stalled", gauges.stalled),
            ("transfers", gauges.transfers),
            ("jobs", gauges.jobs),
            ("notices", gauges.notices),
        ] {
            named.set_item(name, value)?;
        }
        Ok(named)
    }

    /// Returns what the agent has done since it was created. No value ever decreases, so take differences.
    ///
    /// Returns:
    ///     A dict, with times in seconds:
    ///
    ///     - `pulls`, `pushes`: its own transfers: the numbers that were `begun`, have `succeeded`, and have `failed`,
    ///       by the `kind` of their `TransferError`. For those that succeeded, the `seconds` they took, and how many of
    ///       these they were `queued`, until their first byte moved. A call that raised at once was never begun.
    ///     - `served`, `received`: what others have pulled from blocks leased here, and pushed into blocks opened here;
    ///       by route (from one rank to another) and attempt.
    ///     - `bytes_out`, `bytes_in`: bytes that left this memory and arrived in it, by path, for completed routes.
    ///     - `busy`: seconds in which at least one route was moving, from its first byte to its end.
    ///     - `chunks`: the number of runs of memory gathered or scattered here, by length: the key is the smallest
    ///       power of two not below their bytes.
    ///     - `leases`: the number `opened`, and the ways in which they ended.
    ///     - `plans`: the number compiled.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read = self.made.wait(py, self.inner.metrics())?;
        metrics(py, &read.map_err(raise!(AgentError))?)
    }

    /// Stops accepting work, waits up to `patience` seconds for running work, cancels the rest, and closes all
    /// connections.
    #[pyo3(signature = (patience = 5.0))]
    fn shutdown(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        self.made.wait(py, self.inner.shutdown(seconds("patience", patience)?))
    }

    fn __enter__(agent: Py<Self>) -> Py<Self> {
        agent
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shutdown(py, 5.0)
    }

    fn __repr__(&self) -> String {
        format!("<transload.Agent {} on port {}>", self.name(), self.port())
    }
}

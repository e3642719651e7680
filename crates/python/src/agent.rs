//! Agents.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::time::timeout;
use transload::layout::Rank;
use transload::transfer::internal::identity;
use transload::transfer::{self, AgentOptions, ContentDigest, Incarnation, InstanceName, PullRequest, PushRequest};

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

/// A fresh number for the life of an engine instance, as agents draw it: greater than those drawn before, by the clock.
/// All agents of one instance are made with the same.
#[pyfunction]
pub(crate) fn new_incarnation() -> PyResult<u128> {
    Ok(identity::new_incarnation()?.0)
}

/// The name of an engine instance that was given none: this host's, which is the pod's on Kubernetes, and a port. It is
/// the same after a restart.
#[pyfunction]
pub(crate) fn default_instance(port: u16) -> String {
    identity::default_instance(port).to_string()
}

/// A process that holds KV memory and moves it, for some ranks of one deployment.
///
/// It lives until `shutdown`, or until nobody holds it any more; its leases and transfers end with it. Registered memory
/// is let go of by then.
///
/// Args:
///     identity: its certificate and key.
///     deployment: how its engine lays the cache out.
///     memories: for each rank, the memory of each group, in the order of the document.
///     bind: UDP address of the control port, `host:port`; port 0 takes a free one.
///     incarnation: the life of the deployment, the same number on all ranks of one engine instance, greater after
///         a restart: `new_incarnation`, which is also what None draws.
///     instance: its name below the service of its certificate, where several agents have the same certificate: letters,
///         digits and . _ ~ -, 64 at most. It has to be the same after a restart. If None, `default_instance` of the
///         control port.
///     lanes: data connections to each peer over the network, each with a socket, a port and a thread of its own. One
///         fills about one core. If None, half as many as there are cores, 4 at most.
///     lane_ports: first and last UDP port for the lanes, as `(7700, 7703)`: at least as many as there are lanes. If None,
///         the system chooses.
///     early_wait: seconds that a pull which comes before its lease waits for it: half of `stall_seconds` at most. If None, 10.
///     notice_wait: seconds that an owner which cannot be reached is tried, to be told that its leases are done with or
///         given up. If None, 60.
///     keep_idle: seconds that a connection is kept which nothing needs; at least twice `early_wait`. If None, 60.
///     stall_seconds: seconds that a peer may stand still, or be silent, before what moves between the two fails and is tried
///         again. A process that is gone is heard of in a second whatever this is, where its host says that the port is
///         closed: this is for hosts that vanish or say nothing, and for processes that hang. Where it is less than 2, peers need the same. If None, 20, and 10 for the silence.
///     connect_seconds: seconds that an agent is dialled which does not answer, at each address of its host. If it is less
///         than 5, connections from elsewhere have no longer either, until both sides have accepted each other. If None, 15.
///     codecs: in which codecs others may have what they pull from here sent, besides exactly: some of `q8` and `q4`.
///
/// Raises:
///     AgentError: memory or ranks do not suit the deployment, an option cannot be (it is named), or the address cannot
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
            let _entered = handle.enter();
            builder.bind(addr)
        });
        Ok(Self { inner: inner.map_err(raise!(AgentError))?, made: Made::here() })
    }

    /// Its name, `SERVICE/INSTANCE`: the service that its certificate is of, and its own name below it.
    #[getter]
    fn name(&self) -> &str {
        self.inner.id().as_str()
    }

    /// The UDP port of its control connections.
    #[getter]
    fn port(&self) -> u16 {
        self.inner.control_addr().port()
    }

    /// The life of the deployment that it belongs to.
    #[getter]
    fn incarnation(&self) -> u128 {
        self.inner.incarnation().0
    }

    /// Digest of its deployment, as tickets name it.
    #[getter]
    fn deployment_digest(&self) -> [u8; 32] {
        self.inner.deployment_digest().0
    }

    /// Leases blocks of a rank to whoever holds a ticket for the set, to be read.
    ///
    /// Args:
    ///     set: the lease set, 16 random bytes, the same on all ranks.
    ///     rank: the rank whose blocks they are.
    ///     tables: for each group, block numbers (-1: none), or None for block i = entry i.
    ///     content: the `Prompt.digest` of what they hold, or will hold when the prefill is over.
    ///     valid_tokens: how many tokens are valid, counted from position 0.
    ///     start: first token that moves.
    ///     ttl: seconds that the lease lives unless it is renewed or used.
    ///     hard_bound: seconds that a transfer under way can keep it alive.
    ///     prefilled: whether the blocks hold everything already; otherwise tell `ready` and `finish_prefill`.
    ///     after: a `Mark` behind what computes `prefilled` blocks. They are leased at once, and read after it. Where it can
    ///         never be reached, the lease is cancelled.
    ///
    /// Raises:
    ///     LeaseError: there cannot be such a lease.
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

    /// Opens blocks of a rank to whoever holds a ticket for the set, to be written: the other half of a `push`.
    ///
    /// Arguments and exceptions are those of `lease`, but for one:
    ///
    /// Args:
    ///     after: a `Mark` behind what still reads the blocks. This waits for it, `ttl` seconds at most, without the
    ///         interpreter's lock.
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

    /// Begins to pull what a ticket allows into own blocks. The blocks must not be used before it has ended.
    ///
    /// Args:
    ///     ticket: what allows it.
    ///     ranks: the ranks of this agent that receive; all of them have the same block tables.
    ///     tables: for each group, block numbers (-1: none), or None for block i = entry i.
    ///     content: the `Prompt.digest` that the blocks there are taken to have.
    ///     tokens: how many tokens, from `start` on.
    ///     start: first token.
    ///     by_layer: whether layers may come before the prefill is over.
    ///     paths: "any", "quic" (the network only), "local" (what stays on one host), or one of those: "ring" (through memory of
    ///         the host) or "device" (through memory of the one GPU that has the caches of both).
    ///     timeout: seconds that all of it may take, retries included.
    ///     keep_leases: whether the leases live on where it fails, so that it may be tried again soon.
    ///     into: a ticket for a push into these very blocks, where the owner shall push them. It is for a set that nothing
    ///         was opened under, for tokens `start` to `start + tokens`, and names all ranks of this deployment: each of
    ///         them pulls with the same, and its blocks are open while it does. It takes the role `serve` here and `push`
    ///         there.
    ///     after: a `Mark` behind what still reads or writes the blocks. The pull begins after it; this returns at once. The
    ///         wait may take `timeout` seconds, besides the pull's own.
    ///     codec: how keys and values travel: `exact`, or, in f32, f16 and bf16, `q8` or `q4`, which take fewer bytes and are
    ///         not exact. The owner has to have it among its `codecs`; it goes over the network, and not with `into`. What the
    ///         blocks hold then, and what is computed on that, may be neither leased nor saved as exact.
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

    /// Begins to push own blocks into those that a ticket opens. `start` and `tokens` have to be those of the ticket.
    ///
    /// Args:
    ///     prefilled: whether the blocks hold everything already; otherwise tell `ready` and `finish_prefill`.
    ///     after: a `Mark` behind what computes `prefilled` blocks. The push begins at once, and reads them after it.
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
        let PullRequest { ticket, ranks, tables, mut request, content, paths, timeout, .. } =
            transfer_request(ticket, ranks, tables, content, (start, tokens), (paths, timeout))?;
        request.by_layer = by_layer;
        let after = after.map(Mark::after).unwrap_or_default();
        let (keeper, quiet) = quiet();
        let keeper = Some(keeper);
        let request = PushRequest {
            ticket,
            ranks,
            tables,
            request,
            content,
            paths,
            timeout,
            keep_leases,
            prefilled,
            after,
            keeper,
        };
        let started = self.made.wait(py, self.inner.start_push(request))?;
        Transfer::of(started.map_err(|error| failed(py, &error))?, quiet)
    }

    /// Gives up what a ticket stands for, where no transfer has begun; with `content`, only leases of that content.
    /// It ends with how many agents of the ticket have heard it, of how many, or with a TransferError.
    ///
    /// Raises:
    ///     AgentError: the agent was made before a fork.
    #[pyo3(signature = (ticket, content = None))]
    fn cancel(&self, ticket: &Ticket, content: Option<[u8; 32]>) -> PyResult<Completion> {
        let (agent, ticket) = (self.inner.clone(), ticket.inner.clone());
        self.made.later(async move {
            let told = agent.cancel(ticket, content.map(ContentDigest)).await;
            outcome(move |py| match &told {
                Ok(told) => Ok(told.heard.into_pyobject(py)?.into_any().unbind()),
                Err(error) => Err(notice_failed(py, error)),
            })
        })
    }

    /// Asks the owner of a ticket to let its leases live for `ttl` seconds from then at least. It ends with how many
    /// seconds they do, None if no agent of it has answered so, or with a TransferError.
    ///
    /// Raises:
    ///     AgentError: the agent was made before a fork.
    fn renew(&self, ticket: &Ticket, ttl: f64) -> PyResult<Completion> {
        let (agent, ticket) = (self.inner.clone(), ticket.inner.clone());
        let ttl = seconds("ttl", ttl)?;
        self.made.later(async move {
            let told = agent.renew(ticket, ttl).await;
            outcome(move |py| match &told {
                Ok(told) => {
                    let left = told.left.map(|left| left.as_secs_f64());
                    Ok(left.into_pyobject(py)?.unbind())
                }
                Err(error) => Err(notice_failed(py, error)),
            })
        })
    }

    /// How much of everything is under way, by name: leases, transfers, jobs, sessions and more.
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

    /// What it has done since it was made. Nothing in it ever goes down: take differences.
    ///
    /// Returns:
    ///     A dict, with times in seconds:
    ///
    ///     - `pulls`, `pushes`: of its own: how many were `begun`, have `succeeded`, and have `failed`, these by the `kind`
    ///       of their `TransferError`; of those that succeeded, the `seconds` they took, and those of them that they were
    ///       `queued`, until their first byte moved. What raised at once was never begun.
    ///     - `served`, `received`: what others have pulled out of blocks that were leased here, and pushed into blocks that
    ///       were opened here; by route (what one rank sends to one other) and attempt.
    ///     - `bytes_out`, `bytes_in`: bytes that have left this memory and come into it, by path, of routes that have landed.
    ///     - `busy`: seconds in which at least one route was moving, from its first byte to its end.
    ///     - `chunks`: how many runs of memory were gathered or scattered here, by length: the key is the smallest power of
    ///       two that is not below their bytes.
    ///     - `leases`: how many were `opened`, and how they have ended.
    ///     - `plans`: how many were compiled.
    ///
    /// Raises:
    ///     AgentError: the agent has stopped.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read = self.made.wait(py, self.inner.metrics())?;
        metrics(py, &read.map_err(raise!(AgentError))?)
    }

    /// Takes nothing new, waits up to `patience` seconds for what is under way, gives up what is left, and closes all
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

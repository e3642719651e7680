//! Tickets.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use transload::transfer::plan::ids::DeploymentDigest;
use transload::transfer::wire::Audience;
use transload::transfer::{self, AgentId, Claims, Direction, Incarnation, LeaseSetId, RankAddress};

use crate::errors::{TicketError, raise};
use crate::identity::Identity;
use crate::runtime::seconds;

/// A ticket, whose holder may pull (or push) one request's blocks. Its text is a secret; `repr` shows a fingerprint.
///
/// Args:
///     text: the text of a ticket. Only its length and its beginning are checked.
///
/// Raises:
///     TicketError: it is not a ticket.
#[pyclass(frozen, eq, hash, module = "transload")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) inner: transfer::Ticket,
}

#[pymethods]
impl Ticket {
    #[new]
    fn new(text: &Bound<'_, PyString>) -> PyResult<Self> {
        // JSON can contain half of a surrogate pair, which UTF-8 cannot. Python's own error would show the text.
        let Ok(text) = text.to_str() else {
            return Err(TicketError::new_err("a ticket is ASCII, this is not even Unicode"));
        };
        let inner = transfer::Ticket::from_text(text).map_err(raise!(TicketError))?;
        Ok(Self { inner })
    }

    /// Makes a ticket for a lease set. This needs neither memory nor an agent, so a scheduler can do it.
    ///
    /// Args:
    ///     identity: the identity of an agent in the cluster where the ticket is valid.
    ///     set: the lease set, 16 random bytes.
    ///     ranks: `(agent, host, port)` of each rank of the owner, in their order.
    ///     deployment: digest of the owner's deployment.
    ///     incarnation: the number of the owner's life that the leases belong to: `Agent.incarnation`.
    ///     valid_tokens: the number of valid tokens, counted from position 0.
    ///     push: whether its holder writes the owner's blocks instead of reading them.
    ///     start: the first token that may be transferred.
    ///     time_left: the remaining life of the leases in seconds, as a hint.
    ///     audience: the name of the only agent, or the digest of the only deployment, that may use it.
    ///
    /// Raises:
    ///     TicketError: the claims are inconsistent, or too many for one ticket.
    #[staticmethod]
    #[pyo3(signature = (identity, set, ranks, *, deployment, incarnation, valid_tokens, push = false, start = 0,
        time_left = 60.0, audience = None))]
    // One argument for each claim of a ticket.
    #[allow(clippy::too_many_arguments)]
    fn mint(
        identity: &Identity,
        set: [u8; 16],
        ranks: Vec<(String, String, u16)>,
        deployment: [u8; 32],
        incarnation: u128,
        valid_tokens: u64,
        push: bool,
        start: u64,
        time_left: f64,
        audience: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let name = |text: &str| AgentId::new(text).map_err(raise!(TicketError));
        let ranks = ranks.into_iter().map(|(agent, host, port)| Ok(RankAddress { agent: name(&agent)?, host, port }));
        let audience = match audience {
            None => None,
            Some(given) => Some(match given.extract::<String>() {
                Ok(agent) => Audience::Agent(name(&agent)?),
                Err(_) => Audience::Deployment(DeploymentDigest(given.extract()?)),
            }),
        };
        let claims = Claims {
            cluster: identity.inner.peer().cluster.clone(),
            set: LeaseSetId(set),
            direction: match push {
                true => Direction::Push,
                false => Direction::Pull,
            },
            owner: DeploymentDigest(deployment),
            incarnation: Incarnation(incarnation),
            start,
            valid_tokens,
            ranks: ranks.collect::<PyResult<_>>()?,
            time_left: seconds("time_left", time_left)?,
            audience,
        };
        let inner = transfer::Ticket::mint(&identity.ticket_key(), &claims);
        Ok(Self { inner: inner.map_err(raise!(TicketError))? })
    }

    /// Checks that the ticket belongs to this cluster, and returns its claims.
    ///
    /// Returns:
    ///     A dict of `set`, `push`, `deployment`, `incarnation`, `start`, `valid_tokens`, `ranks` and `time_left`, as
    ///         given to `mint`.
    ///
    /// Raises:
    ///     TicketError: it was not sealed with this cluster's key, or has been changed.
    fn open<'py>(&self, py: Python<'py>, identity: &Identity) -> PyResult<Bound<'py, PyDict>> {
        let claims = self.inner.open(&identity.ticket_key());
        let claims = claims.map_err(raise!(TicketError))?;
        let ranks = claims.ranks.iter().map(|rank| {
            let agent = rank.agent.as_str();
            (agent, rank.host.as_str(), rank.port)
        });
        let contents = PyDict::new(py);
        contents.set_item("set", claims.set.0)?;
        contents.set_item("push", claims.direction == Direction::Push)?;
        contents.set_item("deployment", claims.owner.0)?;
        contents.set_item("incarnation", claims.incarnation.0)?;
        contents.set_item("start", claims.start)?;
        contents.set_item("valid_tokens", claims.valid_tokens)?;
        contents.set_item("ranks", ranks.collect::<Vec<_>>())?;
        contents.set_item("time_left", claims.time_left.as_secs_f64())?;
        Ok(contents)
    }

    /// The text, to be passed to the agent that may use it. Never log it.
    #[getter]
    fn text(&self) -> &str {
        self.inner.expose()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (&str,)) {
        (py.get_type::<Self>(), (self.text(),))
    }

    fn __repr__(&self) -> String {
        format!("<transload.Ticket {}>", self.inner)
    }
}

//! The identity of an agent: certificate, key, and the secret that seals tickets.

use std::path::PathBuf;

use pyo3::prelude::*;
use transload::transfer::{self, ServiceName, TicketKey};

use crate::errors::{IdentityError, raise};
use crate::logs;

/// A certificate and its key, from a folder that `transload certs init` made.
///
/// Args:
///     folder: the folder. With `name` it is that of the whole cluster, otherwise one with a single certificate. An
///         agent rereads it when its files change.
///     name: the name of the certificate's service.
///
/// A key that other users can read causes a warning only, since container platforms choose the modes of mounted
/// secrets.
///
/// Raises:
///     IdentityError: a file is missing, unreadable, or does not match the others.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Identity {
    pub(crate) inner: transfer::Identity,
}

#[pymethods]
impl Identity {
    #[new]
    #[pyo3(signature = (folder, name = None))]
    fn new(py: Python<'_>, folder: PathBuf, name: Option<&str>) -> PyResult<Self> {
        logs::start(py)?;
        let inner = match name {
            Some(name) => {
                let name = ServiceName::new(name).map_err(raise!(IdentityError))?;
                transfer::Identity::load_agent(folder, &name)
            }
            None => transfer::Identity::load(folder),
        };
        Ok(Self { inner: inner.map_err(raise!(IdentityError))? })
    }

    /// The name of the certificate's service.
    #[getter]
    fn service(&self) -> &str {
        self.inner.peer().service.as_str()
    }

    /// The cluster's name.
    #[getter]
    fn cluster(&self) -> &str {
        self.inner.peer().cluster.as_str()
    }

    fn __repr__(&self) -> String {
        format!("<transload.Identity {} of {}>", self.service(), self.cluster())
    }
}

impl Identity {
    pub(crate) fn ticket_key(&self) -> TicketKey {
        TicketKey::new(self.inner.ticket_secret().as_bytes())
    }
}

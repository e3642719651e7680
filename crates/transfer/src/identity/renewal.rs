//! Certificates that are replaced while agents run.

use thiserror::Error;

use super::files::{Contents, IdentityFileError};
use super::proof::{Identity, Renewals};
use transload_plan::ids::{ClusterName, ServiceName};

/// The reason why an identity cannot replace another.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RenewalError {
    /// The files do not make an identity.
    #[error(transparent)]
    Files(#[from] IdentityFileError),
    /// It is of another service or cluster, so that peers would take this agent for a different one.
    #[error(
        "the new certificate is of service {service} in cluster {cluster}, the one in use of service {} in \
         cluster {}", .ours.0, .ours.1
    )]
    Another { service: ServiceName, cluster: ClusterName, ours: (ServiceName, ClusterName) },
}

impl Identity {
    /// Checks that `new` is of the same service and cluster. Its roles may differ.
    pub(crate) fn check_successor(&self, new: &Identity) -> Result<(), RenewalError> {
        let (old, new) = (self.peer(), new.peer());
        if (&old.service, &old.cluster) == (&new.service, &new.cluster) {
            return Ok(());
        }
        Err(RenewalError::Another {
            service: new.service.clone(),
            cluster: new.cluster.clone(),
            ours: (old.service.clone(), old.cluster.clone()),
        })
    }
}

impl Renewals {
    /// Returns the files that an identity was read from, if any.
    pub(crate) fn of(identity: &Identity) -> Option<Self> {
        identity.origin.as_deref().cloned()
    }

    /// Reads the files. Returns `None` if their contents, valid or not, are the same as the last time; so an error is
    /// reported once.
    ///
    /// Contents are compared rather than modification times, because platforms replace mounted secrets by changing
    /// symbolic links.
    pub(crate) fn look(&mut self) -> Option<Result<Identity, IdentityFileError>> {
        let read = Contents::read(&self.dir, &self.name);
        // A missing file counts as contents of its own, so it is reported once, too.
        let digest = read.as_ref().map_or([0; 32], |read| read.origin.digest);
        if std::mem::replace(&mut self.digest, digest) == digest {
            return None;
        }
        Some(read.and_then(Contents::parse))
    }
}

//! Certificates that are replaced while agents run.

use std::path::PathBuf;

use thiserror::Error;

use super::files::{Contents, IdentityFileError};
use super::proof::Identity;
use transload_plan::ids::{ClusterName, ServiceName};

/// Why an identity cannot take the place of another.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RenewalError {
    /// The files do not make an identity.
    #[error(transparent)]
    Files(#[from] IdentityFileError),
    /// It is of another service or cluster, so that peers would take this agent for somebody else.
    #[error(
        "the new certificate is of service {service} in cluster {cluster}, the one in use of service {} in \
         cluster {}", .ours.0, .ours.1
    )]
    Another { service: ServiceName, cluster: ClusterName, ours: (ServiceName, ClusterName) },
}

impl Identity {
    /// Checks that `new` is of the same service and cluster. Its roles may be others.
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

/// The files that an identity was read from, and what they held.
#[derive(Clone)]
pub(crate) struct Renewals {
    pub(super) dir: PathBuf,
    pub(super) name: String,
    pub(super) digest: [u8; 32],
}

impl Renewals {
    /// Watches the files that an identity was read from, if it was.
    pub(crate) fn of(identity: &Identity) -> Option<Self> {
        identity.origin.as_deref().cloned()
    }

    /// Reads the files. Gives nothing where they hold what they held the last time, good or bad: what is wrong
    /// is told once.
    ///
    /// The contents count and not the files' times: platforms replace mounted secrets by turning symbolic links.
    pub(crate) fn look(&mut self) -> Option<Result<Identity, IdentityFileError>> {
        let read = Contents::read(&self.dir, &self.name);
        // A file that is not there is as any other contents: told of once.
        let digest = read.as_ref().map_or([0; 32], |read| read.origin.digest);
        if std::mem::replace(&mut self.digest, digest) == digest {
            return None;
        }
        Some(read.and_then(Contents::parse))
    }
}

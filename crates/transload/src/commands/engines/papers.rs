//! What the second process proves itself with, handed over through a pipe.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use transload::transfer::identity::{Identity, IdentityError, IdentityFileError, TicketSecret};

/// An identity in a form that can be sent. It holds secrets: only ever through a private pipe, never
/// through arguments or the environment, which other users can read. So it has no `Debug`.
#[derive(Deserialize, Serialize)]
pub(super) struct Papers {
    chain: Vec<Vec<u8>>,
    key: String,
    authority: Vec<u8>,
    ticket_secret: [u8; TicketSecret::BYTES],
}

/// Why an identity could not be handed over.
#[derive(Debug, Error)]
pub(super) enum PapersError {
    #[error("the key of the other process could not be handed over: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Files(#[from] IdentityFileError),
    #[error("the key that was handed over is none: {0}")]
    Key(#[from] rustls_pki_types::pem::Error),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl Papers {
    pub(super) fn of(identity: &Identity) -> Result<Self, PapersError> {
        Ok(Self {
            chain: identity.chain().iter().map(|c| c.to_vec()).collect(),
            key: key(identity)?,
            authority: identity.authority().to_vec(),
            ticket_secret: *identity.ticket_secret().as_bytes(),
        })
    }

    pub(super) fn into_identity(self) -> Result<Identity, PapersError> {
        let chain = self.chain.into_iter().map(CertificateDer::from).collect();
        Ok(Identity::new(
            chain,
            PrivateKeyDer::from_pem_slice(self.key.as_bytes())?,
            self.authority.into(),
            self.ticket_secret.into(),
        )?)
    }
}

/// The private key. An identity gives it to nothing but files, so it goes through one for a moment:
/// in a folder that only this user can enter, and where there is one in memory and not on a disk.
fn key(identity: &Identity) -> Result<String, PapersError> {
    let folder = PrivateFolder::new()?;
    identity.save(&folder.0)?;
    let name = format!("{}.key", identity.peer().agent);
    Ok(std::fs::read_to_string(folder.0.join(name))?)
}

/// A folder of this user alone, which goes away with its contents.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new() -> Result<Self, PapersError> {
        let name = transload::transfer::identity::random_cluster_name()?;
        let memory = Path::new("/dev/shm");
        let parents = [memory.to_owned(), std::env::temp_dir()];
        let mut last = None;
        for parent in parents {
            let path = parent.join(format!("transload-{name}"));
            // Fails where the folder exists, so it is nobody else's.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = Some(error),
            }
        }
        Err(last
            .unwrap_or_else(|| io::ErrorKind::NotFound.into())
            .into())
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a temporary key is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use transload::transfer::identity::{Authority, Roles, random_cluster_name};

    use super::*;

    #[test]
    fn an_identity_survives_the_pipe() {
        let authority = Authority::new(random_cluster_name().expect("a name")).expect("one");
        let agent = "prefill".parse().expect("a name");
        let identity = authority.issue(&agent, Roles::all()).expect("an identity");
        let papers = Papers::of(&identity).expect("papers");
        let text = serde_json::to_string(&papers).expect("text");
        let papers: Papers = serde_json::from_str(&text).expect("papers");
        let arrived = papers.into_identity().expect("an identity");
        assert_eq!(arrived.peer(), identity.peer());
    }
}

//! The credentials of an agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use super::certificate::{self, PeerIdentityError};
use super::name::PeerIdentity;
use super::ticket_secret::TicketSecret;
use super::tls;
use super::validity::Validity;

/// The credentials of an agent: its certificate and key, the certificates of its authorities, and the cluster's ticket
/// key.
///
/// It is cheap to clone. `Debug` shows the agent's identity and no secret.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
    pub(super) origin: Option<Arc<Renewals>>,
}

struct Inner {
    peer: PeerIdentity,
    validity: Validity,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Vec<CertificateDer<'static>>,
    ticket_secret: TicketSecret,
    tls: tls::Configs,
}

/// The files that an identity was read from, and a digest of their contents.
#[derive(Clone)]
pub(crate) struct Renewals {
    pub(super) dir: PathBuf,
    pub(super) name: String,
    pub(super) digest: [u8; 32],
}

/// The most trusted authorities: the current one, the previous one, and room for more.
pub(crate) const MAX_AUTHORITIES: usize = 4;

/// The reason why a certificate, a key and an authority do not make an [`Identity`].
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum IdentityError {
    /// No authority is trusted, or more than four.
    #[error("{found} certificates of authorities; there must be 1 to {MAX_AUTHORITIES}")]
    Authorities { found: usize },
    /// There is no certificate in the chain.
    #[error("the certificate chain is empty")]
    NoCertificate,
    /// A text is not PEM, or has other contents.
    #[error("{what} cannot be read from PEM")]
    Pem { what: &'static str },
    /// The certificate does not name the agent, or is malformed.
    #[error("the agent's certificate does not serve as one")]
    Certificate(#[from] PeerIdentityError),
    /// The authority's certificate is not one of a Transload authority.
    #[error("the authority's certificate does not serve as one")]
    Authority(#[source] PeerIdentityError),
    /// The key does not match the certificate, or the authority does not (or no longer) vouch for the certificate.
    #[error("the certificate, its key and the authority do not fit together: {0}")]
    Tls(#[from] tls::TlsError),
}

impl Identity {
    /// Makes an identity of parts in memory, and checks that they fit together: the key with the certificate, and the
    /// certificate with one of the authorities (signature, validity, usages, cluster).
    ///
    /// `chain` begins with the agent's own certificate. All `authorities` are trusted, and must be of one cluster;
    /// there are two while an authority is being replaced.
    ///
    /// # Errors
    /// [`IdentityError`], which names the part that does not fit.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        ticket_secret: TicketSecret,
    ) -> Result<Self, IdentityError> {
        let own = chain.first().ok_or(IdentityError::NoCertificate)?;
        let peer = PeerIdentity::from_certificate(own)?;
        if !(1..=MAX_AUTHORITIES).contains(&authorities.len()) {
            let found = authorities.len();
            return Err(IdentityError::Authorities { found });
        }
        for authority in &authorities {
            let cluster = certificate::cluster_of_authority(authority);
            peer.check(&cluster.map_err(IdentityError::Authority)?, None)?;
        }
        let tls = tls::Configs::new(&peer.cluster, &chain, &key, &authorities)?;
        Ok(Self {
            inner: Arc::new(Inner {
                peer,
                validity: certificate::validity(own)?,
                chain,
                key,
                authorities,
                ticket_secret,
                tls,
            }),
            origin: None,
        })
    }

    /// Returns the identity that peers see.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.inner.peer
    }

    /// Returns the secret that authenticates the cluster's tickets.
    #[must_use]
    pub fn ticket_secret(&self) -> &TicketSecret {
        &self.inner.ticket_secret
    }

    /// Returns the agent's certificate chain, its own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.inner.chain
    }

    /// Returns the end of the certificate's validity.
    #[must_use]
    pub fn valid_until(&self) -> SystemTime {
        self.inner.validity.until
    }

    /// Returns whether less than a tenth of the certificate's validity is left, so that it should have been renewed.
    pub(crate) fn is_ending(&self) -> bool {
        self.inner.validity.is_ending(SystemTime::now())
    }

    /// Returns the certificates of the trusted authorities.
    #[must_use]
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.inner.authorities
    }

    pub(crate) fn key(&self) -> &PrivateKeyDer<'static> {
        &self.inner.key
    }

    /// Returns the TLS configurations that prove this identity and require the peer's.
    #[must_use]
    pub fn tls(&self) -> &tls::Configs {
        &self.inner.tls
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Identity").field(&self.inner.peer).finish()
    }
}

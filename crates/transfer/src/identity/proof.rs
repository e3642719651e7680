//! What an agent proves itself with.

use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use super::authority::Validity;
use super::certificate::{self, PeerIdentityError};
use super::name::PeerIdentity;
use super::renewal::Renewals;
use super::ticket_secret::TicketSecret;
use super::tls;

/// What an agent proves itself with: its certificate and key, the certificate of its authority and
/// the cluster's ticket key.
///
/// Cheap to clone. `Debug` shows who it is and no secret.
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

/// The most authorities that are trusted at a time: the one of now, the one of before, and room for a third.
pub(crate) const MAX_AUTHORITIES: usize = 4;

/// Why a certificate, a key and an authority do not make an [`Identity`].
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
    /// A text is not PEM, or holds something else.
    #[error("{what} cannot be read from PEM")]
    Pem { what: &'static str },
    /// The certificate does not say who the agent is, or is none.
    #[error("the agent's certificate does not serve as one")]
    Certificate(#[from] PeerIdentityError),
    /// The authority's certificate is not one of an authority of this project.
    #[error("the authority's certificate does not serve as one")]
    Authority(#[source] PeerIdentityError),
    /// Key and certificate do not belong together, or the certificate is not (or no longer) vouched
    /// for by the authority.
    #[error("the certificate, its key and the authority do not fit together: {0}")]
    Tls(#[from] tls::TlsError),
}

impl Identity {
    /// Puts an identity together from parts held in memory, and checks that they fit: the key to the
    /// certificate, the certificate to one of the authorities (signature, validity, usages, cluster).
    ///
    /// `chain` has the agent's own certificate first. `authorities` are all trusted: while an authority is being
    /// replaced there are two. They are of one cluster.
    ///
    /// # Errors
    /// [`IdentityError`], naming the part that does not fit.
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

    /// Who this identity says its holder is: what peers will see.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.inner.peer
    }

    /// The key that authenticates the cluster's tickets.
    #[must_use]
    pub fn ticket_secret(&self) -> &TicketSecret {
        &self.inner.ticket_secret
    }

    /// The agent's certificate chain, its own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.inner.chain
    }

    /// Until when the agent's certificate is valid.
    #[must_use]
    pub fn valid_until(&self) -> SystemTime {
        self.inner.validity.until
    }

    /// Whether less than a tenth of the certificate's life is left: then something has not renewed it.
    pub(crate) fn is_ending(&self) -> bool {
        self.inner.validity.is_ending(SystemTime::now())
    }

    /// The certificates of the authorities that are trusted.
    #[must_use]
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.inner.authorities
    }

    pub(crate) fn key(&self) -> &PrivateKeyDer<'static> {
        &self.inner.key
    }

    /// The TLS configurations that prove this identity and demand the peer's.
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

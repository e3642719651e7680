//! Identities as PEM text, for programs that keep them elsewhere than in files, such as in a secret store or a pipe to
//! a child process.

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::proof::{Identity, IdentityError};
use super::ticket_secret::TicketSecret;

impl Identity {
    /// Makes an identity of PEM texts, as returned by [`certificates_pem`](Self::certificates_pem),
    /// [`expose_key_pem`](Self::expose_key_pem) and [`authority_pem`](Self::authority_pem), or written by `transload
    /// certs`. Checks that they fit together, like [`new`](Self::new).
    ///
    /// ```
    /// use transload_transfer::{Authority, Identity, Roles};
    /// use transload_transfer::internal::identity::random_cluster_name;
    ///
    /// let authority = Authority::new(random_cluster_name()?)?;
    /// let identity = authority.issue(&"decode-0".parse()?, Roles::all())?;
    /// let again = Identity::from_pem(
    ///     &identity.certificates_pem(),
    ///     &identity.expose_key_pem(),
    ///     &identity.authority_pem(),
    ///     identity.ticket_secret().clone(),
    /// )?;
    /// assert_eq!(again.peer(), identity.peer());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`IdentityError`]; [`Pem`](IdentityError::Pem) if a text does not have the expected contents.
    pub fn from_pem(
        certificates: &str,
        key: &str,
        authorities: &str,
        ticket_secret: TicketSecret,
    ) -> Result<Self, IdentityError> {
        let pem = |what| move || IdentityError::Pem { what };
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok();
        Self::new(
            decode(certificates.as_bytes()).ok_or_else(pem("the agent's certificates"))?,
            key.ok_or_else(pem("the agent's key"))?,
            decode(authorities.as_bytes()).ok_or_else(pem("the authority's certificate"))?,
            ticket_secret,
        )
    }

    /// Returns the agent's certificate chain, its own certificate first. It is not secret.
    #[must_use]
    pub fn certificates_pem(&self) -> String {
        encode_all(self.chain())
    }

    /// Returns the certificates of the trusted authorities. They are not secret.
    #[must_use]
    pub fn authority_pem(&self) -> String {
        encode_all(self.authorities())
    }

    /// Returns the agent's private key, which is enough to impersonate it. Keep it in a file of one user, a secret
    /// store or a private pipe; never put it into arguments, the environment or a log.
    #[must_use]
    pub fn expose_key_pem(&self) -> String {
        pem::encode(&pem::Pem::new("PRIVATE KEY", self.key().secret_der()))
    }
}

pub(super) fn decode(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(pem);
    certificates.collect::<Result<_, _>>().ok()
}

pub(super) fn encode_all(certificates: &[CertificateDer<'_>]) -> String {
    let pem = |der: &CertificateDer<'_>| pem::encode(&pem::Pem::new("CERTIFICATE", &**der));
    certificates.iter().map(pem).collect()
}

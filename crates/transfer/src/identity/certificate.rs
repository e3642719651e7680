//! Reads identities from certificates.
//!
//! On a connection, a certificate's chain was verified before. It is still parsed as untrusted input.

use rustls_pki_types::CertificateDer;
use thiserror::Error;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::name::{PeerIdentity, PeerUriError, SCHEME, authority_uri, parse_authority_uri};
use super::validity::Validity;
use transload_plan::ids::{ClusterName, ServiceName};

/// The largest accepted certificate in bytes. Certificates of agents have about 500.
pub(crate) const MAX_CERTIFICATE_BYTES: usize = 16 * 1024;

/// The reason why a certificate does not name its holder, or names another one than expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PeerIdentityError {
    /// The peer presented no certificate.
    #[error("no certificate")]
    NoCertificate,
    /// The certificate is too large.
    #[error("the certificate has {actual} bytes; {limit} are allowed")]
    TooLarge { limit: usize, actual: usize },
    /// The bytes are not an X.509 certificate, or its names are malformed.
    #[error("not a well-formed X.509 certificate")]
    Malformed,
    /// No subject alternative name is a `transload:` URI.
    #[error("the certificate names no agent: it has no {SCHEME} URI in its alternative names")]
    NoAgent,
    /// Several are, although the identity must be unambiguous.
    #[error("the certificate has {count} {SCHEME} URIs; there must be exactly one")]
    Ambiguous { count: usize },
    /// The URI is not that of an agent.
    #[error("the certificate's {SCHEME} URI is not one of an agent")]
    Uri(#[from] PeerUriError),
    /// The holder belongs to another cluster.
    #[error("the certificate is of cluster {actual}, not {expected}")]
    WrongCluster { expected: ClusterName, actual: ClusterName },
    /// The holder belongs to another service than the one that was dialled.
    #[error("the certificate is of service {actual}, not {expected}")]
    WrongService { expected: ServiceName, actual: ServiceName },
}

impl PeerIdentity {
    /// Reads the identity from a certificate.
    ///
    /// This does not verify the certificate; the connection on which it came has done that.
    ///
    /// # Errors
    /// Returns an error unless the certificate has exactly one well-formed URI of an agent.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, PeerIdentityError> {
        let uri = identity_uri(certificate)?;
        Ok(uri.parse()?)
    }

    /// Checks that the identity is of `cluster` and, if given, of the service `expected`.
    ///
    /// # Errors
    /// `PeerIdentityError::WrongCluster` or `PeerIdentityError::WrongService`.
    pub fn check(&self, cluster: &ClusterName, expected: Option<&ServiceName>) -> Result<(), PeerIdentityError> {
        if self.cluster != *cluster {
            return Err(PeerIdentityError::WrongCluster { expected: cluster.clone(), actual: self.cluster.clone() });
        }
        match expected {
            Some(expected) if self.service != *expected => {
                Err(PeerIdentityError::WrongService { expected: expected.clone(), actual: self.service.clone() })
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn cluster_of_authority(certificate: &CertificateDer<'_>) -> Result<ClusterName, PeerIdentityError> {
    let uri = identity_uri(certificate)?;
    let cluster = parse_authority_uri(&uri)?;
    debug_assert_eq!(uri, authority_uri(&cluster));
    Ok(cluster)
}

/// Returns the period in which a certificate is valid.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<Validity, PeerIdentityError> {
    let certificate = read(certificate)?;
    let validity = certificate.validity();
    Ok(Validity { from: validity.not_before.to_datetime().into(), until: validity.not_after.to_datetime().into() })
}

fn read<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerIdentityError> {
    if certificate.len() > MAX_CERTIFICATE_BYTES {
        return Err(PeerIdentityError::TooLarge { limit: MAX_CERTIFICATE_BYTES, actual: certificate.len() });
    }
    match X509Certificate::from_der(certificate) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(PeerIdentityError::Malformed),
    }
}

/// Returns the only `transload:` URI among the certificate's subject alternative names. Names of other kinds and
/// schemes are ignored.
fn identity_uri(certificate: &CertificateDer<'_>) -> Result<String, PeerIdentityError> {
    let certificate = read(certificate)?;
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|_| PeerIdentityError::Malformed)?;
    let names = names.ok_or(PeerIdentityError::NoAgent)?.value;
    let mut ours = names.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
        _ => None,
    });
    let uri = ours.next().ok_or(PeerIdentityError::NoAgent)?;
    match ours.count() {
        0 => Ok(uri.to_owned()),
        more => Err(PeerIdentityError::Ambiguous { count: more + 1 }),
    }
}

//! Reading who somebody is out of a certificate.
//!
//! Only certificates whose chain was verified come here on a connection; this still reads them as
//! bytes from a stranger.

use rustls_pki_types::CertificateDer;
use thiserror::Error;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::authority::Validity;
use super::name::{PeerIdentity, SCHEME, UriError, authority_uri, parse_authority_uri};
use transload_plan::ids::{ClusterName, ServiceName};

/// The largest certificate that is looked at, in bytes; ours have about 500.
pub(crate) const MAX_CERTIFICATE_BYTES: usize = 16 * 1024;

/// Why a certificate does not say who its holder is, or says somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PeerIdentityError {
    /// The peer presented no certificate.
    #[error("no certificate")]
    NoCertificate,
    /// The certificate is larger than any that serves here.
    #[error("the certificate has {actual} bytes; {limit} are allowed")]
    TooLarge { limit: usize, actual: usize },
    /// The bytes are no X.509 certificate, or one with malformed names.
    #[error("not a well-formed X.509 certificate")]
    Malformed,
    /// No subject alternative name is a `transload:` URI.
    #[error("the certificate names no agent: it has no {SCHEME} URI in its alternative names")]
    Nobody,
    /// Several are, and it must be clear who the peer is.
    #[error("the certificate has {count} {SCHEME} URIs; there must be exactly one")]
    Ambiguous { count: usize },
    /// The URI is not one of an identity.
    #[error("the certificate's {SCHEME} URI is not one of an agent")]
    Uri(#[from] UriError),
    /// The holder belongs to another cluster.
    #[error("the certificate is of cluster {actual}, not {expected}")]
    WrongCluster { expected: ClusterName, actual: ClusterName },
    /// The holder is of another service than the one that was meant to be reached.
    #[error("the certificate is of service {actual}, not {expected}")]
    WrongService { expected: ServiceName, actual: ServiceName },
}

impl PeerIdentity {
    /// Who `certificate` says its holder is.
    ///
    /// This reads, it does not verify: the connection that the certificate came over has done that.
    ///
    /// # Errors
    /// `PeerIdentityError`, if it does not say so in exactly one well-formed URI.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, PeerIdentityError> {
        let uri = identity_uri(certificate)?;
        Ok(uri.parse()?)
    }

    /// Checks that this is a service of `cluster` and, if given, the service `expected`.
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

/// The cluster that an authority's own certificate names.
pub(super) fn cluster_of_authority(certificate: &CertificateDer<'_>) -> Result<ClusterName, PeerIdentityError> {
    let uri = identity_uri(certificate)?;
    let cluster = parse_authority_uri(&uri)?;
    debug_assert_eq!(uri, authority_uri(&cluster));
    Ok(cluster)
}

/// When a certificate is valid.
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

/// The one `transload:` URI among the certificate's subject alternative names. Names of other kinds
/// and schemes may be there too.
fn identity_uri(certificate: &CertificateDer<'_>) -> Result<String, PeerIdentityError> {
    let certificate = read(certificate)?;
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|_| PeerIdentityError::Malformed)?;
    let names = names.ok_or(PeerIdentityError::Nobody)?.value;
    let mut ours = names.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
        _ => None,
    });
    let uri = ours.next().ok_or(PeerIdentityError::Nobody)?;
    match ours.count() {
        0 => Ok(uri.to_owned()),
        more => Err(PeerIdentityError::Ambiguous { count: more + 1 }),
    }
}

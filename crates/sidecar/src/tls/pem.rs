//! Reads certificates and keys from PEM.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{TlsError, provider};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl File {
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&self.bytes).collect::<Result<Vec<_>, _>>();
        chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| self.lacks("certificate"))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|_| self.lacks("private key"))
    }

    pub(super) fn authorities(&self) -> Result<Arc<RootCertStore>, TlsError> {
        let mut authorities = RootCertStore::empty();
        for certificate in self.certificates()? {
            authorities
                .add(certificate)
                .map_err(|wrong| TlsError::Authorities { path: self.path.clone(), reason: wrong.to_string() })?;
        }
        Ok(Arc::new(authorities))
    }

    fn lacks(&self, what: &'static str) -> TlsError {
        TlsError::Pem { path: self.path.clone(), what }
    }
}

/// Combines a certificate chain with its key, and checks that they match.
pub(super) fn pair(certificates: &File, key: &File) -> Result<Arc<CertifiedKey>, TlsError> {
    CertifiedKey::from_der(certificates.certificates()?, key.key()?, &provider())
        .map(Arc::new)
        .map_err(|source| TlsError::Pair { certificates: certificates.path.clone(), key: key.path.clone(), source })
}

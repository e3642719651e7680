//! TLS for clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::PrivateKeyDer;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::pem::{self, File};
use super::renewed::Renewed;
use super::{ALPN, TlsError, VERSIONS, provider};
use crate::settings::ServingTls;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Serving(Renewed<ServerConfig>);

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum AcceptError {
    /// The handshake failed: the client speaks another protocol or version, or has no accepted certificate.
    #[error("the client does not agree on TLS: {0}")]
    Handshake(#[source] io::Error),
    #[error("the client does not agree on TLS within {0:?}")]
    Timeout(Duration),
}

impl Serving {
    /// Loads the certificates. Must be called within a tokio runtime. Without a folder, a self-signed certificate is
    /// created.
    pub(crate) fn load(settings: &ServingTls) -> Result<Self, TlsError> {
        let mut paths = Vec::new();
        if let Some(folder) = &settings.folder {
            paths.extend([folder.join("tls.crt"), folder.join("tls.key")]);
        }
        paths.extend(settings.client_ca.clone());
        let signed = settings.folder.is_some();
        Renewed::load(paths, move |files| config(signed, files)).map(Self)
    }

    pub(crate) async fn accept<T: AsyncRead + AsyncWrite + Unpin>(&self, io: T) -> Result<TlsStream<T>, AcceptError> {
        let handshake = TlsAcceptor::from(self.0.current()).accept(io);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(stream) => stream.map_err(AcceptError::Handshake),
            Err(_) => Err(AcceptError::Timeout(HANDSHAKE_TIMEOUT)),
        }
    }

    pub(crate) fn renew(&self) {
        self.0.renew();
    }
}

/// Creates the configuration for clients. If `signed`, the first two files are a certificate and its key; otherwise a
/// self-signed certificate is created. A further file has the authorities for client certificates.
fn config(signed: bool, files: &[File]) -> Result<ServerConfig, TlsError> {
    let (key, authorities) = match files {
        [certificates, key, rest @ ..] if signed => (pem::pair(certificates, key)?, rest),
        rest => (self_signed()?, rest),
    };
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?;
    let config = match authorities {
        [] => config.with_no_client_auth(),
        [file, ..] => {
            let authorities = file.authorities()?;
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            let verifier = verifier
                .build()
                .map_err(|wrong| TlsError::Authorities { path: file.path.clone(), reason: wrong.to_string() })?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Creates a certificate without an identity, for clients that do not check it.
fn self_signed() -> Result<Arc<CertifiedKey>, TlsError> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()])?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let key = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider())?;
    Ok(Arc::new(key))
}

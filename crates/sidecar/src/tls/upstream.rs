//! TLS for servers.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::pem::{self, File};
use super::renewed::Renewed;
use super::{ALPN, TlsError, VERSIONS, provider};
use crate::Role;

/// The check of servers' certificates, and our own client certificate.
#[derive(Debug, Clone, Default)]
pub struct UpstreamTls {
    /// Do not check the certificates of prefill servers.
    pub skip_verify_prefill: bool,
    /// Do not check the certificates of decode servers.
    pub skip_verify_decode: bool,
    /// The authorities that sign servers' certificates, in PEM; `None` uses those of the operating system.
    pub ca: Option<PathBuf>,
    /// The client certificate's chain and key, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

pub(crate) struct Upstream(Renewed<Trust>);

/// The contents of the files, and the configurations made of them on first use.
struct Trust {
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    /// `None` uses the system's authorities.
    authorities: Option<Arc<RootCertStore>>,
    client: Option<Arc<CertifiedKey>>,
    /// Whether to accept any certificate, of prefill and of decode servers.
    skip: [bool; 2],
    configs: [OnceLock<Arc<ClientConfig>>; 2],
}

impl Upstream {
    /// Loads the files that the settings name. Must be called within a tokio runtime.
    pub(crate) fn load(settings: &UpstreamTls) -> Result<Self, TlsError> {
        let mut paths = Vec::new();
        paths.extend(settings.ca.clone());
        if let Some((certificates, key)) = &settings.client {
            paths.extend([certificates.clone(), key.clone()]);
        }
        let own = settings.ca.is_some();
        let skip = [settings.skip_verify_prefill, settings.skip_verify_decode];
        Renewed::load(paths, move |files| Trust::read(own, skip, files)).map(Self)
    }

    #[must_use]
    pub(crate) fn config(&self, role: Role) -> Arc<ClientConfig> {
        let trust = self.0.current();
        let index = match role {
            Role::Prefill => 0,
            Role::Decode => 1,
        };
        trust.configs[index].get_or_init(|| Arc::new(trust.config(index))).clone()
    }

    pub(crate) fn renew(&self) {
        self.0.renew();
    }
}

impl Trust {
    /// Parses the files. If `own`, the first one has the authorities for servers. Two further files are a client
    /// certificate and its key.
    fn read(own: bool, skip: [bool; 2], files: &[File]) -> Result<Self, TlsError> {
        let (authorities, client) = match files {
            [file, rest @ ..] if own => (Some(file.authorities()?), rest),
            rest => (None, rest),
        };
        let client = match client {
            [certificates, key] => Some(pem::pair(certificates, key)?),
            _ => None,
        };
        Ok(Self {
            builder: ClientConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?,
            authorities,
            client,
            skip,
            configs: Default::default(),
        })
    }

    fn config(&self, index: usize) -> ClientConfig {
        let builder = self.builder.clone();
        let builder = if self.skip[index] {
            let any = Arc::new(AnyServer(provider()));
            builder.dangerous().with_custom_certificate_verifier(any)
        } else {
            let authorities = self.authorities.clone();
            builder.with_root_certificates(authorities.unwrap_or_else(system_authorities))
        };
        let mut config = match self.client.clone() {
            Some(client) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(client))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config
    }
}

/// Returns the authorities that the operating system trusts, to which operators can add their own. They are read once,
/// when the first server needs them; that delays its connection by some milliseconds.
fn system_authorities() -> Arc<RootCertStore> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        let mut authorities = RootCertStore::empty();
        let (usable, _) = authorities.add_parsable_certificates(found.certs);
        if usable == 0 {
            let errors = &found.errors;
            tracing::warn!(?errors, "the system has no certificates of authorities; name a file with --upstream-ca");
        }
        Arc::new(authorities)
    };
    SYSTEM.get_or_init(read).clone()
}

/// Accepts any certificate of a server that proves possession of its key.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

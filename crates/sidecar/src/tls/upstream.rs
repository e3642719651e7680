//! TLS with servers.

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
use crate::settings::UpstreamTls;

/// How servers' certificates are checked, and what servers are shown.
pub(crate) struct Upstream(Renewed<Trust>);

/// What the files say, and the settings that are made of it when a server needs them.
struct Trust {
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    /// `None` are the system's authorities.
    authorities: Option<Arc<RootCertStore>>,
    client: Option<Arc<CertifiedKey>>,
    /// Whether any certificate will do: of prefill and of decode servers.
    skip: [bool; 2],
    configs: [OnceLock<Arc<ClientConfig>>; 2],
}

impl Upstream {
    /// Reads the files that the settings name, within a tokio runtime.
    ///
    /// # Errors
    /// [`TlsError`].
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

    /// Returns the settings for servers of this role, as of now.
    #[must_use]
    pub(crate) fn config(&self, role: Role) -> Arc<ClientConfig> {
        let trust = self.0.current();
        let place = match role {
            Role::Prefill => 0,
            Role::Decode => 1,
        };
        trust.configs[place].get_or_init(|| Arc::new(trust.config(place))).clone()
    }

    /// Reads the files now, in place of within a second. What has changed and cannot be used is logged and changes nothing.
    pub(crate) fn renew(&self) {
        self.0.renew();
    }
}

impl Trust {
    /// The files are the servers' authorities, if they are the operator's `own`, and then a certificate and its key, if
    /// there is one.
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

    fn config(&self, place: usize) -> ClientConfig {
        let builder = self.builder.clone();
        let builder = if self.skip[place] {
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

/// The authorities that the operating system trusts: operators add their own there. They are read once, when the first
/// server needs them, and its connection waits for some milliseconds.
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

/// Takes any certificate, of a server that proves to have its key.
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

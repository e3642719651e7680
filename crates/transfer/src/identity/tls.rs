//! TLS configurations: TLS 1.3, aws-lc-rs, and both sides always authenticated.
//!
//! Every agent certificate contains the fixed DNS name [`SERVER_NAME`] besides its identity. So rustls's standard
//! verification (chain, validity, key usages, and that name) applies unchanged, and the identity is checked after it.
//! Sessions are never resumed: a resumed session would skip the check of the certificate, and a full handshake takes
//! less than a millisecond.

use std::sync::{Arc, OnceLock};

use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::{
        NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;

use super::{certificate::PeerIdentityError, name::PeerIdentity};
use transload_plan::ids::{ClusterName, ServiceName};

/// The application protocol that both sides must speak.
pub(crate) const ALPN: &[u8] = b"transload/1";

/// The DNS name in every agent's certificate. Clients ask for it, whatever host they dial.
pub const SERVER_NAME: &str = "agent.transload.internal";

/// The reason why no TLS configuration could be made.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// rustls refused the certificate, the key, or their combination.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// The authority's certificate cannot be used as a root.
    #[error("the authority's certificate cannot be a root: {0}")]
    Root(String),
}

impl From<VerifierBuilderError> for TlsError {
    fn from(error: VerifierBuilderError) -> Self {
        Self::Root(error.to_string())
    }
}

/// Returns the cryptography provider for everything: aws-lc-rs. It is passed explicitly, so that it does not depend on
/// what else is linked into the process.
///
/// AES-128-GCM comes before AES-256-GCM: over QUIC that takes 3 to 5 % less CPU time in all.
#[must_use]
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// The TLS configurations of an [`Identity`](super::Identity), for any transport.
#[derive(Clone)]
pub struct Configs {
    verifier: AgentVerifier,
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

impl Configs {
    pub(super) fn new(
        cluster: &ClusterName,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Self, TlsError> {
        let provider = provider();
        let verifier = AgentVerifier::new(&provider, cluster, authorities)?;

        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(verifier.clone()))
            .with_single_cert(chain.to_vec(), key.clone_key())?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier.clone()))
            .with_client_auth_cert(chain.to_vec(), key.clone_key())?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();

        // An expired certificate, or one of another authority, is reported here and not by a peer's alert.
        if let Some((own, rest)) = chain.split_first() {
            verifier.verify_server_cert(own, rest, &server_name(), &[], UnixTime::now())?;
        }
        Ok(Self { verifier, server: Arc::new(server), client })
    }

    /// Returns the configuration of the side that accepts connections, from any agent of the cluster.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// Returns the configuration of the side that connects, to the name [`server_name`]. With `expected`, only that
    /// service is accepted.
    #[must_use]
    pub fn client(&self, expected: Option<&ServiceName>) -> Arc<ClientConfig> {
        self.client_with_verdict(expected).0
    }

    /// Returns a configuration as [`client`](Self::client) does, for one connection. If the peer's identity is
    /// rejected, the verdict contains the reason: rustls and QUIC only pass on a text.
    pub(crate) fn client_with_verdict(&self, expected: Option<&ServiceName>) -> (Arc<ClientConfig>, Verdict) {
        let verdict = Verdict::default();
        let verifier =
            AgentVerifier { expected: expected.cloned(), verdict: Some(verdict.clone()), ..self.verifier.clone() };
        let mut client = self.client.clone();
        client.dangerous().set_certificate_verifier(Arc::new(verifier));
        (Arc::new(client), verdict)
    }
}

/// The error of one connection's verifier about the peer's identity, if any.
pub(crate) type Verdict = Arc<OnceLock<PeerIdentityError>>;

/// Returns [`SERVER_NAME`] in rustls's type.
#[must_use]
pub fn server_name() -> ServerName<'static> {
    const { assert!(SERVER_NAME.is_ascii()) };
    // The constant is a valid DNS name. Otherwise this address, which no host has, would make handshakes fail.
    ServerName::try_from(SERVER_NAME).unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()))
}

/// The verifier of both sides: rustls's standard checks, and then the peer's identity.
#[derive(Debug, Clone)]
struct AgentVerifier {
    cluster: ClusterName,
    expected: Option<ServiceName>,
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
    verdict: Option<Verdict>,
}

impl AgentVerifier {
    fn new(
        provider: &Arc<CryptoProvider>,
        cluster: &ClusterName,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        let roots = Arc::new(roots);
        Ok(Self {
            cluster: cluster.clone(),
            expected: None,
            server: WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?,
            client: WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?,
            verdict: None,
        })
    }

    fn check_identity(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        PeerIdentity::from_certificate(certificate)
            .and_then(|peer| peer.check(&self.cluster, self.expected.as_ref()))
            .map_err(|error| {
                if let Some(verdict) = &self.verdict {
                    // A handshake is verified once. If it were verified twice, the first reason would stay.
                    let _ = verdict.set(error.clone());
                }
                CertificateError::Other(OtherError(Arc::new(error))).into()
            })
    }
}

/// Delegates the verification of signatures to one of the standard verifiers.
macro_rules! signatures_by {
    ($verifier:ident) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.$verifier.verify_tls12_signature(message, cert, dss)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.$verifier.verify_tls13_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$verifier.supported_verify_schemes()
        }
    };
}

impl ServerCertVerifier for AgentVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.server.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.check_identity(end_entity)?;
        Ok(verified)
    }

    signatures_by!(server);
}

impl ClientCertVerifier for AgentVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.client.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.client.verify_client_cert(end_entity, intermediates, now)?;
        self.check_identity(end_entity)?;
        Ok(verified)
    }

    signatures_by!(client);
}

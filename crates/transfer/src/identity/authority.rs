//! The certificate authority of a cluster.

use std::{fmt, io, time::SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use thiserror::Error;

use super::{
    certificate::{self, PeerIdentityError, cluster_of_authority},
    name::{PeerIdentity, authority_uri},
    proof::{Identity, IdentityError},
    ticket_secret::TicketSecret,
    tls::SERVER_NAME,
    validity::Validity,
};
use transload_plan::ids::{ClusterName, ServiceName};
use transload_wire::Roles;

/// The certificate authority of a cluster. It makes the [`Identity`] of each agent.
pub struct Authority {
    cluster: ClusterName,
    certificate: CertificateDer<'static>,
    validity: Validity,
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) ticket_secret: TicketSecret,
}

/// The reason why an authority or a certificate could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The operating system provides no randomness.
    #[error("no randomness")]
    Random(#[from] io::Error),
    /// Making a key or signing a certificate failed.
    #[error("the certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// The certificate is not one of a Transload authority.
    #[error("not the certificate of an authority")]
    NotAnAuthority(#[from] PeerIdentityError),
    /// The new certificate is invalid, for example because its validity has ended.
    #[error("the certificate that was made does not serve")]
    Identity(#[from] IdentityError),
}

impl Authority {
    /// Makes an authority for ten years, with a new key and a new ticket key.
    ///
    /// # Errors
    /// [`AuthorityError`] if the system provides no randomness.
    pub fn new(cluster: ClusterName) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let validity = Validity::days(3650);
        let name = format!("transload authority {cluster}");
        let mut params = params(name, &[&authority_uri(&cluster)], validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self {
            cluster,
            certificate,
            validity,
            issuer: Issuer::new(params, key),
            ticket_secret: TicketSecret::random()?,
        })
    }

    /// Makes an authority from the contents of its files.
    pub(super) fn from_parts(
        certificate: CertificateDer<'static>,
        key_pem: &str,
        ticket_secret: TicketSecret,
    ) -> Result<Self, AuthorityError> {
        let cluster = cluster_of_authority(&certificate)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, KeyPair::from_pem(key_pem)?)?;
        Ok(Self { cluster, validity: certificate::validity(&certificate)?, certificate, issuer, ticket_secret })
    }

    /// Returns the cluster of this authority.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Returns the authority's certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the end of the authority's validity.
    #[must_use]
    pub fn valid_until(&self) -> SystemTime {
        self.validity.until
    }

    /// Makes the identity of a service, valid for a year.
    pub fn issue(&self, service: &ServiceName, roles: Roles) -> Result<Identity, AuthorityError> {
        self.issue_for(service, roles, Validity::of_agent())
    }

    /// Makes the identity of a service with the given validity.
    ///
    /// # Errors
    /// [`AuthorityError`], also if the validity does not include the present.
    pub fn issue_for(
        &self,
        service: &ServiceName,
        roles: Roles,
        validity: Validity,
    ) -> Result<Identity, AuthorityError> {
        let peer = PeerIdentity { cluster: self.cluster.clone(), service: service.clone(), roles };
        let (certificate, key) = self.sign(&[&peer.to_string()], validity)?;
        Ok(Identity::new(vec![certificate], key, vec![self.certificate.clone()], self.ticket_secret.clone())?)
    }

    /// Signs a certificate for any URIs and validity. These are not checked, so tests use this for bad certificates,
    /// too.
    pub(crate) fn sign(
        &self,
        uris: &[&str],
        validity: Validity,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params("transload agent".to_owned(), uris, validity)?;
        params.subject_alt_names.push(SanType::DnsName(SERVER_NAME.try_into()?));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok((certificate, key.into()))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({:?})", self.cluster)
    }
}

/// Makes the parameters that the certificates of agents and authorities share.
fn params(common_name: String, uris: &[&str], validity: Validity) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    for uri in uris {
        let uri = (*uri).try_into()?;
        params.subject_alt_names.push(SanType::URI(uri));
    }
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
    Ok(params)
}

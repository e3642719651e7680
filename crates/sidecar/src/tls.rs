//! TLS for clients and for servers.
//!
//! All certificates are read from files that are reread when they change, so they can be renewed without a restart.

mod pem;
mod renewed;
mod serving;
mod upstream;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use thiserror::Error;

pub(crate) use serving::Serving;
pub(crate) use upstream::Upstream;
pub use upstream::UpstreamTls;

/// A reason why certificates cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file lacks what it should contain.
    #[error("{} holds no {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The missing content.
        what: &'static str,
    },
    /// A certificate cannot be used, or does not match its key.
    #[error("the certificate in {} cannot be used with the key in {}: {source}", certificates.display(), key.display())]
    Pair {
        /// The file with the certificate.
        certificates: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
    /// A certificate cannot be used as an authority.
    #[error("the certificates in {} cannot be those of authorities: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A self-signed certificate could not be created.
    #[error("cannot make a certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The TLS library rejects the settings.
    #[error("TLS cannot be set up: {0}")]
    Settings(#[from] rustls::Error),
}

/// The only protocol offered over TLS, in either direction.
const ALPN: &[u8] = b"http/1.1";

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

//! TLS of both sides: the certificates that clients are shown, and how those of servers are checked.
//!
//! All of it is read from files that are read again when they change, so that certificates are renewed without a restart.

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

/// Why certificates cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// A certificate cannot be used, or not with this key.
    #[error("the certificate in {} cannot be used with the key in {}: {source}", certificates.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificates: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// A certificate cannot be that of an authority.
    #[error("the certificates in {} cannot be those of authorities: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The library does not take the settings.
    #[error("TLS cannot be set up: {0}")]
    Settings(#[from] rustls::Error),
}

/// The only protocol that is spoken over TLS, in either direction.
const ALPN: &[u8] = b"http/1.1";

/// TLS 1.3 and 1.2: nothing older.
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

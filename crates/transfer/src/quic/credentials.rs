//! The identity for new connections. Existing connections keep the one that they began with.

use std::sync::{Arc, PoisonError, RwLock};

use quinn::{ServerConfig, crypto::rustls::QuicServerConfig};

use super::{error::EndpointsError, options::QuicOptions};
use crate::identity::{Identity, RenewalError};

/// A replaceable identity, and the configuration that accepts connections with it.
#[derive(Debug)]
pub(super) struct Credentials {
    options: Arc<QuicOptions>,
    current: RwLock<Current>,
}

#[derive(Clone, Debug)]
struct Current {
    identity: Identity,
    server: ServerConfig,
}

impl Credentials {
    pub(super) fn new(identity: Identity, options: Arc<QuicOptions>) -> Result<Self, EndpointsError> {
        let current = Current::new(identity, &options)?;
        Ok(Self { options, current: RwLock::new(current) })
    }

    pub(super) fn identity(&self) -> Identity {
        self.read().identity
    }

    pub(super) fn server(&self) -> ServerConfig {
        self.read().server
    }

    /// Makes new connections use another certificate of the same service.
    pub(super) fn replace(&self, identity: Identity) -> Result<(), RenewalError> {
        self.identity().check_successor(&identity)?;
        // This cannot fail for one identity only, since every identity has passed it when it was made.
        if let Ok(new) = Current::new(identity, &self.options) {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    fn read(&self) -> Current {
        // A panic cannot leave it half-changed, since each change is one assignment.
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Current {
    fn new(identity: Identity, options: &QuicOptions) -> Result<Self, EndpointsError> {
        let crypto = QuicServerConfig::try_from(identity.tls().server()).map_err(|_| EndpointsError::Crypto)?;
        let server = server_config(crypto, options);
        Ok(Self { identity, server })
    }
}

/// Makes the configuration that all incoming connections share.
fn server_config(crypto: QuicServerConfig, options: &QuicOptions) -> ServerConfig {
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    // Agents do not roam, and a connection's permissions must not be used from another address.
    server.migration(false);
    // Bounds what a stranger can make us store before its handshake begins: its first flight.
    server.max_incoming(4 * options.max_handshakes).incoming_buffer_size(16 << 10).incoming_buffer_size_total(1 << 20);
    server
}

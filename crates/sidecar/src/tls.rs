//! TLS of both sides.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

use crate::Role;

/// How servers' certificates are checked.
pub struct Upstream(Arc<ClientConfig>);

impl Upstream {
    /// Trusts nobody yet.
    #[must_use]
    pub fn load() -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config
            .expect("the provider has them")
            .with_root_certificates(RootCertStore::empty());
        Self(Arc::new(config.with_no_client_auth()))
    }

    /// The settings for servers of this role.
    #[must_use]
    pub fn config(&self, _role: Role) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

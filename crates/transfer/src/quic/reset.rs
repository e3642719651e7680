//! Stateless resets, by which a process that was restarted at a port tells peers that it does not know their connections
//! (RFC 9000, section 10.3).

use std::{net::SocketAddr, sync::Arc};

use quinn::{
    EndpointConfig,
    crypto::{CryptoError, HmacKey},
};
use quinn_proto::HashedConnectionIdGenerator;

use crate::identity::Identity;

/// What the keys of an agent's endpoints follow from: the same after a restart, as long as its certificate's key is.
pub(super) struct ResetSecret(blake3::Hasher);

/// Makes the tokens by which peers know that a reset is the endpoint's.
struct ResetKey([u8; blake3::KEY_LEN]);

impl ResetSecret {
    pub(super) fn of(identity: &Identity) -> Self {
        let mut secret = blake3::Hasher::new_derive_key("transload 2026-11 stateless reset");
        // The length first, so that what follows the key is nothing of the key's.
        let key = identity.key().secret_der();
        secret.update(&(key.len() as u64).to_le_bytes());
        secret.update(key);
        Self(secret)
    }

    /// The settings of the endpoint at an address. Others of the same certificate, on this host and on others, have other
    /// keys: none of them can be made to reset a connection of another.
    pub(super) fn endpoint_at(&self, addr: SocketAddr) -> EndpointConfig {
        let (key, ids) = self.keys_at(addr);
        let mut config = EndpointConfig::new(Arc::new(ResetKey(key)));
        // It answers only for connections whose ids it may have given.
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        config
    }

    fn keys_at(&self, addr: SocketAddr) -> ([u8; blake3::KEY_LEN], u64) {
        let mut secret = self.0.clone();
        secret.update(addr.to_string().as_bytes());
        secret.update(rustix::system::uname().nodename().to_bytes());
        let (mut key, mut ids) = ([0; blake3::KEY_LEN], [0; 8]);
        let mut derived = secret.finalize_xof();
        derived.fill(&mut key);
        derived.fill(&mut ids);
        (key, u64::from_le_bytes(ids))
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let signature: [u8; blake3::OUT_LEN] = signature.try_into().map_err(|_| CryptoError)?;
        match blake3::keyed_hash(&self.0, data) == signature {
            true => Ok(()),
            false => Err(CryptoError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Authority, Roles};

    #[test]
    fn keys_are_the_same_after_a_restart_and_nowhere_else() {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let issue = || {
            let identity = authority.issue(&"a".parse().unwrap(), Roles::all());
            identity.unwrap()
        };
        let (ours, other) = (issue(), issue());
        let keys = |identity: &Identity, addr: &str| {
            ResetSecret::of(identity).keys_at(addr.parse().unwrap())
        };
        let here = keys(&ours, "10.0.0.1:7600");
        assert_eq!(keys(&ours, "10.0.0.1:7600"), here);
        for (identity, addr) in [
            (&ours, "10.0.0.1:7601"),
            (&ours, "10.0.0.2:7600"),
            (&other, "10.0.0.1:7600"),
        ] {
            let (key, ids) = keys(identity, addr);
            assert!(key != here.0 && ids != here.1, "{addr}");
        }
    }
}

//! Stateless resets: with them a restarted process tells peers that it does not know their connections (RFC 9000,
//! section 10.3).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quinn::{
    EndpointConfig,
    crypto::{CryptoError, HmacKey},
};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid, RandomConnectionIdGenerator};

use crate::identity::Identity;

/// The secret from which the keys of an agent's endpoints are derived. It stays the same after a restart, as long as
/// the key of the agent's certificate does.
pub(super) struct ResetSecret(blake3::Hasher);

/// Makes the tokens by which peers recognise a reset of the endpoint.
struct ResetKey(Key);

/// Makes connection ids that only this endpoint can make: random bytes and a tag. Without the tag, another host could
/// ask for the reset token of an id before the endpoint assigns it to a connection; with too few random bytes, for
/// those of all ids.
struct TaggedIds(Key);

type Key = [u8; blake3::KEY_LEN];

impl ResetSecret {
    pub(super) fn of(identity: &Identity) -> Self {
        let mut secret = blake3::Hasher::new_derive_key("transload 2026-11 stateless reset");
        // The length comes first, so that the bytes after the key cannot be taken for a part of it.
        let key = identity.key().secret_der();
        secret.update(&(key.len() as u64).to_le_bytes());
        secret.update(key);
        Self(secret)
    }

    /// Returns the settings of the endpoint at an address. Its keys are derived from the certificate's key, the bound
    /// address and the host's name, so another endpoint with the same certificate has other keys, and cannot be used to
    /// reset this one's connections. If all three are the same, a process that sends one of the endpoints the other's
    /// packets can reset the other's connections.
    pub(super) fn endpoint_at(&self, addr: SocketAddr) -> EndpointConfig {
        let (key, ids) = self.keys_at(addr);
        let mut config = EndpointConfig::new(Arc::new(ResetKey(key)));
        // The endpoint answers only for ids that it, or its previous life, has assigned.
        config.cid_generator(move || Box::new(TaggedIds(ids)));
        config
    }

    fn keys_at(&self, addr: SocketAddr) -> (Key, Key) {
        let mut secret = self.0.clone();
        secret.update(addr.to_string().as_bytes());
        secret.update(rustix::system::uname().nodename().to_bytes());
        let (mut key, mut ids) = (Key::default(), Key::default());
        let mut derived = secret.finalize_xof();
        derived.fill(&mut key);
        derived.fill(&mut ids);
        (key, ids)
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

/// Random bytes of an id: among 2^32 connections two are unlikely to have the same.
const RANDOM: usize = 8;

/// Bytes of a tag: of 2^32 invented ids, one is answered.
const TAG: usize = 4;

impl TaggedIds {
    fn tag(&self, random: &[u8]) -> [u8; TAG] {
        let mut tag = [0; TAG];
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(random).finalize_xof().fill(&mut tag);
        tag
    }
}

impl ConnectionIdGenerator for TaggedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let random = RandomConnectionIdGenerator::new(RANDOM).generate_cid();
        ConnectionId::new(&[&random[..], &self.tag(&random)].concat())
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.split_at_checked(RANDOM) {
            Some((random, tag)) if self.tag(random) == tag => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        RANDOM + TAG
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Authority;
    use transload_wire::Roles;

    #[test]
    fn keys_are_the_same_after_a_restart_and_nowhere_else() {
        let authority = Authority::new("test".parse().unwrap()).unwrap();
        let issue = || {
            let identity = authority.issue(&"a".parse().unwrap(), Roles::all());
            identity.unwrap()
        };
        let (ours, other) = (issue(), issue());
        let keys = |identity: &Identity, addr: &str| ResetSecret::of(identity).keys_at(addr.parse().unwrap());
        let here = keys(&ours, "10.0.0.1:7600");
        assert_eq!(keys(&ours, "10.0.0.1:7600"), here);
        for (identity, addr) in [(&ours, "10.0.0.1:7601"), (&ours, "10.0.0.2:7600"), (&other, "10.0.0.1:7600")] {
            let (key, ids) = keys(identity, addr);
            assert!(key != here.0 && ids != here.1, "{addr}");
        }
    }

    /// A generator without a tag accepts every id, and one with little entropy repeats ids.
    #[test]
    fn ids_are_known_after_a_restart_and_cannot_be_made_up() {
        let mut before = TaggedIds([1; 32]);
        let (after, other) = (TaggedIds([1; 32]), TaggedIds([2; 32]));
        let mut given = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let id = before.generate_cid();
            assert_eq!(id.len(), before.cid_len());
            assert!(after.validate(&id).is_ok() && other.validate(&id).is_err());
            assert!(given.insert(id));
            for at in 0..id.len() {
                let mut spoiled = id.to_vec();
                spoiled[at] ^= 1;
                assert!(after.validate(&ConnectionId::new(&spoiled)).is_err());
            }
        }
        for len in 0..RANDOM + TAG {
            assert!(after.validate(&ConnectionId::new(&[0; RANDOM + TAG][..len])).is_err());
        }
    }
}

//! The identity of the second process, passed to it through a pipe.

use serde::{Deserialize, Serialize};
use transload::transfer::{Identity, IdentityError, TicketSecret};

/// An identity in a form that can be sent. It contains secrets, so it is sent only through a private pipe, never in
/// arguments or the environment, which other users can read. It has no `Debug` for the same reason.
#[derive(Deserialize, Serialize)]
pub(super) struct Credentials {
    certificates: String,
    key: String,
    authority: String,
    ticket_secret: [u8; TicketSecret::BYTES],
}

impl Credentials {
    pub(super) fn of(identity: &Identity) -> Self {
        Self {
            certificates: identity.certificates_pem(),
            key: identity.expose_key_pem(),
            authority: identity.authority_pem(),
            ticket_secret: *identity.ticket_secret().as_bytes(),
        }
    }

    pub(super) fn into_identity(self) -> Result<Identity, IdentityError> {
        let secret = self.ticket_secret.into();
        Identity::from_pem(&self.certificates, &self.key, &self.authority, secret)
    }
}

#[cfg(test)]
mod tests {
    use transload::transfer::internal::identity::random_cluster_name;
    use transload::transfer::{Authority, Roles};

    use super::*;

    #[test]
    fn an_identity_survives_the_pipe() {
        let authority = Authority::new(random_cluster_name().expect("a name")).expect("one");
        let agent = "prefill".parse().expect("a name");
        let identity = authority.issue(&agent, Roles::all()).expect("an identity");
        let text = serde_json::to_string(&Credentials::of(&identity)).expect("text");
        let credentials: Credentials = serde_json::from_str(&text).expect("credentials");
        let arrived = credentials.into_identity().expect("an identity");
        assert_eq!(arrived.peer(), identity.peer());
    }
}

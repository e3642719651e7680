//! Identities of agents, and their proof.
//!
//! A **cluster** is everything that one [`Authority`] (a certificate authority) vouches for. Each of its agents holds
//! an [`Identity`]: a certificate, its key, the authority's certificate, and the key that authenticates the cluster's
//! tickets. The certificate names the agent's service in one URI, a [`PeerIdentity`], and everything else relies on
//! that alone. Host names play no part: agents move between hosts, several share one, and the advertised address is
//! often not the bound one.
//!
//! `ca.pem` may contain several certificates, which are all trusted, so that an authority can be replaced.
//!
//! On disk an authority and its agents are a folder of mode 0700, as `transload certs init DIR` writes it:
//!
//! | file | mode | what |
//! |---|---|---|
//! | `ca.pem` | 0644 | the authority's certificate |
//! | `ca.key` | 0600 | the authority's key; only the machine that issues certificates needs it |
//! | `NAME.pem` | 0644 | the certificate of service NAME |
//! | `NAME.key` | 0600 | its key |
//! | `ticket.key` | 0600 | 32 random bytes, the same on every agent of the cluster |

mod authority;
mod certificate;
mod files;
mod name;
mod pem;
mod proof;
mod renewal;
#[cfg(test)]
mod tests;
mod ticket_secret;
pub(crate) mod tls;
mod validity;

pub use authority::{Authority, AuthorityError};
pub use certificate::PeerIdentityError;
pub use files::{IdentityFileError, names_in, open_keys};
pub use name::{PeerIdentity, PeerUriError, default_instance, new_incarnation, random_cluster_name};
pub(crate) use proof::Renewals;
pub use proof::{Identity, IdentityError};
pub use renewal::RenewalError;
pub use ticket_secret::TicketSecret;
pub use validity::Validity;

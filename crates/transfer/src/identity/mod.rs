//! Who an agent is, and how it proves it.
//!
//! A **cluster** is everything that one [`Authority`] (a certificate authority) vouches for. Each
//! agent of it holds an [`Identity`]: a certificate, its key, the authority's certificate and the
//! key with which the cluster's tickets are authenticated. The certificate names the agent's service
//! in one URI, a [`PeerIdentity`], and the layers above go by nothing else. Host names play no part:
//! agents move between hosts, several share one, and the address that is advertised is often not
//! the one that is bound.
//!
//! Two certificates in `ca.pem` are both trusted, so that an authority can be replaced.
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

pub use authority::{Authority, AuthorityError, Validity};
pub(crate) use certificate::PeerIdentityError;
pub use files::{IdentityFileError, names_in, open_keys};
pub use name::{PeerIdentity, default_instance, new_incarnation, random_cluster_name};
pub use proof::{Identity, IdentityError};
pub use renewal::RenewalError;
pub(crate) use renewal::Renewals;
pub use ticket_secret::TicketSecret;

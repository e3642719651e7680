//! A hostile peer: what strangers and members of the cluster that lie can do to an agent, while an
//! ordinary peer works beside them. Every refusal is the typed one, canaries stay where they are, and
//! nothing is left over.
//!
//! - [`greetings`]: who is not let in.
//! - [`asks`]: what is refused, by name.
//! - [`invitations`]: who would be pushed to, and may not, or lets nothing in.
//! - [`floods`]: too much of everything.
//! - [`strangers`]: handshakes that never show a certificate.
//! - [`lies`]: sources whose bytes are not what they say, over lanes and rings.
//! - [`trickles`]: transfers that never stand still and never end.
//! - [`rings`]: rings that are handed over to an agent, and are not what they have to be.
//! - [`offers`]: rings that are offered, and not fetched.
//! - [`fences`]: leases that end in the midst of a transfer.

mod asks;
mod fences;
mod floods;
mod greetings;
mod handover;
mod invitations;
mod lies;
mod offers;
mod peer;
mod rings;
mod source;
mod strangers;
mod town;
mod trickles;

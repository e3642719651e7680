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
//! - [`loans`]: memory that is lent to an agent, and is not what it has to be.
//! - [`borrowers`]: peers that take what is lent, or what is not.
//! - [`offers`]: rings and memory that are offered, and not fetched.
//! - [`fences`]: leases that end in the midst of a copy.

mod asks;
mod borrowers;
mod fences;
mod floods;
mod greetings;
mod handover;
mod invitations;
mod lies;
mod loans;
mod offers;
mod peer;
mod source;
mod strangers;
mod town;
mod trickles;

//! A hostile peer: what strangers and members of the cluster that lie can do to an agent, while an
//! ordinary peer works beside them. Every refusal is the typed one, canaries stay where they are, and
//! nothing is left over.
//!
//! - [`greetings`]: who is not let in.
//! - [`asks`]: what is refused, by name.
//! - [`floods`]: too much of everything.
//! - [`lies`]: sources whose bytes are not what they say, over lanes and rings.

mod asks;
mod floods;
mod greetings;
mod lies;
mod peer;
mod source;
mod town;

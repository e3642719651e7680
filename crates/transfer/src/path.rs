//! Paths: the ways that bytes can take between two agents. Each is a folder with two halves.
//!
//! ```text
//!              wire (pure)                          agent (I/O)
//!  ┌──────────────────────────────┐    ┌───────────────────────────────────┐
//!  │ Negotiation, one for each    │    │ Carrier, one for each agent       │
//!  │ connection: what is offered, │    │  └ Link, one for each connection: │
//!  │ taken, withdrawn             │    │    carries streams out, takes     │
//!  └──────┬────────────────▲──────┘    │    them in                        │
//!         │ Order          │ Report    └──────▲────────────────┬───────────┘
//!         └────────────────┼──────────────────┘                │
//!                          └───────────────────────────────────┘
//! ```
//!
//! The [negotiation](negotiation::Negotiation) knows nothing of sockets: it receives the peer's words and its carrier's
//! reports, and returns orders and words. The [carrier](carrier::Carrier) carries out the orders. An agent always has
//! [`quic`], and everything that was [registered](crate::agent::Builder::path) besides: on Linux [`ring`], and
//! [`device_ring`] if its caches are all on one GPU.

pub(crate) mod carrier;
pub(crate) mod device_ring;
pub(crate) mod quic;
pub(crate) mod ring;
mod sending;

pub(crate) use transload_wire::Path;
pub(crate) use transload_wire::internal::negotiation;

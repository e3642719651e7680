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
//! The [negotiation](negotiation::Negotiation) knows nothing of sockets: it hears the words of the peer and
//! the reports of its carrier, and gives orders and words. The [carrier](carrier::Carrier) obeys. An agent has
//! [`quic`] always, and what is [registered](crate::agent::Builder::path) besides: on Linux [`ring`], and
//! [`device_ring`] where its caches lie on one GPU.

pub(crate) mod carrier;
pub(crate) mod device_ring;
pub(crate) mod quic;
pub(crate) mod ring;
mod sending;

pub(crate) use transload_wire::Path;
pub(crate) use transload_wire::internal::negotiation;

//! Moves KV caches between inference engines: agents that lease blocks, pull and push.
//!
//! Each engine process [binds](Agent::builder) an [`Agent`] to its memory. The owner of a request's blocks
//! [leases](Agent::lease) them and mints a [`Ticket`]; an engine with the ticket [pulls](Agent::pull) them into its own.
//!
//! | to do this | begin with | feature |
//! |---|---|---|
//! | make certificates, and load them | [`Authority`], [`Identity`] | |
//! | move a request's blocks between engines, fast where they share a host | [`Agent`] | |
//! | plan a transfer, and see what it costs | [`Plan`], [`plan`] (`transload-plan`) | |
//! | copy between two memories of one process | [`Memory`], [`memory::copy::copy()`] (`transload-memory`) | |
//! | fill or check a cache through arrays `[L, B, S, H, C]` | `memory::array` | `ndarray` |
//! | reach caches in the memory of NVIDIA GPUs | `device::Gpu` (`transload-cuda`) | `cuda` |
//! | speak the protocol over something else | [`wire`] (`transload-wire`) | |
//!
//! A crate that needs only plans, the protocol or copies names the smaller crate. Layouts and deployments are those of
//! `transload-layout`.

mod agent;
mod data;
mod identity;
mod path;
mod quic;

#[cfg(feature = "cuda")]
pub use transload_cuda as device;
pub use transload_memory as memory;
pub use transload_plan as plan;
pub use transload_wire as wire;

pub use agent::{
    After, Agent, AgentGone, AgentMetrics, AgentOptions, BindAgentError, Builder, Keeper, Lease, LeaseControl,
    LeaseEndError, LeaseMetrics, LeaseOpenError, LeaseOutcome, LeaseRequest, LeaseUseError, NoticeError, PathBytes,
    PullReport, PullRequest, PushRequest, RegisterError, RouteMetrics, Transfer, TransferControl, TransferError,
    TransferMetrics,
};
pub use data::{DataOptions, Region};
pub use identity::{
    Authority, AuthorityError, Identity, IdentityError, IdentityFileError, PeerIdentityError, PeerUriError,
    RenewalError, TicketSecret, Validity,
};
pub use quic::{EndpointsError, QuicOptions, QuicOptionsError};
pub use transload_layout::Rank;
pub use transload_memory::Memory;
pub use transload_plan::content::{Content, ContentDigest};
pub use transload_plan::ids::{AgentId, ClusterName, Direction, Incarnation, InstanceName, LeaseSetId, ServiceName};
pub use transload_plan::{BlockTable, Plan, Request, Tables};
pub use transload_wire::{
    Claims, JobError, LeaseEnd, NoticeOutcome, Path, PathSet, RankAddress, Role, Roles, Ticket, TicketKey,
};

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub mod carrier {
        pub use crate::path::carrier::{Carrier, Host, Link, Provider, Reporter};
    }
    pub mod data {
        pub use crate::data::{
            Admitted, Arrivals, InStream, Landing, Outgoing, ReceiveError, Receiver, RouteBytes, SendError, SendEvent,
            SendEvents,
        };
    }
    #[cfg(feature = "cuda")]
    pub mod device_ring {
        pub use crate::path::device_ring::carrier::{accept, offer};
    }
    pub mod handover {
        pub use crate::path::ring::carrier::handover::{
            Connection, Expected, HandoverError, Limits, Listener, connect,
        };
    }
    pub mod identity {
        pub use crate::identity::{
            PeerIdentity, default_instance, names_in, new_incarnation, open_keys, random_cluster_name,
        };
    }
    pub mod lanes {
        pub use crate::path::quic::carrier::LaneOut;
    }
    pub mod quic {
        pub use crate::quic::{
            CloseCode, ConnectError, ConnectionLost, ControlConnection, DataReceiver, DataSender, Endpoints, Lane,
            MAX_UDP_PAYLOAD, MIN_UDP_PAYLOAD, StreamError,
        };
    }
    pub mod ring {
        pub use crate::path::ring::carrier::{Doorbell, RingIn, RingOut, drive, random_socket, random_token};
    }
    pub mod slots {
        pub use crate::path::ring::carrier::slots::{Consumer, Producer, RingError, RingShape};
    }
    pub mod tls {
        pub use crate::identity::tls::{SERVER_NAME, server_name};
    }
}

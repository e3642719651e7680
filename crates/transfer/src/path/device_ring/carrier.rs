//! The half of rings in device memory that does I/O.

mod ends;
mod link;
mod receive;
mod record;
mod send;

pub use ends::{accept, offer};
use link::OnGpu;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::path::carrier::{Carrier, Host, Link, Provider, Reporter};
use crate::path::ring::carrier::handover::{Limits, Listener};
use crate::path::ring::carrier::link::{RingLink, is_here};
use transload_cuda::Gpu;
use transload_wire::Path;
use transload_wire::internal::device_ring::{DeviceRings, GpuId};
use transload_wire::internal::negotiation::Negotiation;

/// The path between agents whose memory is all on one GPU.
#[derive(Clone, Debug)]
pub(crate) struct DeviceRing {
    gpu: Gpu,
}

impl DeviceRing {
    /// Makes the path for an agent whose memory is all on this GPU.
    pub(crate) fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone() }
    }
}

impl Provider for DeviceRing {
    fn path(&self) -> Path {
        Path::DEVICE
    }

    fn open(&self, host: Host) -> io::Result<Box<dyn Carrier>> {
        let uuid = self.gpu.uuid().map_err(io::Error::other)?;
        let reached = self.gpu.reached().unwrap_or_else(|error| {
            tracing::warn!(%error, "no ring is shared with a GPU that this one may reach");
            Vec::new()
        });
        Ok(Box::new(Local {
            listener: Arc::new(Listener::bind(Limits::default())?),
            reached: reached.into_iter().map(GpuId).collect(),
            rings: OnGpu {
                gpu: self.gpu.clone(),
                id: GpuId(uuid),
                receiver: host.receiver,
                stall: host.endpoints.options().stall_timeout,
            },
        }))
    }
}

struct Local {
    /// The socket to which peers of this host connect.
    listener: Arc<Listener>,
    /// Other GPUs whose memory this GPU can access.
    reached: Vec<GpuId>,
    rings: OnGpu,
}

impl Carrier for Local {
    fn reaches(&self, address: SocketAddr) -> bool {
        is_here(address)
    }

    fn negotiation(&self, _dialled: bool) -> Box<dyn Negotiation> {
        Box::new(DeviceRings::new(self.rings.id).reaching(self.reached.clone()))
    }

    fn link(&self, _address: SocketAddr, reporter: Reporter) -> Box<dyn Link> {
        Box::new(RingLink::new(&self.listener, self.rings.clone(), reporter))
    }
}

//! A socket, its thread and its QUIC endpoint.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use quinn::{Endpoint, ServerConfig};

use super::{
    error::{CloseCode, EndpointsError},
    options::QuicOptions,
    path::ETHERNET_UDP_PAYLOAD,
    reset::ResetSecret,
    socket::{self, Buffers},
    threads::{NetThread, OnThread},
};

/// A bound socket, with its endpoint and thread.
pub(super) struct Bound {
    pub(super) endpoint: Endpoint,
    pub(super) addr: SocketAddr,
    pub(super) buffers: Buffers,
    pub(super) thread: NetThread,
}

type Socket = (UdpSocket, Buffers);

/// The buffer size of control sockets, which carry little: it is within the usual maximum of the system.
const CONTROL_BUFFER: usize = 256 << 10;

impl Bound {
    /// Binds the socket of control connections.
    pub(super) fn for_control(
        addr: SocketAddr,
        options: &QuicOptions,
        server: &ServerConfig,
        secret: &ResetSecret,
    ) -> Result<Self, EndpointsError> {
        let socket = socket::bind(addr, options.socket_buffer.min(CONTROL_BUFFER));
        let socket = socket.map_err(failed_at(addr))?;
        let largest = options.largest_udp_payload().min(ETHERNET_UDP_PAYLOAD);
        Self::new("transload-control", socket, largest, server, secret)
    }

    /// Binds a socket for each lane, at the IP address of `control` with a port of its own.
    pub(super) fn for_lanes(
        control: SocketAddr,
        options: &QuicOptions,
        server: &ServerConfig,
        secret: &ResetSecret,
    ) -> Result<Vec<Self>, EndpointsError> {
        let largest = options.largest_udp_payload();
        bind_lanes(control, options)?
            .into_iter()
            .enumerate()
            .map(|(index, socket)| {
                let name = format!("transload-lane{index}");
                Self::new(&name, socket, largest, server, secret)
            })
            .collect()
    }

    fn new(
        name: &str,
        (socket, buffers): Socket,
        largest_payload: u16,
        server: &ServerConfig,
        secret: &ResetSecret,
    ) -> Result<Self, EndpointsError> {
        let thread = NetThread::start(name).map_err(EndpointsError::Thread)?;
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let addr = socket.local_addr().map_err(failed_at(unspecified))?;
        let mut config = secret.endpoint_at(addr);
        // Cannot fail: the payload was clamped to the valid range.
        let _ = config.max_udp_payload_size(largest_payload);
        let runtime = Arc::new(OnThread { thread: thread.handle.clone(), largest_payload });
        let endpoint = Endpoint::new(config, Some(server.clone()), socket, runtime).map_err(failed_at(addr))?;
        Ok(Self { endpoint, addr, buffers, thread })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.endpoint.close(CloseCode::SHUTTING_DOWN.wire(), b"");
        self.thread.retire(self.endpoint.clone());
    }
}

fn failed_at(addr: SocketAddr) -> impl Fn(io::Error) -> EndpointsError {
    move |source| EndpointsError::Socket { addr, source }
}

fn bind_lanes(control: SocketAddr, options: &QuicOptions) -> Result<Vec<Socket>, EndpointsError> {
    let wanted = usize::from(options.lanes);
    let bind = |port| {
        let addr = SocketAddr::new(control.ip(), port);
        socket::bind(addr, options.socket_buffer).map_err(failed_at(addr))
    };
    let Some(ports) = options.lane_ports.clone() else {
        return (0..wanted).map(|_| bind(0)).collect();
    };
    let (first, last) = (*ports.start(), *ports.end());
    let mut sockets = Vec::with_capacity(wanted);
    for port in ports {
        if sockets.len() == wanted {
            break;
        }
        match bind(port) {
            Ok(socket) => sockets.push(socket),
            Err(EndpointsError::Socket { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    match sockets.len() {
        found if found < wanted => Err(EndpointsError::PortsTaken { found, lanes: options.lanes, first, last }),
        _ => Ok(sockets),
    }
}

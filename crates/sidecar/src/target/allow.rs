//! Decides which targets may be dialled: those on an operator's list, or without a list all but link-local and metadata
//! addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::{Host, Target, TargetError, parse_port, split_port};

/// The targets that an operator allows: hosts and networks, each with one port or any.
///
/// Names are compared as text, ignoring case, and are never resolved: a listed network allows only requests that name
/// an address in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    hosts: Hosts,
    /// `None` allows any port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Name(Box<str>),
    /// The addresses that share this many leading bits with this one.
    Network(IpAddr, u32),
}

/// A reason why a text is not an item of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllowListError {
    /// The item is not a host with an optional port.
    #[error("{item:?} is not HOST[:PORT] or NETWORK/BITS[:PORT]: {source}")]
    Target {
        /// The item.
        item: String,
        /// The reason.
        source: TargetError,
    },
    /// The part before the slash is not an address, or the part after it is not a prefix length.
    #[error("{0:?} is not of the form ADDRESS/BITS[:PORT]")]
    Network(String),
    /// The address has bits set after its prefix, so a single address may have been meant.
    #[error("{item:?} names one address of a network; write {network} for the network, or leave /{bits} out")]
    HostBits {
        /// The item.
        item: String,
        /// The network that contains the address.
        network: String,
        /// The prefix length.
        bits: u32,
    },
}

impl AllowList {
    /// Parses comma-separated items of the form `HOST[:PORT]` or `NETWORK/BITS[:PORT]`. Several texts form one list.
    ///
    /// # Errors
    /// [`AllowListError`].
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, AllowListError> {
        let mut items = Vec::new();
        for text in texts {
            let parts = text.as_ref().split(',').map(str::trim);
            for item in parts.filter(|item| !item.is_empty()) {
                items.push(Item::parse(item)?);
            }
        }
        Ok(Self(items))
    }

    /// Returns whether one item allows both the target's host and its port.
    #[must_use]
    pub fn allows(&self, target: &Target) -> bool {
        self.0.iter().any(|item| item.port.is_none_or(|port| port == target.port) && item.hosts.contain(&target.host))
    }

    /// Returns whether an item allows the host, with any port.
    pub(crate) fn allows_host(&self, host: &Host) -> bool {
        self.0.iter().any(|item| item.hosts.contain(host))
    }
}

impl Item {
    fn parse(item: &str) -> Result<Self, AllowListError> {
        let wrong = |source| AllowListError::Target { item: item.into(), source };
        let Some((address, rest)) = item.split_once('/') else {
            let (host, port) = split_port(item);
            let host = Host::parse(host).map_err(wrong)?;
            let hosts = match host.address() {
                Some(address) => Hosts::Network(address, bits_of(address)),
                None => Hosts::Name(host.to_string().into()),
            };
            let port = port.map(parse_port).transpose().map_err(wrong)?;
            return Ok(Self { hosts, port });
        };
        let network = || AllowListError::Network(item.into());
        let (bits, port) = split_port(rest);
        let digits = (1..=3).contains(&bits.len()) && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse::<u32>().ok().filter(|_| digits).ok_or_else(network)?;
        let bare = address.strip_prefix('[').map_or(Some(address), |inner| inner.strip_suffix(']'));
        let address = bare.and_then(|bare| bare.parse::<IpAddr>().ok()).ok_or_else(network)?;
        if bits > bits_of(address) {
            return Err(network());
        }
        // A network of IPv4-mapped IPv6 addresses is the network of the IPv4 addresses.
        let (address, bits) = match address.to_canonical() {
            canonical if bits + bits_of(canonical) >= bits_of(address) => {
                (canonical, bits + bits_of(canonical) - bits_of(address))
            }
            _ => (address, bits),
        };
        let first = mask(address, bits);
        if first != address {
            return Err(AllowListError::HostBits { item: item.into(), network: format!("{first}/{bits}"), bits });
        }
        let port = port.map(parse_port).transpose().map_err(wrong)?;
        let hosts = Hosts::Network(address, bits);
        Ok(Self { hosts, port })
    }
}

impl Hosts {
    fn contain(&self, host: &Host) -> bool {
        match (self, host.address()) {
            (Self::Name(name), None) => matches!(host, Host::Name(other) if name == other),
            (Self::Network(network, bits), Some(address)) => {
                network.is_ipv4() == address.is_ipv4() && mask(address, *bits) == *network
            }
            _ => false,
        }
    }
}

const fn bits_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn mask(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// Returns whether a target that a client names may be dialled: with a list, whether it is on it; without one, whether
/// [`may_dial`] accepts its address. Names are always accepted without a list, and their addresses checked when they
/// are dialled.
#[must_use]
pub(crate) fn allowed(list: Option<&AllowList>, target: &Target) -> bool {
    match list {
        Some(list) => list.allows(target),
        None => target.host.address().is_none_or(may_dial),
    }
}

/// Returns whether an address may belong to a model server. Link-local addresses and the metadata addresses of clouds,
/// which hand out a machine's credentials, may not. Check the addresses that a name resolves to as well.
#[must_use]
pub(crate) fn may_dial(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !METADATA_V4.contains(&address.octets()),
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            let forbidden = address.is_unicast_link_local()
                || METADATA_V6.contains(&address)
                || METADATA_V6_NETWORKS.contains(&[first, second]);
            !forbidden && embedded(address).all(|inner| may_dial(inner.into()))
        }
    }
}

/// Metadata services outside 169.254.0.0/16: Alibaba's and Azure's.
const METADATA_V4: [[u8; 4]; 2] = [[100, 100, 100, 200], [168, 63, 129, 16]];
/// The IPv6 metadata networks of Amazon and Oracle, by their first 32 bits.
const METADATA_V6_NETWORKS: [[u16; 2]; 2] = [[0xfd00, 0xec2], [0xfd00, 0xc1]];
/// The IPv6 metadata addresses of Google and Scaleway.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)];

/// Returns the IPv4 addresses that an IPv6 address may stand for: mapped, compatible and translated (RFC 4291, RFC
/// 2765), behind a NAT64 gateway (RFC 6052, and RFC 8215 with any prefix length), by 6to4 (RFC 3056), Teredo (RFC 4380)
/// or ISATAP (RFC 5214).
fn embedded(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = address.to_bits();
    let [a, b, c, d, e, f, ..] = address.segments();
    let at = |end: u32| (bits >> (128 - end)) as u32;
    // After a prefix shorter than 96 bits, bits 64 to 71 are zero and split the IPv4 address (RFC 6052).
    let around = |prefix: u32| {
        let before = 64 - prefix;
        let head = ((bits >> 64) & ((1u128 << before) - 1)) as u32;
        let tail = (bits << 72).checked_shr(96 + before).unwrap_or(0) as u32;
        head.checked_shl(32 - before).unwrap_or(0) | tail
    };
    let last = bits as u32;
    let low = [a, b, c, d] == [0; 4] && matches!((e, f), (0, 0 | 0xffff) | (0xffff, 0));
    let nat64 = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    let local_nat64 = [a, b, c] == [0x64, 0xff9b, 1];
    let isatap = e & !0x200 == 0 && f == 0x5efe;
    [
        (low || nat64 || local_nat64 || isatap).then_some(last),
        local_nat64.then(|| around(48)),
        local_nat64.then(|| around(56)),
        local_nat64.then(|| around(64)),
        (a == 0x2002).then(|| at(48)),
        ([a, b] == [0x2001, 0]).then_some(!last),
    ]
    .into_iter()
    .flatten()
    .map(Ipv4Addr::from_bits)
}

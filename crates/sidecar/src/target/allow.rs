//! Which targets may be dialled: those that an operator lists, or all but a few that nobody means.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::{Host, Target, TargetError, parse_port, split_port};

/// The targets that an operator allows: hosts and networks, each with a port or any.
///
/// Names are compared as they are written, whatever the case of their letters, and never with the addresses that they
/// stand for: a listed network allows addresses only that a request names as such.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    hosts: Hosts,
    /// `None` is any.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Name(Box<str>),
    /// The addresses that begin with the bits of this one, so many of them.
    Network(IpAddr, u32),
}

/// Why a text is no item of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllowListError {
    /// It is no host.
    #[error("{item:?} is not HOST[:PORT] or NETWORK/BITS[:PORT]: {source}")]
    Target {
        /// The item.
        item: String,
        /// What is wrong with it.
        source: TargetError,
    },
    /// The part before the slash is no address, or the part behind it no number of bits of one.
    #[error("{0:?} is not of the form ADDRESS/BITS[:PORT]")]
    Network(String),
    /// The address has bits behind those that count: it may be meant as one address.
    #[error("{item:?} names one address of a network; write {network} for the network, or leave /{bits} out")]
    HostBits {
        /// The item.
        item: String,
        /// The network that the address is in.
        network: String,
        /// The bits that count.
        bits: u32,
    },
}

impl AllowList {
    /// Reads `HOST[:PORT]` and `NETWORK/BITS[:PORT]`, separated by commas. May be given several texts, which are one list.
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

    /// Tells whether a target's host and port are on the list together.
    #[must_use]
    pub fn allows(&self, target: &Target) -> bool {
        self.0.iter().any(|item| item.port.is_none_or(|port| port == target.port) && item.hosts.contain(&target.host))
    }

    /// Tells whether a host is on the list, with whatever port.
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
        // Networks of IPv4 addresses in the clothes of IPv6 are those of the addresses themselves.
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

/// The address with all bits zero behind the first so many.
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

/// Tells whether a target that a client names may be dialled: whether it is on the list, or without a list whether it is
/// no address that [`may_dial`] forbids.
#[must_use]
pub(crate) fn allowed(list: Option<&AllowList>, target: &Target) -> bool {
    match list {
        Some(list) => list.allows(target),
        None => target.host.address().is_none_or(may_dial),
    }
}

/// Tells whether an address is one that a server of models may have: not a link-local one, and not one at which clouds hand
/// out the credentials of a machine. To be asked for the addresses that a name stands for, too.
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

/// Metadata services other than at 169.254.0.0/16: Alibaba's, Azure's.
const METADATA_V4: [[u8; 4]; 2] = [[100, 100, 100, 200], [168, 63, 129, 16]];
/// Those of Amazon and Oracle: all of the network of 32 bits.
const METADATA_V6_NETWORKS: [[u16; 2]; 2] = [[0xfd00, 0xec2], [0xfd00, 0xc1]];
/// Those of Google and Scaleway.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)];

/// The IPv4 addresses that an IPv6 address may stand for: mapped, compatible and translated (RFC 4291, RFC 2765), behind a NAT64
/// gateway (RFC 6052, and RFC 8215 with any length of prefix), by 6to4 (RFC 3056), Teredo (RFC 4380) or ISATAP (RFC 5214).
fn embedded(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = address.to_bits();
    let [a, b, c, d, e, f, ..] = address.segments();
    let at = |end: u32| (bits >> (128 - end)) as u32;
    // Behind prefixes shorter than 96 bits the address has eight zero bits in it, which are the bits 64 to 71.
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

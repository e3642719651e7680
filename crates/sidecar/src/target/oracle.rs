//! The slow oracle of targets: reads texts rule by rule, and checks that a target is dialled as the same address as it
//! was compared.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{AllowList, Host, ServerUrl, Target, allowed, may_dial, named};

/// Panics unless the slow reading agrees on an allow-list, and on texts that may be targets, URLs or header lines.
pub(crate) fn check(list: &str, texts: &[&str]) {
    let list = AllowList::parse([list]).ok().map(|read| {
        let items = list.split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        (read, items.collect::<Vec<_>>())
    });
    for text in texts {
        let target = Target::parse(text).ok();
        assert_eq!(target, slowly(text), "{text:?}");
        check_url(text);
        let Some(target) = target else { continue };
        check_target(&target);
        if let Some((list, items)) = &list {
            let slow = items.iter().any(|item| lists(item, &target));
            assert_eq!(list.allows(&target), slow, "{items:?} {target}");
        }
    }
    let lines = || texts.iter().map(|text| text.as_bytes());
    for number in 0..3 {
        let read = named(lines(), |among| {
            assert!(among > 0);
            number % among
        });
        let values = match texts {
            [one] => one.split(',').collect(),
            several => several.to_vec(),
        };
        let value = values.get(number % values.len().max(1)).copied();
        let value = value.unwrap_or("").trim_matches([' ', '\t']);
        let slow = slowly(value.strip_prefix("http://").unwrap_or(value));
        match read {
            Ok(None) => assert_eq!(value, ""),
            read => assert_eq!(read.ok().flatten(), slow, "{texts:?}"),
        }
    }
}

/// Checks that a target's text is read as the same target, by other parsers as well.
fn check_target(target: &Target) {
    let text = target.to_string();
    assert_eq!(Target::parse(&text).as_ref(), Ok(target));
    let own = AllowList::parse([&text]).expect("a target may be listed");
    assert!(own.allows(target) && allowed(Some(&own), target));
    let uri: http::Uri = format!("http://{text}/").parse().expect("a URL");
    assert_eq!(uri.host(), Some(&*target.host.to_string()));
    assert_eq!(uri.port_u16(), Some(target.port));
    match &target.host {
        Host::Name(name) => assert_eq!(inet_aton(name), None, "{name}"),
        // The system reads the text of an address only as that address.
        Host::V4(address) => {
            assert_eq!(inet_aton(&address.to_string()), Some(*address));
            let v6 = |high: u128| Ipv6Addr::from_bits(high << 32 | u128::from(address.to_bits()));
            // The rule for dialling does not depend on how the address is embedded.
            for v6 in [v6(0xffff), v6(0x64_ff9b << 64)] {
                assert_eq!(may_dial(v6.into()), may_dial((*address).into()), "{v6}");
            }
        }
        Host::V6(address) => {
            assert_eq!(address.to_ipv4_mapped(), None);
            assert_eq!(format!("[{address}]"), target.host.to_string());
        }
    }
    let dialled = target.host.address().is_none_or(may_dial);
    assert_eq!(allowed(None, target), dialled);
}

fn check_url(text: &str) {
    let slow = || {
        let (scheme, rest) = text.split_once("://")?;
        let tls = scheme.eq_ignore_ascii_case("https");
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let default = if tls { ":443" } else { ":80" };
        let target = slowly(rest).or_else(|| slowly(&format!("{rest}{default}")))?;
        (tls || scheme.eq_ignore_ascii_case("http")).then_some(ServerUrl { tls, target })
    };
    let read = ServerUrl::parse(text).ok();
    assert_eq!(read, slow(), "{text:?}");
    if let Some(url) = read {
        assert_eq!(ServerUrl::parse(&url.to_string()), Ok(url));
    }
}

fn slowly(text: &str) -> Option<Target> {
    let (host, port) = text.rsplit_once(':')?;
    let number = port.parse::<u16>().ok()?;
    let port = (number > 0 && number.to_string() == port).then_some(number)?;
    let address = match host.strip_prefix('[') {
        Some(inner) => Some(IpAddr::V6(inner.strip_suffix(']')?.parse().ok()?)),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    let host = match address {
        Some(IpAddr::V4(address)) => Host::V4(address),
        Some(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(address) => Host::V4(address),
            None => Host::V6(address),
        },
        None => {
            let allowed: HashSet<char> = "abcdefghijklmnopqrstuvwxyz0123456789-_".chars().collect();
            let name = host.to_ascii_lowercase();
            let labels: Vec<&str> = name.split('.').collect();
            let good = labels.iter().all(|label| {
                let ends = [label.chars().next(), label.chars().last()];
                label.chars().all(|letter| allowed.contains(&letter))
                    && (1..64).contains(&label.len())
                    && !ends.contains(&Some('-'))
            });
            if !good || name.len() > 253 || is_number(labels[labels.len() - 1]) {
                return None;
            }
            Host::Name(name.into())
        }
    };
    Some(Target { host, port })
}

/// Returns whether some resolver may read a label as a number, and so a name that ends with it as an address.
fn is_number(label: &str) -> bool {
    let of = |text: &str, digits: &str| text.chars().all(|digit| digits.contains(digit));
    let hex = label.strip_prefix("0x");
    of(label, "0123456789") || hex.is_some_and(|text| of(text, "0123456789abcdef"))
}

/// Parses an address as resolvers do: one to four numbers in C's notations, the last of which fills the remaining
/// bytes.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let number = |part: &str| match part.strip_prefix("0x").or(part.strip_prefix("0X")) {
        Some("") => Some(0),
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if part.starts_with('0') => u64::from_str_radix(part, 8).ok(),
        None => part.parse().ok(),
    };
    let parts = text.split('.').map(number).collect::<Option<Vec<u64>>>()?;
    let (last, first) = parts.split_last()?;
    let room = 4_usize.checked_sub(first.len()).filter(|room| *room > 0)?;
    if first.iter().any(|part| *part > 255) || last >> (8 * room) != 0 {
        return None;
    }
    let high = first.iter().fold(0, |sum, part| sum << 8 | part);
    Some(Ipv4Addr::from_bits((high << (8 * room) | last) as u32))
}

/// Returns whether a well-formed item of a list allows a target.
fn lists(item: &str, target: &Target) -> bool {
    let (item, port) = match item.rsplit_once(':') {
        // In an IPv6 address without brackets, colons separate its groups.
        Some((host, port)) if !port.ends_with(']') && !bare(item) => (host, Some(port)),
        _ => (item, None),
    };
    if port.is_some_and(|port| port != target.port.to_string()) {
        return false;
    }
    let bits = |address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => format!("{:032b}", address.to_bits()),
        IpAddr::V6(address) => format!("{:0128b}", address.to_bits()),
    };
    let (host, length) = match item.split_once('/') {
        Some((host, length)) => (host, length.parse::<usize>().ok()),
        None => (item, None),
    };
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    match (address, target.host.address()) {
        (Err(_), None) => host.eq_ignore_ascii_case(&target.host.to_string()),
        (Ok(listed), Some(address)) => {
            let (all, found) = (bits(listed), bits(address));
            let written = if listed.is_ipv4() { 32 } else { 128 };
            let length = length.unwrap_or(written);
            // The leading bits of an IPv4 address written as an IPv6 one are not compared.
            match length.checked_sub(written - all.len()) {
                Some(length) => all.len() == found.len() && all[..length] == found[..length],
                None => false,
            }
        }
        _ => false,
    }
}

/// Returns whether an item is a network of IPv6 addresses without brackets and port.
fn bare(item: &str) -> bool {
    let (address, bits) = item.split_once('/').unwrap_or((item, ""));
    address.parse::<Ipv6Addr>().is_ok() && !bits.contains(':')
}

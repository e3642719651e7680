//! Checks the addresses in a prefill server's parameters against the server that was asked, since the decode server
//! will connect to them.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::socket::Peer;
use crate::target::{AllowList, Host, Target};

#[derive(Debug, Clone)]
pub(crate) enum RemoteHosts {
    Any,
    /// Addresses of the server that was asked, and those on the list.
    Asked(Option<AllowList>),
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) named: Host,
    /// The address to which the connection was made.
    pub(crate) peer: Option<Peer>,
    pub(crate) is_local: fn(IpAddr) -> bool,
}

impl Asked {
    fn is(&self, host: &Host) -> bool {
        let here = self.peer.is_some_and(|peer| peer.is_this_host);
        *host == self.named
            || match host.address() {
                Some(address) => {
                    self.peer.is_some_and(|peer| peer.address == address) || here && (self.is_local)(address)
                }
                None => here && *host == Host::Name("localhost".into()),
            }
    }
}

impl RemoteHosts {
    /// Returns the first address in the parameters, at any depth, that is neither the asked server's own nor on the
    /// list.
    pub(super) fn other(&self, asked: Option<&Asked>, params: &str) -> Option<String> {
        let Self::Asked(list) = self else {
            return None;
        };
        let allows = |host: &Host| {
            asked.is_some_and(|asked| asked.is(host)) || list.as_ref().is_some_and(|list| list.allows_host(host))
        };
        // The text is valid JSON of any depth, with numbers of any size. So only its tokens have to be told apart,
        // without recursion.
        let mut around = Vec::new();
        let mut key = Key::default();
        let mut rest = params;
        while let Some(at) = rest.find(|next: char| !next.is_ascii_whitespace() && next != ',') {
            let (token, after) = rest[at..].split_at(token_length(&rest[at..]));
            rest = after.trim_ascii_start();
            match token.as_bytes()[0] {
                b'{' | b'[' => {
                    around.push(key);
                    continue;
                }
                b'}' | b']' => _ = around.pop(),
                b'"' if rest.starts_with(':') => {
                    key = Key::read(&text_of(token), around.last());
                    rest = &rest[1..];
                    continue;
                }
                b'"' if !key.takes(&text_of(token), &allows) => return Some(token.to_owned()),
                // Resolvers also read plain numbers as IPv4 addresses.
                b'-' | b'0'..=b'9' if key.is_host => return Some(token.to_owned()),
                _ => {}
            }
            // Items of a list inherit the meaning of the list's key.
            key = around.last().copied().unwrap_or_default();
        }
        None
    }
}

fn token_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes[0] {
        b'{' | b'}' | b'[' | b']' => 1,
        b'"' => {
            let mut at = 1;
            while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                at += 1 + usize::from(*byte == b'\\');
            }
            (at + 1).min(bytes.len())
        }
        _ => {
            let end = |byte: &u8| b",:{}[]".contains(byte) || byte.is_ascii_whitespace();
            bytes[1..].iter().position(end).map_or(bytes.len(), |end| end + 1)
        }
    }
}

/// Decodes a JSON string, or returns the token as it is if it cannot be decoded.
fn text_of(token: &str) -> Cow<'_, str> {
    serde_json::from_str::<String>(token).map_or(token.into(), Cow::from)
}

/// The meaning of a value, judged by its key.
#[derive(Debug, Clone, Copy, Default)]
struct Key {
    is_address: bool,
    /// The value is a host's address, not one in memory.
    is_host: bool,
}

impl Key {
    /// Judges a key by its last word: `remote_host`, `remote_bootstrap_addr`, `peerUrls`. A key that is only a number,
    /// such as a rank, inherits the meaning of the key around it.
    fn read(key: &str, around: Option<&Self>) -> Self {
        const HOSTS: [&str; 3] = ["host", "hostname", "host_port"];
        const ADDRESSES: [&str; 6] = ["addr", "addres", "addresse", "url", "uri", "endpoint"];
        let name = key.trim_end_matches(|last: char| last.is_ascii_digit() || last == '_');
        if name.is_empty() {
            return around.copied().unwrap_or_default();
        }
        let word = name.strip_suffix('s').unwrap_or(name);
        let is_ip = ["_ip", "-ip", "Ip", "IP"].iter().any(|ip| word.ends_with(ip));
        let lower = word.to_ascii_lowercase();
        let is_host = HOSTS.iter().any(|host| lower.ends_with(host)) || is_ip || lower == "ip";
        let is_address = is_host || ADDRESSES.iter().any(|address| lower.ends_with(address));
        Self { is_address, is_host }
    }

    /// Returns whether a text names no host, or only allowed ones.
    fn takes(self, text: &str, allows: &dyn Fn(&Host) -> bool) -> bool {
        let takes = |text: &str| host_in(text).is_some_and(|host| allows(&host));
        let is_address = || {
            text.contains("://")
                || Target::parse(text).is_ok()
                || Host::read(text).is_some_and(|host| host.address().is_some())
        };
        match self.is_address {
            true => text.split(',').all(|part| takes(part.trim())),
            false => !is_address() || takes(text),
        }
    }
}

/// Extracts the host from an address with or without scheme, port and path.
fn host_in(text: &str) -> Option<Host> {
    let (_, rest) = text.split_once("://").unwrap_or(("", text));
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match Target::parse(place) {
        Ok(target) => Some(target.host),
        // An empty host means the connecting host itself.
        Err(_) if place.is_empty() => Some(Host::Name("localhost".into())),
        Err(_) => Host::read(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_server_that_was_asked() {
        let asked = |named: &str, peer: &str, is_this_host| Asked {
            named: Host::read(named).expect("a host"),
            peer: Some(Peer { address: peer.parse().expect("an address"), is_this_host }),
            is_local: |address| address.is_loopback() || address == IpAddr::from([10, 0, 0, 7]),
        };
        let list = AllowList::parse(["10.1.0.0/16:8000,prefill.example"]).expect("a list");
        let (far, near) = (asked("p", "10.0.0.1", false), asked("localhost", "127.0.0.1", true));
        for (params, of_far, of_near, with_list) in [
            (r#"{"remote_host":"p","remote_port":5600}"#, true, false, true),
            (r#"{"remote_host":"10.0.0.1"}"#, true, false, true),
            (r#"{"remote_host":"::ffff:10.0.0.1"}"#, true, false, true),
            (r#"{"remote_host":"10.0.0.9"}"#, false, false, false),
            (r#"{"remote_host":"10.1.0.9"}"#, false, false, true),
            (r#"{"remote_host":"prefill.example"}"#, false, false, true),
            (r#"{"remote_host":"localhost"}"#, false, true, false),
            (r#"{"remote_host":""}"#, false, true, false),
            (r#"{"remote_host":"10.0.0.7"}"#, false, true, false),
            (r#"{"remote_host":"::1","remote_block_ids":[[1,2]]}"#, false, true, false),
            (r#"{"remote_host":2130706433}"#, false, false, false),
            (r#"{"remote_host":["10.0.0.1","10.0.0.9"]}"#, false, false, false),
            (r#"{"remote_host":"10.0.0.9","remote_host":"10.0.0.1"}"#, false, false, false),
            (r#"{"remote\u005fhost":"10.0.0.9"}"#, false, false, false),
            (r#"{"REMOTE_HOST":"10.0.0.9"}"#, false, false, false),
            (r#"{"remote_host":"10.0.0.1@evil"}"#, false, false, false),
            // Mooncake's.
            (r#"{"remote_bootstrap_addr":"http://10.0.0.1:8998"}"#, true, false, true),
            (r#"{"remote_bootstrap_addr":"http://10.0.0.9:8998"}"#, false, false, false),
            (r#"{"remote_bootstrap_addr":"http://[::ffff:a00:1]:8998/x"}"#, true, false, true),
            (r#"{"remote_bootstrap_addr":"evil:8998"}"#, false, false, false),
            // A server for each rank.
            (r#"{"mapping":{"0":{"host":"10.0.0.1","engine_id":"a"},"1":{"host":"10.0.0.9"}}}"#, false, false, false),
            (r#"{"mapping":{"0":{"host":"10.0.0.1","engine_id":"a"}}}"#, true, false, true),
            (r#"{"hosts":{"0":"evil"}}"#, false, false, false),
            (r#"{"peerIps":"10.0.0.1,10.0.0.9"}"#, false, false, false),
            // Of any key.
            (r#"{"x":"tcp://10.0.0.9:1"}"#, false, false, false),
            (r#"{"x":["10.0.0.9"]}"#, false, false, false),
            (r#"{"x":"fe80::1"}"#, false, false, false),
            (r#"{"x":"evil:80"}"#, false, false, false),
            (r#"{"bootstrap_address":"evil","x":{}}"#, false, false, false),
            (r#"{"x":[[{"y":[],"remote_host":"evil"}],{}]}"#, false, false, false),
            (r#"{"remote_host" : [ "10.0.0.1" , "ev\"il" ]}"#, false, false, false),
            // None.
            (r#"{"remote_host":null,"remote_engine_id":"5b1f-9","base_addr":140737488355328}"#, true, true, true),
            (r#"{"transload_ticket":"AAAA/+==","tp_size":8,"do_remote_prefill":true,"x":1.5}"#, true, true, true),
        ] {
            let other = |list: Option<&AllowList>, asked| RemoteHosts::Asked(list.cloned()).other(Some(asked), params);
            assert_eq!(other(None, &far).is_none(), of_far, "{params}");
            assert_eq!(other(None, &near).is_none(), of_near, "{params}");
            assert_eq!(other(Some(&list), &far).is_none(), with_list, "{params}");
            assert_eq!(RemoteHosts::Any.other(Some(&far), params), None);
        }
    }
}

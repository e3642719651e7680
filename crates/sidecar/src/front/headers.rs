//! The headers of forwarded messages: those that end at each connection, and those that we set.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method};

/// Headers with which a client names servers. They are never forwarded, whether they are obeyed or not.
pub(super) const PREFILLER: HeaderName = HeaderName::from_static("x-prefiller-host-port");
pub(super) const DATA_PARALLEL: HeaderName = HeaderName::from_static("x-data-parallel-host-port");
const ENCODERS: HeaderName = HeaderName::from_static("x-encoder-hosts-ports");
const CACHE_SOURCE: HeaderName = HeaderName::from_static("x-kv-cache-source-host-port");

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers that belong to one connection, in addition to those that `Connection` names. `Trailer` is not among them: it
/// describes the end of a body.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Removes the headers that belong to the connection over which a message came.
pub(super) fn end_hop(headers: &mut HeaderMap) {
    if let Some(named) = named_by_connection(headers) {
        for name in named {
            headers.remove(name);
        }
    }
    remove(headers, &HOP_BY_HOP);
}

/// Removes these headers. One pass over the few headers of a message costs less than a look-up of each name.
fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    let found = headers.keys().filter(|name| names.contains(name));
    for name in found.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Returns the headers that `Connection` names, if it names any but the usual two.
fn named_by_connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for name in tokens(value) {
            let usual = name.eq_ignore_ascii_case(b"keep-alive") || name.eq_ignore_ascii_case(b"close");
            // Headers that frame the body never belong to the connection, whatever a message says.
            if let (false, Ok(name)) = (usual, HeaderName::from_bytes(name))
                && name != CONTENT_LENGTH
                && name != http::header::HOST
            {
                named.push(name);
            }
        }
    }
    (!named.is_empty()).then_some(named)
}

/// Returns the tokens of a list, which may contain bytes that are not text.
fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let tokens = value.as_bytes().split(|byte| *byte == b',');
    tokens.map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

pub(super) fn to_server(headers: &mut HeaderMap) {
    let trailers = headers.get_all(TE).iter().flat_map(tokens).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
    end_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Our own listener has already handled `Expect`.
    remove(headers, &[EXPECT, PREFILLER, DATA_PARALLEL, ENCODERS, CACHE_SOURCE]);
}

/// Turns a request's headers into those of its legs, when the request was buffered: its body is replaced by one of
/// another length, and we may have to read its answer instead of only forwarding it.
pub(super) fn to_legs(headers: &mut HeaderMap, id: &HeaderValue, reads_answers: bool) {
    headers.remove(CONTENT_LENGTH);
    headers.remove(http::header::TRAILER);
    headers.insert(REQUEST_ID, id.clone());
    if reads_answers && headers.contains_key(ACCEPT_ENCODING) {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let encodings = headers.get_all(http::header::CONTENT_ENCODING);
    encodings.iter().any(|value| {
        value.to_str().map_or(true, |text| !text.trim().eq_ignore_ascii_case("identity") && !text.trim().is_empty())
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind<'a> {
    /// Read as JSON; also for a body without a type, since servers may guess.
    Json,
    /// A multipart form, with its whole `Content-Type`, which names the boundary.
    Multipart(&'a [u8]),
    /// A form in one line, unless it begins like an object.
    Urlencoded,
    /// Anything else, unless it begins like an object.
    Other,
}

pub(super) fn body_kind(headers: &HeaderMap) -> BodyKind<'_> {
    let mut kinds = headers.get_all(http::header::CONTENT_TYPE).iter();
    // Given several types, servers disagree about which one counts.
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        return BodyKind::Json;
    };
    let kind = kind.as_bytes();
    let essence = kind.split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii().to_ascii_lowercase();
    match &*essence {
        b"multipart/form-data" => BodyKind::Multipart(kind),
        b"application/x-www-form-urlencoded" => BodyKind::Urlencoded,
        b"" => BodyKind::Json,
        // A value that is not text is not a type, and servers may guess.
        essence if !essence.is_ascii() => BodyKind::Json,
        essence if essence.ends_with(b"json") || essence.starts_with(b"text/") => BodyKind::Json,
        _ => BodyKind::Other,
    }
}

/// Returns whether there are several media types, one of which is a form's.
pub(super) fn may_be_form(headers: &HeaderMap) -> bool {
    let kinds = || headers.get_all(http::header::CONTENT_TYPE).iter();
    let form = |kind: &HeaderValue| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        memchr::memmem::find(&kind, b"form").is_some()
    };
    kinds().count() > 1 && kinds().any(form)
}

pub(super) fn may_carry_params(method: &Method) -> bool {
    *method == Method::POST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).expect(name),
                HeaderValue::from_str(value).expect(value),
            );
        }
        map
    }

    #[test]
    fn what_belongs_to_the_connection_ends() {
        let mut map = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "x-too, content-length, host"),
            ("x-mine", "1"),
            ("x-too", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip, trailers"),
            ("proxy-authorization", "Basic x"),
            ("host", "a"),
            ("content-length", "3"),
            ("trailer", "x-sum"),
            ("traceparent", "00-1-2-01"),
            ("expect", "100-continue"),
            ("x-prefiller-host-port", "a:1"),
        ]);
        let odd = HeaderValue::from_bytes(b"\xff, x-odd, \xe9").expect("a value");
        map.append(CONNECTION, odd);
        map.insert("x-odd", HeaderValue::from_static("1"));
        to_server(&mut map);
        let left: Vec<_> =
            map.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default())).collect();
        let mut expected = vec![
            ("host", "a"),
            ("content-length", "3"),
            ("trailer", "x-sum"),
            ("traceparent", "00-1-2-01"),
            ("te", "trailers"),
        ];
        expected.sort_unstable();
        let mut left = left;
        left.sort_unstable();
        assert_eq!(left, expected);
    }
}

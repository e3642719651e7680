//! The bytes that are allowed at each place in HTTP/1.1 (RFC 9110 section 5, RFC 9112 sections 3 and 5, RFC 3986).

use super::Refusal;
use crate::target::Host;

/// Returns whether a text is a token, which has at least one byte.
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_tchar(*byte))
}

pub(super) const fn is_tchar(byte: u8) -> bool {
    CLASSES[byte as usize] & TCHAR != 0
}

/// Returns whether a field's value consists of visible characters, blanks and bytes above ASCII.
pub(super) fn is_value(value: &[u8]) -> bool {
    // Checks all bytes without an early exit, so that the compiler can vectorise the loop.
    !value.iter().fold(false, |bad, byte| bad | ((*byte < b' ') & (*byte != b'\t')) | (*byte == 0x7f))
}

pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Splits a header or trailer line into its name and its value, without the blanks around the value.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let name = line.iter().position(|byte| !is_tchar(*byte));
    let (name, value) = match line.split_at(name.unwrap_or(line.len())) {
        ([], [b' ' | b'\t', ..]) => {
            return Err(Refusal::bad("a header line begins with a blank; a header must be on one line"));
        }
        ([], [b':', ..]) => return Err(Refusal::bad("a header has no name")),
        (name, [b':', value @ ..]) => (name, value),
        (_, rest) if !rest.contains(&b':') => {
            return Err(Refusal::bad("a header line has no colon"));
        }
        (_, [b' ' | b'\t', rest @ ..]) if trim(rest).starts_with(b":") => {
            return Err(Refusal::bad("there is a blank between a header's name and its colon"));
        }
        _ => {
            return Err(Refusal::bad("a header's name has a character that is not allowed in one"));
        }
    };
    if name.len() > super::limits::MAX_NAME {
        return Err(Refusal::new(
            http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "a header's name has more than 256 bytes",
        ));
    }
    if !is_value(value) {
        return Err(Refusal::bad("a header's value has a control character"));
    }
    Ok((name, trim(value)))
}

/// Returns whether a comma-separated list contains an item, ignoring case.
pub(super) fn lists(value: &[u8], item: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(|listed| trim(listed).eq_ignore_ascii_case(item))
}

/// Returns whether a path and query consist of characters that a URI may have, with a complete escape after each `%` of
/// the path. A few more characters are accepted that browsers send unescaped, above all in a query.
pub(super) fn is_path_and_query(text: &[u8]) -> bool {
    let (path, query) = match memchr::memchr(b'?', text) {
        Some(mark) => text.split_at(mark),
        None => (text, &b""[..]),
    };
    path.iter().all(|byte| is(*byte, PATH))
        && query.iter().all(|byte| is(*byte, QUERY))
        && memchr::memchr_iter(b'%', path)
            .all(|at| path.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)))
}

/// Returns whether a text is `HOST` or `HOST:PORT`, as in the header `Host`.
pub(super) fn is_authority(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok())
        && (Host::is_well_formed(host) || host.strip_suffix('.').is_some_and(Host::is_name))
}

const fn is(byte: u8, class: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

const TCHAR: u8 = 1;
const PATH: u8 = 2;
const QUERY: u8 = 4;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0u8;
    while byte < 128 {
        let mut class = 0;
        let alphanumeric = byte.is_ascii_alphanumeric();
        if alphanumeric || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~') {
            class |= TCHAR;
        }
        // Unreserved characters and sub-delimiters of RFC 3986, and the characters between segments.
        let uri = alphanumeric
            || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'!' | b'$'..=b',' | b';' | b'=' | b':' | b'@' | b'/');
        if uri || matches!(byte, b'[' | b']' | b'|') {
            class |= PATH | QUERY;
        }
        if matches!(byte, b'?' | b'{' | b'}' | b'\\' | b'^' | b'`') {
            class |= QUERY;
        }
        classes[byte as usize] = class;
        byte += 1;
    }
    classes
};

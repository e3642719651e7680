//! A slow reading of a connection's whole bytes, rule by rule from the RFCs and without the code that is tested.

use crate::strict::{
    MAX_CHUNK_EXTRAS, MAX_CHUNK_LINE, MAX_HEAD, MAX_HEADERS, MAX_NAME, MAX_REQUEST_LINE, MAX_TRAILERS,
};

#[derive(Debug, Default)]
pub(in crate::strict) struct Reading {
    /// The requests; the body of the last one may be incomplete.
    pub(in crate::strict) requests: Vec<Request>,
    /// The number of bytes that may be passed on.
    pub(in crate::strict) passed: usize,
    pub(in crate::strict) end: End,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::strict) struct Request {
    pub(in crate::strict) method: String,
    pub(in crate::strict) target: String,
    /// The headers, with names in lower case.
    pub(in crate::strict) headers: Vec<(String, Vec<u8>)>,
    pub(in crate::strict) body: Vec<u8>,
    pub(in crate::strict) trailers: Vec<(String, Vec<u8>)>,
    pub(in crate::strict) whole: bool,
    pub(in crate::strict) http11: bool,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(in crate::strict) enum End {
    #[default]
    More,
    Upgrade,
    BadHead(u16),
    BadBody,
}

enum Stop {
    More,
    Bad(u16),
}

type Found<T> = Result<T, Stop>;

const BAD: Stop = Stop::Bad(400);

pub(in crate::strict) fn read(bytes: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut rest = bytes;
    loop {
        let mut head = rest;
        let mut request = match read_head(&mut head) {
            Ok(found) => found,
            Err(Stop::More) => return reading,
            Err(Stop::Bad(status)) => {
                reading.end = End::BadHead(status);
                return reading;
            }
        };
        rest = head;
        let mut sure = rest;
        let stop = read_body(&mut request, &mut rest, &mut sure).err();
        let upgrade = request.http11 && wants_upgrade(&request);
        request.whole = stop.is_none();
        reading.requests.push(request);
        reading.passed = bytes.len() - sure.len();
        match stop {
            Some(Stop::More) => return reading,
            Some(Stop::Bad(_)) => {
                reading.end = End::BadBody;
                return reading;
            }
            None if upgrade => {
                reading.end = End::Upgrade;
                return reading;
            }
            None => {}
        }
    }
}

/// Takes a line of at most `room` bytes, including its end.
fn line<'a>(rest: &mut &'a [u8], room: usize, too_long: u16) -> Found<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(rest.len()) + 1 > room {
        return Err(Stop::Bad(too_long));
    }
    let end = end.ok_or(Stop::More)?;
    let line = &rest[..end];
    *rest = &rest[end + 1..];
    match line.split_last() {
        Some((b'\r', line)) => Ok(line),
        _ => Err(BAD),
    }
}

fn token(text: &[u8]) -> bool {
    let specials = b"!#$%&'*+-.^_`|~";
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || specials.contains(byte))
}

fn headers(rest: &mut &[u8], mut room: usize, http11: bool) -> Found<Vec<(String, Vec<u8>)>> {
    let mut headers = Vec::new();
    loop {
        let line = line(rest, room, 431)?;
        room -= line.len() + 2;
        if line.is_empty() {
            return Ok(headers);
        }
        if headers.len() == MAX_HEADERS {
            return Err(Stop::Bad(431));
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(BAD)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if token(name) && name.len() > MAX_NAME {
            return Err(Stop::Bad(431));
        }
        if !token(name) || value.iter().any(|byte| (*byte < 32 && *byte != 9) || *byte == 127) {
            return Err(BAD);
        }
        headers.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.trim_ascii().to_vec()));
        if !http11 && headers.iter().any(|header| header.0 == "transfer-encoding") {
            return Err(BAD);
        }
        check_header(&headers, headers.len() - 1)?;
    }
}

fn check_header(headers: &[(String, Vec<u8>)], at: usize) -> Found<()> {
    let (name, value) = &headers[at];
    let count = |name: &str| headers.iter().filter(|header| header.0 == name).count();
    match name.as_str() {
        "host" => {
            let text = String::from_utf8(value.clone()).map_err(|_| BAD)?;
            let url = format!("http://{text}/").parse::<http::Uri>().map_err(|_| BAD)?;
            let host = url.host().ok_or(BAD)?;
            let name = host.strip_suffix('.').unwrap_or(host);
            let labels = name.split('.').collect::<Vec<_>>();
            let well = if let Some(inner) = host.strip_prefix('[') {
                inner.strip_suffix(']').is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
            } else if name.parse::<std::net::Ipv4Addr>().is_ok() {
                true
            } else {
                let last = labels[labels.len() - 1].to_ascii_lowercase();
                let number = last.bytes().all(|byte| byte.is_ascii_digit())
                    || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
                !number
                    && name.len() <= 253
                    && labels.iter().all(|label| {
                        (1..=63).contains(&label.len())
                            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
                            && !label.starts_with('-')
                            && !label.ends_with('-')
                    })
            };
            let port = text[host.len().min(text.len())..].to_string();
            let port_is_good = port.is_empty()
                || port
                    .strip_prefix(':')
                    .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok());
            if text.contains('@') || !well || !port_is_good || count("host") > 1 {
                return Err(BAD);
            }
        }
        "content-length" => {
            let text = String::from_utf8_lossy(value);
            let plain = text.parse::<u64>().is_ok_and(|number| number.to_string() == text && number < 1 << 63);
            if !plain || count("content-length") > 1 || count("transfer-encoding") > 0 {
                return Err(BAD);
            }
        }
        "transfer-encoding" => {
            if count("transfer-encoding") > 1 {
                return Err(BAD);
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Stop::Bad(501));
            }
            if count("content-length") > 0 {
                return Err(BAD);
            }
        }
        _ => {}
    }
    Ok(())
}

fn read_head(rest: &mut &[u8]) -> Found<Request> {
    let before = rest.len();
    match rest {
        [b'\r'] => return Err(Stop::More),
        [b'\r', b'\n', ..] => *rest = &rest[2..],
        _ => {}
    }
    let first = rest.first().ok_or(Stop::More)?;
    if !token(&[*first]) {
        return Err(BAD);
    }
    let line = line(rest, MAX_REQUEST_LINE + 2, 414)?;
    let parts = line.split(|byte| *byte == b' ').collect::<Vec<_>>();
    let [method, target, version] = parts[..] else {
        return Err(BAD);
    };
    let http11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(if token(method) { Stop::Bad(505) } else { BAD });
        }
        _ => return Err(BAD),
    };
    if !token(method) {
        return Err(BAD);
    }
    if method == b"CONNECT" {
        return Err(Stop::Bad(501));
    }
    let target = String::from_utf8(target.to_vec()).map_err(|_| BAD)?;
    let authority = check_target(method, &target)?;
    let headers = headers(rest, MAX_HEAD - (before - rest.len()), http11)?;
    let host = headers.iter().find(|header| header.0 == "host").map(|header| header.1.to_ascii_lowercase());
    if http11 && host.is_none() {
        return Err(BAD);
    }
    if let (Some(host), Some(authority)) = (host, authority)
        && host != authority.to_ascii_lowercase().into_bytes()
    {
        return Err(BAD);
    }
    let request =
        Request { method: String::from_utf8_lossy(method).into(), target, headers, http11, ..Request::default() };
    Ok(request)
}

fn check_target(method: &[u8], target: &str) -> Found<Option<String>> {
    if target == "*" {
        return if method == b"OPTIONS" { Ok(None) } else { Err(BAD) };
    }
    let lower = target.to_ascii_lowercase();
    let (authority, path) = if target.starts_with('/') {
        (None, target)
    } else {
        let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme)).ok_or(BAD)?;
        let rest = &target[scheme.len()..];
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        check_header(&[("host".into(), rest[..end].into())], 0)?;
        (Some(rest[..end].to_string()), &rest[end..])
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let uri = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/%[]|".contains(&byte);
    let escapes = path
        .split('%')
        .skip(1)
        .all(|after| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()));
    let well = path.bytes().all(uri) && query.bytes().all(|byte| uri(byte) || b"?{}\\^`".contains(&byte)) && escapes;
    if well { Ok(authority) } else { Err(BAD) }
}

impl Request {
    /// Returns the items of a header in lower case.
    fn items(&self, name: &str) -> Vec<String> {
        let mut items = Vec::new();
        for (_, value) in self.headers.iter().filter(|header| header.0 == name) {
            let text = String::from_utf8_lossy(value).to_ascii_lowercase();
            items.extend(text.split(',').map(|item| item.trim_matches([' ', '\t']).to_string()));
        }
        items
    }

    pub(in crate::strict) fn keeps_alive(&self) -> bool {
        // hyper ignores lines with bytes outside ASCII.
        let ascii = self.headers.iter().filter(|header| header.1.is_ascii()).cloned().collect();
        let items = Self { headers: ascii, ..Self::default() }.items("connection");
        let has = |item: &str| items.iter().any(|other| other == item);
        !has("close") && (self.http11 || has("keep-alive"))
    }
}

fn wants_upgrade(request: &Request) -> bool {
    let lines = request.headers.iter().filter(|header| header.0 == "upgrade");
    let protocols = request.items("upgrade");
    request.items("connection").contains(&"upgrade".to_string())
        && lines.count() == 1
        && protocols.iter().all(|protocol| {
            let own = protocol.starts_with("h2") || protocol.starts_with("http");
            !own && !protocol.is_empty()
        })
}

/// Reads a body. Bytes that are certain to pass are removed from `sure` as well.
fn read_body<'a>(request: &mut Request, rest: &mut &'a [u8], sure: &mut &'a [u8]) -> Found<()> {
    let header = |name: &str| request.headers.iter().find(|header| header.0 == name);
    if let Some((_, length)) = header("content-length") {
        let length = String::from_utf8_lossy(length).parse::<u64>().map_err(|_| BAD)?;
        let size = (rest.len() as u64).min(length) as usize;
        request.body = rest[..size].to_vec();
        *rest = &rest[size..];
        *sure = rest;
        return if (size as u64) < length { Err(Stop::More) } else { Ok(()) };
    }
    if header("transfer-encoding").is_none() {
        return Ok(());
    }
    let mut room = MAX_CHUNK_EXTRAS;
    loop {
        let line = line(rest, MAX_CHUNK_LINE + 2, 400)?;
        let text = line.iter().map(|byte| char::from(*byte)).collect::<String>();
        let digits = text.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(text.len());
        if digits > 15 {
            return Err(BAD);
        }
        let size = u64::from_str_radix(&text[..digits], 16).map_err(|_| BAD)?;
        if !extensions(&text[digits..]) {
            return Err(BAD);
        }
        room = room.checked_sub(line.len() - digits).ok_or(BAD)?;
        *sure = rest;
        if size == 0 {
            break;
        }
        let there = (rest.len() as u64).min(size) as usize;
        request.body.extend_from_slice(&rest[..there]);
        *rest = &rest[there..];
        *sure = rest;
        match rest {
            _ if (there as u64) < size => return Err(Stop::More),
            [] | [b'\r'] => return Err(Stop::More),
            [b'\r', b'\n', ..] => *rest = &rest[2..],
            _ => return Err(BAD),
        }
        *sure = rest;
    }
    let mut room = MAX_CHUNK_EXTRAS;
    loop {
        let mut one = *rest;
        let text = line(&mut one, room + 2, 400)?;
        if text.is_empty() {
            *rest = one;
            *sure = rest;
            return Ok(());
        }
        room -= text.len();
        if request.trailers.len() == MAX_TRAILERS {
            return Err(BAD);
        }
        // A single trailer followed by an empty line.
        let alone = [text, b"\r\n\r\n"].concat();
        let mut fields = headers(&mut &alone[..], MAX_HEAD, true).map_err(|_| BAD)?;
        let forbidden = "authorization cache-control connection content-encoding content-length content-range \
            content-type cookie expect host keep-alive max-forwards proxy-authorization proxy-connection range te trailer \
            transfer-encoding upgrade http2-settings";
        if fields.iter().any(|field| forbidden.split(' ').any(|name| name == field.0)) {
            return Err(BAD);
        }
        request.trailers.append(&mut fields);
        *rest = one;
        *sure = rest;
    }
}

fn extensions(text: &str) -> bool {
    let Some(text) = text.strip_prefix(';') else {
        return text.is_empty();
    };
    // The extension ends at the next unquoted semicolon.
    let (mut quoted, mut escaped) = (false, false);
    let end = text.char_indices().find_map(|(at, letter)| {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => return Some(at),
            _ => {}
        }
        None
    });
    let (one, rest) = text.split_at(end.unwrap_or(text.len()));
    let (name, value) = one.split_once('=').map_or((one, None), |(name, value)| (name, Some(value)));
    let value_is_good = value.is_none_or(|value| {
        let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        token(value.as_bytes())
            || inner.is_some_and(|inner| {
                let mut letters = inner.chars();
                loop {
                    match letters.next() {
                        None => return true,
                        Some('"') => return false,
                        Some('\\') => match letters.next() {
                            None => return false,
                            Some(letter) if letter.is_ascii_control() && letter != '\t' => {
                                return false;
                            }
                            Some(_) => {}
                        },
                        Some(letter) if letter.is_ascii_control() && letter != '\t' => {
                            return false;
                        }
                        Some(_) => {}
                    }
                }
            })
    });
    token(name.as_bytes()) && value_is_good && extensions(rest)
}

//! Reads the lines of one request's head as they arrive.

use http::StatusCode;

use super::limits::{MAX_HEAD, MAX_HEADERS, MAX_REQUEST_LINE};
use super::{Refusal, syntax};

/// The state of an incomplete head.
///
/// It stores positions and no bytes: each call of [`Head::read`] gets the head from its first byte.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The start of the first unread line.
    line: usize,
    /// The position up to which that line has been searched for its end.
    searched: usize,
    /// The version; `None` until the request line has been read.
    version: Option<Version>,
    headers: usize,
    /// The position of the authority in an absolute target.
    authority: Option<Span>,
    host: Option<Span>,
    length: Option<u64>,
    chunked: bool,
    connection_upgrade: bool,
    /// False if a header `Upgrade` occurs more than once, or names a protocol that is not let through.
    upgrade: Option<bool>,
}

type Span = std::ops::Range<usize>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) size: usize,
    pub(super) body: Body,
    /// The client asks for another protocol after this request.
    pub(super) upgrade: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Sized(u64),
    Chunked,
}

impl Head {
    /// Reads the lines that are complete, and returns the head once it is.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<Read>, Refusal> {
        if self.version.is_none() && !self.skip_empty_line(bytes)? {
            return Ok(None);
        }
        loop {
            let Some(found) = memchr::memchr(b'\n', &bytes[self.searched..]) else {
                self.searched = bytes.len();
                // The line's end takes at least one more byte.
                self.bound(bytes.len() + 1)?;
                return Ok(None);
            };
            let end = self.searched + found;
            self.bound(end + 1)?;
            if end == self.line || bytes[end - 1] != b'\r' {
                return Err(Refusal::bad("a line of the head ends with a bare line feed; lines end with CR LF"));
            }
            let line = self.line..end - 1;
            (self.line, self.searched) = (end + 1, end + 1);
            match self.version {
                None => self.request_line(bytes, line)?,
                Some(version) if line.is_empty() => return self.end(bytes, version).map(Some),
                Some(version) => self.header(bytes, line, version)?,
            }
        }
    }

    pub(super) fn has_begun(&self, bytes: &[u8]) -> bool {
        self.version.is_some() || bytes.len() > self.line
    }

    /// Skips one empty line before the request line, which old clients send after a body (RFC 9112 section 2.2).
    /// Returns whether the request line has begun. Refuses a first byte that cannot begin a method at once: it may
    /// belong to another protocol, which has no lines.
    fn skip_empty_line(&mut self, bytes: &[u8]) -> Result<bool, Refusal> {
        if self.line == 0 && bytes.first() == Some(&b'\r') {
            match bytes.get(1) {
                None => return Ok(false),
                Some(b'\n') => (self.line, self.searched) = (2, 2),
                Some(_) => return Err(BARE_CR),
            }
        }
        match bytes.get(self.line) {
            None => Ok(false),
            Some(byte) if syntax::is_tchar(*byte) => Ok(true),
            Some(_) => Err(Refusal::bad("the request does not begin with a method; this port speaks HTTP/1.1")),
        }
    }

    /// Refuses a head that exceeds the limits at `end`, the end of the current line so far.
    fn bound(&self, end: usize) -> Result<(), Refusal> {
        // The limit excludes the two bytes that end the line.
        if self.version.is_none() && end - self.line > MAX_REQUEST_LINE + 2 {
            return Err(Refusal::new(StatusCode::URI_TOO_LONG, "the request line has more than 32 KiB"));
        }
        if end > MAX_HEAD {
            return Err(Refusal::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request's head has more than 128 KiB",
            ));
        }
        Ok(())
    }

    fn request_line(&mut self, bytes: &[u8], line: Span) -> Result<(), Refusal> {
        let text = &bytes[line.clone()];
        let mut parts = text.splitn(3, |byte| *byte == b' ');
        let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Refusal::bad("the request line is not METHOD TARGET HTTP/1.1, with one space between each"));
        };
        if !syntax::is_token(method) {
            return Err(Refusal::bad("the method has a character that is not allowed in one"));
        }
        self.version = Some(match version {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                return Err(Refusal::new(
                    StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                    "the version is neither HTTP/1.1 nor HTTP/1.0",
                ));
            }
            _ => {
                return Err(Refusal::bad("the request line does not end with one space and HTTP/1.1"));
            }
        });
        if method == b"CONNECT" {
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "CONNECT is not served here"));
        }
        match target {
            [b'/', ..] if syntax::is_path_and_query(target) => Ok(()),
            b"*" if method == b"OPTIONS" => Ok(()),
            [b'/', ..] => Err(BAD_TARGET),
            _ => {
                let start = line.start + method.len() + 1;
                self.authority = Some(absolute(target, start)?);
                Ok(())
            }
        }
    }

    fn header(&mut self, bytes: &[u8], line: Span, version: Version) -> Result<(), Refusal> {
        self.headers += 1;
        if self.headers > MAX_HEADERS {
            return Err(Refusal::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request has more than 256 headers",
            ));
        }
        let (name, value) = syntax::field(&bytes[line.clone()])?;
        // Comparing lengths first skips most other names without looking at their letters.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if !syntax::is_authority(value) {
                    return Err(Refusal::bad("the header Host is neither HOST nor HOST:PORT"));
                }
                let end = line.end - blanks(&bytes[line]);
                let span = end - value.len()..end;
                set_once(&mut self.host, span, "there is more than one header Host")?;
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.upgrade = Some(self.upgrade.is_none() && names_other_protocols(value));
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.connection_upgrade |= syntax::lists(value, b"upgrade");
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let twice = "there is more than one header Content-Length";
                set_once(&mut self.length, content_length(value)?, twice)?;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if version == Version::Http10 {
                    return Err(Refusal::bad("HTTP/1.0 has no Transfer-Encoding"));
                }
                if std::mem::replace(&mut self.chunked, true) {
                    return Err(Refusal::bad("there is more than one header Transfer-Encoding"));
                }
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Refusal::new(
                        StatusCode::NOT_IMPLEMENTED,
                        "the only Transfer-Encoding that is read here is chunked",
                    ));
                }
            }
            _ => {}
        }
        if self.chunked && self.length.is_some() {
            return Err(Refusal::bad("there is both a Content-Length and a Transfer-Encoding; send one of them"));
        }
        Ok(())
    }

    fn end(&self, bytes: &[u8], version: Version) -> Result<Read, Refusal> {
        match (&self.host, &self.authority) {
            (None, _) if version == Version::Http11 => {
                return Err(Refusal::bad("HTTP/1.1 needs the header Host"));
            }
            (Some(host), Some(authority)) if !bytes[host.clone()].eq_ignore_ascii_case(&bytes[authority.clone()]) => {
                return Err(Refusal::bad("the header Host is not the authority of the request's target"));
            }
            _ => {}
        }
        Ok(Read {
            size: self.line,
            body: match self.chunked {
                true => Body::Chunked,
                false => Body::Sized(self.length.unwrap_or(0)),
            },
            upgrade: version == Version::Http11 && self.connection_upgrade && self.upgrade == Some(true),
        })
    }
}

pub(super) const BARE_CR: Refusal = Refusal::bad("there is a bare carriage return; lines end with CR LF");

const BAD_TARGET: Refusal = Refusal::bad(
    "the request's target is neither a path, nor an http or https URL, of the characters of a URI, without a fragment",
);

/// Checks a target in absolute form, which begins at `start` of the head. Returns the position of its authority.
fn absolute(target: &[u8], start: usize) -> Result<Span, Refusal> {
    let rest = |scheme: &[u8]| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let rest = rest(b"http://").or_else(|| rest(b"https://")).ok_or(BAD_TARGET)?;
    let size = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(size);
    if !syntax::is_authority(authority) || !syntax::is_path_and_query(path) {
        return Err(BAD_TARGET);
    }
    let start = start + target.len() - rest.len();
    Ok(start..start + size)
}

fn set_once<T>(slot: &mut Option<T>, value: T, twice: &'static str) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::bad(twice)),
    }
}

/// Parses a length in the form that all parsers read alike: decimal, without a sign, blanks, leading zeros or a list,
/// below 2^63.
fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    let digits = value.iter().all(u8::is_ascii_digit);
    let plain = digits && (value.len() == 1 || !value.starts_with(b"0"));
    std::str::from_utf8(value)
        .ok()
        .filter(|_| plain)
        .and_then(|text| text.parse::<i64>().ok())
        .map(i64::unsigned_abs)
        .ok_or(Refusal::bad("the header Content-Length is not one decimal number"))
}

/// Returns whether `Upgrade` names protocols, none of them HTTP's own. In another version of HTTP the server would
/// accept requests that are not checked here. The server picks one of the named protocols, so a single one of HTTP's is
/// enough to refuse.
fn names_other_protocols(value: &[u8]) -> bool {
    let begins = |item: &[u8], with: &[u8]| {
        let begin = item.get(..with.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(with))
    };
    let mut items = value.split(|byte| *byte == b',').map(syntax::trim);
    items.all(|item| !item.is_empty() && !begins(item, b"h2") && !begins(item, b"http"))
}

fn blanks(line: &[u8]) -> usize {
    let blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
    line.iter().rev().take_while(blank).count()
}

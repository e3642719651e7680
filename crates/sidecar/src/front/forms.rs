//! Checks clients' forms, whose fields could steer transfers like members of a JSON object.
//!
//! A multipart form may contain hours of audio, so it is checked while it is forwarded. Nothing in it is changed, since
//! its length was announced. A form in which servers' parsers may see other fields than ours is refused.

use std::borrow::Cow;

use memchr::memmem;

use super::params::{is_container, is_param, steers};

/// The most bytes of a part's headers, and of a field that is read.
const MOST_HEAD: usize = 8 << 10;
const MOST_FIELD: usize = 64 << 10;

/// The reason why a form is refused; it completes "The form …".
pub(super) type Fault = Cow<'static, str>;

#[derive(Debug)]
pub(super) struct Multipart {
    /// The text that begins each part: two hyphens and the boundary.
    delimiter: Vec<u8>,
    state: State,
    /// Bytes that have arrived and are not checked yet.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Only line ends have arrived.
    Begin,
    Delimited,
    Head,
    /// Inside the content of a part, including the line end before it.
    Content {
        /// The name and content of a field that may contain parameters.
        kept: Option<(String, Vec<u8>)>,
        /// No byte of the content has been checked yet.
        fresh: bool,
    },
    Over,
}

impl Multipart {
    pub(super) fn new(content_type: &[u8]) -> Result<Self, Fault> {
        const CHARSETS: [&str; 5] = ["utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1"];
        let readable = |charset: &[u8]| CHARSETS.iter().any(|known| charset.eq_ignore_ascii_case(known.as_bytes()));
        if parameter(content_type, b"charset")?.is_some_and(|charset| !readable(charset)) {
            return Err("is in a charset that is not read; send it in UTF-8".into());
        }
        match parameter(content_type, b"boundary")? {
            Some(boundary @ [_, ..]) if boundary.len() <= 256 => {
                Ok(Self { delimiter: [b"--", boundary].concat(), state: State::Begin, held: Vec::new() })
            }
            _ => Err("has no boundary in its Content-Type".into()),
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.held.extend_from_slice(bytes);
        while self.step()? {}
        Ok(())
    }

    pub(super) fn finish(&self) -> Result<(), Fault> {
        match self.state {
            State::Over => Ok(()),
            State::Begin if self.held.is_empty() => Ok(()),
            _ => Err("ends before its last delimiter".into()),
        }
    }

    /// Advances by one step. Returns false if more bytes are needed.
    fn step(&mut self) -> Result<bool, Fault> {
        let Self { delimiter, state, held } = self;
        match state {
            State::Begin => {
                let line_ends = held.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
                held.drain(..line_ends.count());
                let available = held.len().min(delimiter.len());
                if held[..available] != delimiter[..available] {
                    return Err("does not begin with its boundary".into());
                }
                if available < delimiter.len() {
                    return Ok(false);
                }
                held.drain(..available);
                *state = State::Delimited;
            }
            State::Delimited => {
                *state = match held.get(..2) {
                    None => return Ok(false),
                    Some(b"\r\n") => State::Head,
                    Some(b"--") => State::Over,
                    Some(_) => return Err("has something behind a boundary".into()),
                };
                held.drain(..2);
            }
            State::Head => {
                let end = memmem::find(held, b"\r\n\r\n");
                if end.unwrap_or(held.len().saturating_sub(3)) > MOST_HEAD {
                    let fault = format!("has a part with more than {MOST_HEAD} B of headers");
                    return Err(fault.into());
                }
                let Some(end) = end else {
                    return Ok(false);
                };
                let name = field(&held[..end])?;
                let name = String::from_utf8_lossy(name).into_owned();
                let kept = holds_params(&name)?.then(|| (name, Vec::new()));
                held.drain(..end + 2);
                *state = State::Content { kept, fresh: true };
            }
            State::Content { kept, fresh } => {
                let line_begins = |at: &usize| matches!(held.get(at.wrapping_sub(1)), Some(b'\r' | b'\n'));
                // A match at the very beginning was already rejected, since it is within a line.
                let found = memmem::find_iter(held, delimiter).find(line_begins);
                // The last bytes may be the beginning of a delimiter, together with the line end before it.
                let until = found.unwrap_or((held.len() + 1).saturating_sub(delimiter.len()));
                let line_end = until.saturating_sub(2);
                if found.is_some() && (held[line_end..until] != *b"\r\n" || *fresh && line_end == 0) {
                    return Err("has a boundary that does not stand in a line of its own".into());
                }
                *fresh &= line_end == 0;
                if let Some((name, content)) = kept {
                    content.extend_from_slice(&held[..line_end]);
                    if content.len() > MOST_FIELD {
                        return Err(format!("has more than {MOST_FIELD} B in `{name}`").into());
                    }
                }
                if found.is_none() {
                    held.drain(..line_end);
                    return Ok(false);
                }
                if let Some((name, content)) = kept.take() {
                    check(&name, content.get(2..).unwrap_or_default())?;
                }
                held.drain(..until + delimiter.len());
                *state = State::Delimited;
            }
            State::Over => {
                let nothing = |byte: &u8| byte.is_ascii_whitespace();
                if !held.iter().all(nothing) {
                    return Err("goes on behind its last delimiter".into());
                }
                held.clear();
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Checks a form in one line (`application/x-www-form-urlencoded`).
pub(super) fn urlencoded(text: &[u8]) -> Result<(), Fault> {
    // Some parsers split fields also, or only, at semicolons.
    for ends in [&b"&"[..], b";", b"&;"] {
        for field in text.split(|byte| ends.contains(byte)) {
            let equals = memchr::memchr(b'=', field).unwrap_or(field.len());
            let name = unescaped(&field[..equals]);
            let name = String::from_utf8_lossy(&name);
            if holds_params(&name)? {
                check(&name, &unescaped(field.get(equals + 1..).unwrap_or_default()))?;
            }
        }
    }
    Ok(())
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        out.push(match (byte, digit(at), digit(at + 1)) {
            (b'+', ..) => b' ',
            (b'%', Some(high), Some(low)) => {
                at += 2;
                // Two hexadecimal digits always fit a byte.
                u8::try_from(high * 16 + low).unwrap_or_default()
            }
            _ => *byte,
        });
    }
    out
}

/// Returns whether a field's content has to be checked. Refuses a field that is a parameter itself, also in the form
/// `a[kv_transfer_params]`.
fn holds_params(name: &str) -> Result<bool, Fault> {
    if name.split(['[', ']', '.']).any(is_param) {
        return Err(format!("has a field `{name}`, which is not a client's to set").into());
    }
    Ok(is_container(name))
}

fn check(name: &str, content: &[u8]) -> Result<(), Fault> {
    match steers(name, content) {
        true => Err(format!("has parameters in `{name}` that are not a client's to set").into()),
        false => Ok(()),
    }
}

fn field(head: &[u8]) -> Result<&[u8], Fault> {
    let mut names = Vec::new();
    for line in head.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = memchr::memchr(b':', line).unwrap_or_default();
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        // Parsers disagree about lines that are continued or end in an unusual way.
        if colon == 0 || !line[..colon].iter().all(token) || line.contains(&b'\r') {
            return Err("has a part with malformed headers".into());
        }
        if line[..colon].eq_ignore_ascii_case(b"content-disposition") {
            names.push(parameter(&line[colon + 1..], b"name")?);
        }
    }
    match names[..] {
        [Some(name)] => Ok(name),
        _ => Err("has a part without a name, or with several".into()),
    }
}

/// Returns a parameter of a header. It has to occur once and without escapes. Parsers disagree about quotes, and so
/// about the start of parameters, but each parameter begins after some semicolon; so all semicolons are tried.
fn parameter<'a>(header: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Fault> {
    let fault = || {
        let name = String::from_utf8_lossy(name);
        Err(format!("has a header whose `{name}` is not read alike by all").into())
    };
    let mut found = None;
    for at in memchr::memchr_iter(b';', header) {
        let rest = header[at + 1..].trim_ascii_start();
        let Some((key, rest)) = rest.split_at_checked(name.len()) else {
            continue;
        };
        let value = match rest.trim_ascii_start() {
            _ if !key.eq_ignore_ascii_case(name) => continue,
            [b'=', value @ ..] => value.trim_ascii_start(),
            // A continued parameter, or one in another charset (RFC 2231).
            [b'*', ..] => return fault(),
            _ => continue,
        };
        let (value, rest) = match value {
            [b'"', value @ ..] => match memchr::memchr(b'"', value) {
                Some(end) => (&value[..end], &value[end + 1..]),
                None => return fault(),
            },
            _ => value.split_at(memchr::memchr(b';', value).unwrap_or(value.len())),
        };
        let is_alone = matches!(rest.trim_ascii_start(), [] | [b';', ..]);
        let is_plain = !value.iter().any(|byte| matches!(byte, b'\\' | b'"' | b';'));
        if !is_alone || !is_plain || found.replace(value.trim_ascii_end()).is_some() {
            return fault();
        }
    }
    Ok(found)
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

//! Forms of clients, in which fields might steer transfers as members of a JSON object do.
//!
//! A multipart form may carry hours of audio, so it is checked as it passes; nothing of it is changed, for its length was
//! announced before. What servers' parsers may take for other fields than ours do is refused.

use std::borrow::Cow;

use memchr::memmem;

use super::incoming::{is_container, is_param, steers};

/// The most bytes of the headers of a part; of a field that is read.
const MOST_HEAD: usize = 8 << 10;
const MOST_FIELD: usize = 64 << 10;

/// Why a form is refused: the rest of "The form …".
pub(super) type Fault = Cow<'static, str>;

/// A multipart form, checked piece by piece.
#[derive(Debug)]
pub(super) struct Multipart {
    /// What begins each part: two hyphens and the boundary.
    delimiter: Vec<u8>,
    state: State,
    /// What has come and is not checked yet.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Nothing but ends of lines has come.
    Begin,
    /// A delimiter has come.
    Delimited,
    /// The headers of a part.
    Head,
    /// Its content, with the end of the line before it.
    Content {
        /// Name and content of a field that may hold parameters.
        kept: Option<(String, Vec<u8>)>,
        /// Nothing of it was checked yet.
        fresh: bool,
    },
    Over,
}

impl Multipart {
    /// Prepares for a body of this `Content-Type`.
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

    /// Checks the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.held.extend_from_slice(bytes);
        while self.step()? {}
        Ok(())
    }

    /// Checks that nothing is missing.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        match self.state {
            State::Over => Ok(()),
            State::Begin if self.held.is_empty() => Ok(()),
            _ => Err("ends before its last delimiter".into()),
        }
    }

    /// Goes on by one step, where enough has come for it.
    fn step(&mut self) -> Result<bool, Fault> {
        let Self { delimiter, state, held } = self;
        match state {
            State::Begin => {
                let line_ends = held.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
                held.drain(..line_ends.count());
                let come = held.len().min(delimiter.len());
                if held[..come] != delimiter[..come] {
                    return Err("does not begin with its boundary".into());
                }
                if come < delimiter.len() {
                    return Ok(false);
                }
                held.drain(..come);
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
                // What is found at the very beginning was found before, in the midst of a line.
                let found = memmem::find_iter(held, delimiter).find(line_begins);
                // Of what has come, so much may be the beginning of a delimiter, with the end of the line before it.
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

/// Checks a form whose fields are in its line (`application/x-www-form-urlencoded`).
pub(super) fn urlencoded(text: &[u8]) -> Result<(), Fault> {
    // Some parsers part fields at semicolons, too, or only there.
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
                // Two digits are a byte.
                u8::try_from(high * 16 + low).unwrap_or_default()
            }
            _ => *byte,
        });
    }
    out
}

/// Whether a field's content has to be looked at. A parameter itself, also as `a[kv_transfer_params]`, is refused.
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

/// The name of a part's field.
fn field(head: &[u8]) -> Result<&[u8], Fault> {
    let mut names = Vec::new();
    for line in head.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = memchr::memchr(b':', line).unwrap_or_default();
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        // A line that goes on, or ends otherwise than lines do, others may read otherwise.
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

/// A parameter of a header, which has to be given once and in plain writing: parsers disagree about quotation marks, and so about
/// where parameters begin, but each begins after some semicolon.
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
            // Continued, or in another charset (RFC 2231).
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

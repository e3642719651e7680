//! A chunked body: the lines between its chunks, and its trailers (RFC 9112 section 7.1).

use super::head::BARE_CR;
use super::limits::{MAX_CHUNK_EXTRAS, MAX_CHUNK_LINE, MAX_TRAILERS};
use super::{Refusal, syntax};

#[derive(Debug, Default)]
pub(super) struct Chunks {
    expected: Expected,
    /// The number of bytes of all extensions so far.
    extensions: usize,
    trailers: usize,
    trailer_bytes: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum Expected {
    #[default]
    Size,
    Data(u64),
    /// The line end after a chunk's data.
    LineEnd,
    Trailer,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This many bytes belong to the body, which continues.
    Passed(usize),
    /// This many bytes end the body.
    Last(usize),
    More,
}

impl Chunks {
    /// Reads the next line of the body, or the available part of a chunk's data.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        match self.expected {
            Expected::Data(left) => {
                let size = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                self.expected = match left - size as u64 {
                    0 => Expected::LineEnd,
                    left => Expected::Data(left),
                };
                Ok(if size == 0 { Step::More } else { Step::Passed(size) })
            }
            Expected::LineEnd => match bytes {
                [] | [b'\r'] => Ok(Step::More),
                [b'\r', b'\n', ..] => {
                    self.expected = Expected::Size;
                    Ok(Step::Passed(2))
                }
                _ => Err(Refusal::bad("a chunk's data is not followed by CR LF, so its size is wrong")),
            },
            Expected::Size => {
                let Some(line) = line(bytes, MAX_CHUNK_LINE, LONG_CHUNK_LINE)? else {
                    return Ok(Step::More);
                };
                let (size, extension) = chunk_size(line)?;
                self.extensions += extension;
                // The limit is below hyper's own, so that the client learns the reason.
                if self.extensions > MAX_CHUNK_EXTRAS {
                    return Err(Refusal::bad("the body's chunk extensions have more than 8 KiB"));
                }
                self.expected = match size {
                    0 => Expected::Trailer,
                    size => Expected::Data(size),
                };
                Ok(Step::Passed(line.len() + 2))
            }
            Expected::Trailer => {
                let left = MAX_CHUNK_EXTRAS - self.trailer_bytes;
                let Some(line) = line(bytes, left, LONG_TRAILERS)? else {
                    return Ok(Step::More);
                };
                if line.is_empty() {
                    return Ok(Step::Last(2));
                }
                self.trailer_bytes += line.len();
                self.trailers += 1;
                if self.trailers > MAX_TRAILERS {
                    return Err(LONG_TRAILERS);
                }
                let (name, _) = syntax::field(line)?;
                if FORBIDDEN.iter().any(|other| name.eq_ignore_ascii_case(other)) {
                    return Err(Refusal::bad("a trailer has the name of a header that says how a request is read"));
                }
                Ok(Step::Passed(line.len() + 2))
            }
        }
    }
}

/// Fields that are meaningless or dangerous after a body: framing, routing, authentication and content (RFC 9110
/// section 6.5.1).
const FORBIDDEN: [&[u8]; 20] = [
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"host",
    b"keep-alive",
    b"max-forwards",
    b"proxy-authorization",
    b"proxy-connection",
    b"range",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"http2-settings",
];

const LONG_CHUNK_LINE: Refusal = Refusal::bad("the line before a chunk has more than 256 bytes");
const LONG_TRAILERS: Refusal = Refusal::bad("the body has more than 64 trailers or 8 KiB of them");

/// Returns the first line without its end, or `None` if it is incomplete.
fn line(bytes: &[u8], limit: usize, too_long: Refusal) -> Result<Option<&[u8]>, Refusal> {
    // The limit excludes the two bytes that end the line.
    let window = &bytes[..bytes.len().min(limit + 2)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return match bytes.len() >= limit + 2 {
            true => Err(too_long),
            false => Ok(None),
        };
    };
    match window[..end].strip_suffix(b"\r") {
        Some(line) => Ok(Some(line)),
        None => Err(Refusal::bad("a line of the body's framing ends with a bare line feed; lines end with CR LF")),
    }
}

/// Returns the size of a chunk, and the number of extension bytes in the line.
fn chunk_size(line: &[u8]) -> Result<(u64, usize), Refusal> {
    if line.contains(&b'\r') {
        return Err(BARE_CR);
    }
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extensions) = line.split_at(digits);
    // Fifteen digits keep sizes below 2^60, so that no reader's sum of sizes overflows soon.
    let size = std::str::from_utf8(size)
        .ok()
        .filter(|digits| digits.len() <= 15)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or(Refusal::bad("a chunk's size is not a hexadecimal number of 1 to 15 digits"))?;
    if !extensions_are_well_formed(extensions) {
        return Err(Refusal::bad("what follows a chunk's size is not of the form ;NAME=VALUE"));
    }
    Ok((size, extensions.len()))
}

fn extensions_are_well_formed(mut rest: &[u8]) -> bool {
    while let [b';', after @ ..] = rest {
        let Some(after) = skip_token(after) else {
            return false;
        };
        let after = match after {
            [b'=', b'"', quoted @ ..] => skip_quoted(quoted),
            [b'=', token @ ..] => skip_token(token),
            _ => Some(after),
        };
        match after {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

fn skip_token(text: &[u8]) -> Option<&[u8]> {
    let size = text.iter().position(|byte| !syntax::is_tchar(*byte)).unwrap_or(text.len());
    (size > 0).then(|| &text[size..])
}

/// Skips a quoted text up to and including its closing quote.
fn skip_quoted(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] if syntax::is_value(&[*byte]) => text = rest,
            _ => return None,
        }
    }
}

//! Rewrites `cached_tokens` in a decode server's answer. Only the prefill server knows how much of the prompt was
//! cached; to the decode server the whole prompt came from elsewhere.
//!
//! Bytes are passed on as soon as possible: server-sent events line by line, a JSON body as a whole. Only the number
//! changes; the order of keys, the text of numbers and white space stay.

mod encoding;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG};

pub(crate) use self::encoding::{Decoder, Undecodable};
use crate::json::Object;

/// The number of cached prompt tokens, in the prefill server's spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedTokens(Box<str>);

impl CachedTokens {
    /// Reads the number from a prefill server's answer; 0 if the answer has none.
    pub(crate) fn of(answer: &Object) -> Self {
        let number = answer.object("usage").and_then(|usage| {
            let details = usage.object(Form::of(&usage).details())?;
            let number = details.get("cached_tokens")?;
            number.starts_with(|first: char| first == '-' || first.is_ascii_digit()).then(|| number.into())
        });
        Self(number.unwrap_or_else(|| "0".into()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn count(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

/// Removes digests of the body from headers or trailers, since the body is rewritten.
pub(crate) fn remove_digests(headers: &mut HeaderMap) {
    headers.remove(ETAG);
    for name in ["content-md5", "digest", "repr-digest", "content-digest"] {
        headers.remove(name);
    }
}

/// The API whose names for token counts an answer uses.
#[derive(Clone, Copy)]
enum Form {
    /// Chat completions and completions: `prompt_tokens`.
    Completions,
    /// Responses: `input_tokens`.
    Responses,
}

impl Form {
    fn of(usage: &Object) -> Self {
        let has = |key| usage.get(key).is_some();
        if has("input_tokens") && !has("prompt_tokens") && !has("prompt_tokens_details") {
            Self::Responses
        } else {
            Self::Completions
        }
    }

    const fn details(self) -> &'static str {
        match self {
            Self::Completions => "prompt_tokens_details",
            Self::Responses => "input_tokens_details",
        }
    }
}

pub(crate) struct Rewriter {
    cached: CachedTokens,
    decoder: Option<Decoder>,
    body: Body,
    limit: usize,
}

enum Body {
    /// The body is empty so far, or only white space.
    Unknown(BytesMut),
    /// A JSON body, buffered until it is complete.
    Json(BytesMut),
    /// A body of lines; the last line is buffered until it is complete.
    Lines(BytesMut),
    Opaque,
}

impl Rewriter {
    /// Creates a rewriter for an answer and removes the headers that the rewritten body would make untrue. At most
    /// about `limit` bytes are buffered; a longer body is passed on unchanged.
    pub(crate) fn new(cached: CachedTokens, headers: &mut HeaderMap, limit: usize) -> Self {
        let mut body = Body::Unknown(BytesMut::new());
        let decoder = match headers.get(CONTENT_ENCODING).map(Decoder::new) {
            None => None,
            Some(Some(decoder)) => {
                headers.remove(CONTENT_ENCODING);
                Some(decoder)
            }
            Some(None) => {
                body = Body::Opaque;
                None
            }
        };
        if matches!(body, Body::Unknown(_)) {
            headers.remove(CONTENT_LENGTH);
            remove_digests(headers);
            let of_events = |text: &str| text.trim_start().to_ascii_lowercase().starts_with("text/event-stream");
            if headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(of_events) {
                body = Body::Lines(BytesMut::new());
            }
        }
        Self { cached, decoder, body, limit }
    }

    /// Processes the next bytes of the answer. Returns those that can be sent to the client now.
    pub(crate) fn feed(&mut self, bytes: Bytes) -> Result<Bytes, Undecodable> {
        let bytes = match &mut self.decoder {
            Some(decoder) => decoder.feed(&bytes)?,
            None => bytes,
        };
        Ok(self.decoded(bytes))
    }

    /// Returns the buffered rest at the end of the answer. Compressed data that ends early is an error.
    pub(crate) fn finish(&mut self) -> Result<Bytes, Undecodable> {
        let last = match &mut self.decoder {
            Some(decoder) => decoder.finish()?,
            None => Bytes::new(),
        };
        let mut out = BytesMut::from(self.decoded(last));
        match std::mem::replace(&mut self.body, Body::Opaque) {
            Body::Unknown(held) => out.extend_from_slice(&held),
            Body::Json(held) => out.extend_from_slice(&rewrite(held.freeze(), &self.cached)),
            Body::Lines(held) => self.line(&held.freeze(), &mut out),
            Body::Opaque => {}
        }
        Ok(out.freeze())
    }

    fn decoded(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.body {
            Body::Opaque => bytes,
            Body::Unknown(held) => {
                // Some servers label every answer as JSON, even events, so the first byte decides.
                let Some(first) = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) else {
                    held.extend_from_slice(&bytes);
                    return self.bounded();
                };
                let mut whole = std::mem::take(held);
                self.body = if *first == b'{' { Body::Json(BytesMut::new()) } else { Body::Lines(BytesMut::new()) };
                if whole.is_empty() {
                    return self.decoded(bytes);
                }
                whole.extend_from_slice(&bytes);
                self.decoded(whole.freeze())
            }
            Body::Json(held) => {
                held.extend_from_slice(&bytes);
                self.bounded()
            }
            Body::Lines(_) => self.lines(bytes),
        }
    }

    /// Returns the buffered bytes and stops rewriting if the body exceeds the limit.
    fn bounded(&mut self) -> Bytes {
        match &mut self.body {
            Body::Unknown(held) | Body::Json(held) | Body::Lines(held) if held.len() > self.limit => {
                let held = std::mem::take(held);
                self.body = Body::Opaque;
                held.freeze()
            }
            _ => Bytes::new(),
        }
    }

    fn lines(&mut self, bytes: Bytes) -> Bytes {
        let Body::Lines(held) = &mut self.body else {
            return bytes;
        };
        let Some(last) = memchr::memrchr(b'\n', &bytes) else {
            held.extend_from_slice(&bytes);
            return self.bounded();
        };
        let (mut whole, rest) = (bytes.slice(..=last), bytes.slice(last + 1..));
        if !held.is_empty() {
            held.extend_from_slice(&whole);
            whole = std::mem::take(held).freeze();
        }
        held.extend_from_slice(&rest);
        // Most events are deltas without a count, which pass without a copy.
        if !may_count(&whole) {
            return whole;
        }
        let mut out = BytesMut::with_capacity(whole.len() + 64);
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', &whole) {
            self.line(&whole.slice(from..=end), &mut out);
            from = end + 1;
        }
        out.freeze()
    }

    fn line(&self, line: &Bytes, out: &mut BytesMut) {
        let text = line.len() - line.iter().rev().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let Some(data) = line[..text].strip_prefix(b"data:") else {
            return out.extend_from_slice(line);
        };
        let from = text - data.len();
        out.extend_from_slice(&line[..from]);
        out.extend_from_slice(&rewrite(line.slice(from..text), &self.cached));
        out.extend_from_slice(&line[text..]);
    }
}

/// Returns whether a text may contain a member named `usage`, perhaps with escapes.
fn may_count(text: &[u8]) -> bool {
    memchr::memmem::find(text, b"usage").is_some() || memchr::memmem::find(text, b"\\u").is_some()
}

/// Sets the number of cached tokens in a text that is a JSON object with a `usage` object. Returns any other text
/// unchanged.
fn rewrite(text: Bytes, cached: &CachedTokens) -> Bytes {
    if !may_count(&text) {
        return text;
    }
    let Ok(object) = Object::parse(text.clone()) else {
        return text;
    };
    if let Some(usage) = object.object("usage") {
        return set(&object, "usage", &with_cached(&usage, cached));
    }
    // Events of the Responses API contain the whole response.
    let Some(response) = object.object("response") else {
        return text;
    };
    let Some(usage) = response.object("usage") else {
        return text;
    };
    let response = set(&response, "usage", &with_cached(&usage, cached));
    set(&object, "response", &response)
}

fn with_cached(usage: &Object, CachedTokens(cached): &CachedTokens) -> Bytes {
    let key = Form::of(usage).details();
    let details = match usage.object(key) {
        Some(details) if details.get("cached_tokens") == Some(cached) => {
            return usage.text().clone();
        }
        Some(details) => details.edit().set("cached_tokens", &**cached).finish(),
        None => format!("{{\"cached_tokens\":{cached}}}").into(),
    };
    set(usage, key, &details)
}

fn set(object: &Object, key: &str, value: &Bytes) -> Bytes {
    // The value is part of valid JSON text, so it is UTF-8 and nothing is lost.
    object.edit().set(key, String::from_utf8_lossy(value)).finish()
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

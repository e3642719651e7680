//! The bodies of clients' requests. They are buffered if they may contain parameters, and streamed otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::Instant;

use super::forms::{self, Fault, Multipart};
use super::headers::BodyKind;
use super::params::{may_hide, without_params};
use crate::budget::Budget;
use crate::exchange::Trouble;
use crate::json::{NotAnObject, Object};
use crate::settings::Limits;
use crate::upstream::Outgoing;

pub(super) async fn whole(
    begin: Bytes,
    mut body: Incoming,
    limits: &Limits,
    bodies: &Arc<Budget>,
) -> Result<Bytes, Trouble> {
    let limit = limits.body;
    let mut share = bodies.share();
    let begun = Instant::now();
    let too_long = || {
        let message = format!("The body is longer than the limit of {limit} bytes (--body-limit).");
        Trouble::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > limit {
        return Err(too_long());
    }
    let mut first = begin;
    let mut more: Option<BytesMut> = None;
    loop {
        let held = more.as_ref().map_or(first.len(), BytesMut::len);
        // A minimum rate keeps slow clients from occupying memory.
        let due = begun + limits.silence + Duration::from_secs(held as u64 / LEAST_RATE);
        let Some(data) = next(&mut body, limits, due).await? else {
            break;
        };
        if (held + data.len()) as u64 > limit {
            return Err(too_long());
        }
        // Most bodies arrive in one piece, which is not copied.
        match &mut more {
            Some(more) => more.extend_from_slice(&data),
            None if first.is_empty() => first = data,
            None => {
                let mut joined = BytesMut::with_capacity((first.len() + data.len()).max(2 * first.len()));
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                more = Some(joined);
            }
        }
        let taken = more.as_ref().map_or(first.len(), BytesMut::capacity);
        if !share.grow_to(taken) {
            return Err(no_memory());
        }
    }
    Ok(share.hold(more.map_or(first, BytesMut::freeze)))
}

fn no_memory() -> Trouble {
    let message = "No memory is left for the body in addition to those of others (--body-memory). Try again.";
    Trouble::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// The minimum rate of a body, in bytes a second, after the time for which it may be silent.
const LEAST_RATE: u64 = 16 << 10;

async fn next(body: &mut Incoming, limits: &Limits, due: Instant) -> Result<Option<Bytes>, Trouble> {
    loop {
        let silent = Instant::now() + limits.silence;
        let frame = tokio::time::timeout_at(due.min(silent), body.frame()).await;
        let frame = frame.map_err(|_| {
            let message = match due < silent {
                true => format!("The body comes slower than {LEAST_RATE} bytes a second."),
                false => format!("Nothing of the body came for {:?}.", limits.silence),
            };
            Trouble::new(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(_)) => {
                return Err(Trouble::bad_request("The body broke off, or its framing is not valid HTTP."));
            }
        }
    }
}

/// Returns the body of a POST outside the P/D routes, without the parameters that clients may not set.
pub(super) async fn filtered(
    kind: BodyKind<'_>,
    mut body: Incoming,
    limits: &Limits,
    bodies: &Arc<Budget>,
) -> Result<Outgoing, Trouble> {
    let mut begin = Bytes::new();
    if let BodyKind::Multipart(content_type) = kind {
        let mut form = Multipart::new(content_type).map_err(form_refused)?;
        return Ok(Outgoing::checked(body, move |data| {
            match data {
                Some(data) => form.feed(data),
                None => form.finish(),
            }
            .map_err(form_refused)
        }));
    }
    if kind == BodyKind::Other {
        // Some servers parse any body that begins like an object as one.
        let mut before = BytesMut::new();
        let mut first = None;
        let mut share = bodies.share();
        let due = Instant::now() + limits.silence;
        while first.is_none()
            && before.len() as u64 <= limits.body
            && let Some(data) = next(&mut body, limits, due).await?
        {
            first = data.iter().copied().find(|byte| !may_precede(*byte));
            if first.is_some() && before.is_empty() {
                begin = data;
            } else {
                before.extend_from_slice(&data);
                if !share.grow_to(before.capacity()) {
                    return Err(no_memory());
                }
            }
        }
        if !before.is_empty() {
            begin = before.freeze();
        }
        if first != Some(b'{') {
            return Ok(Outgoing::streamed(begin, body));
        }
    }
    let text = whole(begin, body, limits, bodies).await?;
    if kind == BodyKind::Urlencoded {
        forms::urlencoded(&text).map_err(form_refused)?;
        // A body that does not begin like an object can only be a form.
        if text.iter().find(|byte| !may_precede(**byte)) != Some(&b'{') {
            return Ok(Outgoing::whole(text));
        }
    }
    Ok(Outgoing::whole(match parse(text.clone()).await {
        Ok(object) => without_params(&object)?,
        Err(wrong) if may_hide(&text, wrong) => return Err(not_json(wrong)),
        Err(_) => text,
    }))
}

fn form_refused(fault: Fault) -> Trouble {
    Trouble::bad_request(format!("The form {fault}."))
}

/// Returns whether this byte may precede an object's brace in some Unicode encoding: white space, a byte order mark, or
/// half of a two-byte brace.
const fn may_precede(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, 0 | 0xef | 0xbb | 0xbf | 0xfe | 0xff)
}

/// Parses a body as an object. A long one, for example with images, is parsed on another thread, so that other clients
/// do not wait.
pub(super) async fn parse(text: Bytes) -> Result<Object, NotAnObject> {
    const LONG: usize = 256 << 10;
    if text.len() > LONG {
        let elsewhere = text.clone();
        let parsing = tokio::task::spawn_blocking(move || Object::parse(elsewhere));
        if let Ok(object) = parsing.await {
            return object;
        }
    }
    Object::parse(text)
}

pub(super) fn not_json(wrong: NotAnObject) -> Trouble {
    Trouble::bad_request(format!("The body cannot be read: {wrong}. Send a JSON object (RFC 8259) in UTF-8."))
}

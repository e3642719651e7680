//! Bodies of clients' requests: read whole where parameters may hide in them, streamed otherwise.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::headers::BodyKind;
use crate::exchange::Trouble;
use crate::exchange::request::CLIENT_PARAMS;
use crate::json::{Edit, NotAnObject, Object};
use crate::settings::Limits;
use crate::upstream::Outgoing;

/// Reads a whole body.
pub(super) async fn whole(
    begin: Bytes,
    mut body: Incoming,
    limits: &Limits,
) -> Result<Bytes, Trouble> {
    let limit = limits.body;
    let too_long = || {
        let message = format!("The body is longer than the limit of {limit} bytes (--body-limit).");
        Trouble::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > limit {
        return Err(too_long());
    }
    let mut first = begin;
    let mut more: Option<BytesMut> = None;
    while let Some(data) = next(&mut body, limits).await? {
        let held = more.as_ref().map_or(first.len(), BytesMut::len);
        if (held + data.len()) as u64 > limit {
            return Err(too_long());
        }
        // Most bodies come in one piece, which is not copied.
        match &mut more {
            Some(more) => more.extend_from_slice(&data),
            None if first.is_empty() => first = data,
            None => {
                let mut joined =
                    BytesMut::with_capacity((first.len() + data.len()).max(2 * first.len()));
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                more = Some(joined);
            }
        }
    }
    Ok(more.map_or(first, BytesMut::freeze))
}

async fn next(body: &mut Incoming, limits: &Limits) -> Result<Option<Bytes>, Trouble> {
    loop {
        let frame = tokio::time::timeout(limits.silence, body.frame()).await;
        let frame = frame.map_err(|_| {
            let message = format!("Nothing of the body came for {:?}.", limits.silence);
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
                return Err(Trouble::bad_request(
                    "The body broke off, or its framing is not valid HTTP.",
                ));
            }
        }
    }
}

/// The body of a POST that is no P/D request, without parameters that are not a client's to set.
pub(super) async fn filtered(
    kind: BodyKind,
    mut body: Incoming,
    limits: &Limits,
) -> Result<Outgoing, Trouble> {
    let mut begin = Bytes::new();
    if kind == BodyKind::Other {
        // Some servers take any body that begins as an object does for one.
        let mut before = BytesMut::new();
        let mut first = None;
        while first.is_none()
            && before.len() as u64 <= limits.body
            && let Some(data) = next(&mut body, limits).await?
        {
            first = data.iter().copied().find(|byte| !may_precede(*byte));
            if first.is_some() && before.is_empty() {
                begin = data;
            } else {
                before.extend_from_slice(&data);
            }
        }
        if !before.is_empty() {
            begin = before.freeze();
        }
        if first != Some(b'{') {
            return Ok(Outgoing::streamed(begin, body));
        }
    }
    let text = whole(begin, body, limits).await?;
    Ok(Outgoing::whole(match parse(text.clone()).await {
        Ok(object) => without_params(&object),
        Err(wrong) if may_hide(&text, wrong) => return Err(not_json(wrong)),
        Err(_) => text,
    }))
}

/// Whether an object in some encoding of Unicode may have this byte before its brace: white space, a byte order mark, or half of
/// a brace of two bytes.
const fn may_precede(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, 0 | 0xef | 0xbb | 0xbf | 0xfe | 0xff)
}

/// Reads a body as an object: a long one, with images for instance, on a thread where no other client waits.
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

/// The text of a body without parameters that are not a client's to set; the same bytes where there are none.
pub(super) fn without_params(object: &Object) -> Bytes {
    let inside = INSIDE.iter().filter_map(|path| {
        let (key, rest) = path.split_first()?;
        Some((*key, cleaned(&object.object(key)?, rest)?))
    });
    inside
        .fold(removed(object), |edit, (key, text)| edit.set(key, text))
        .finish()
}

/// Where vLLM takes parameters from, besides the body itself.
const INSIDE: [&[&str]; 2] = [&["vllm_xargs"], &["sampling_params", "extra_args"]];

fn removed(object: &Object) -> Edit<'_> {
    let has = |key: &&&str| object.get(key).is_some();
    let params = CLIENT_PARAMS.iter().filter(has);
    params.fold(object.edit(), |edit, key| edit.remove(key))
}

/// The text of an object without parameters in the object that lies at this path in it; `None` where there are none.
fn cleaned(object: &Object, path: &[&'static str]) -> Option<String> {
    let edit = match path.split_first() {
        None => removed(object),
        Some((key, rest)) => {
            let inner = cleaned(&object.object(key)?, rest)?;
            object.edit().set(key, inner)
        }
    };
    let text = edit.finish();
    let is_same = text.as_ptr() == object.text().as_ptr();
    (!is_same).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Whether a more lenient parser than ours may find an object in a body.
pub(super) fn may_hide(text: &[u8], wrong: NotAnObject) -> bool {
    wrong != NotAnObject::OtherValue && memchr::memchr(b'{', text).is_some()
}

/// The error for a body that cannot be read.
pub(super) fn not_json(wrong: NotAnObject) -> Trouble {
    Trouble::bad_request(format!(
        "The body cannot be read: {wrong}. Send a JSON object (RFC 8259) in UTF-8."
    ))
}

//! Checks the head of a server's answer beyond what hyper's parser refuses. It rejects answers on whose end two readers
//! could disagree, and switches to a protocol that was not asked for.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

/// Returns what is wrong with an answer's head. `asked` is the `Upgrade` header of its request.
pub(super) fn fault<B>(response: &Response<B>, asked: Option<&HeaderValue>) -> Option<&'static str> {
    let headers = response.headers();
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !switches_as_asked(headers, asked) {
        return Some("it switches to a protocol that was not asked for");
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() || length.is_some_and(|length| !length.as_bytes().iter().all(u8::is_ascii_digit)) {
        return Some("its Content-Length is not one number");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next()?;
    if length.is_some() {
        return Some("it has both a Content-Length and a Transfer-Encoding");
    }
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    (!chunked).then_some("it has another Transfer-Encoding than chunked")
}

fn switches_as_asked(headers: &HeaderMap, asked: Option<&HeaderValue>) -> bool {
    let Some(asked) = asked else { return false };
    let mut protocols = headers.get_all(UPGRADE).iter().flat_map(items).peekable();
    protocols.peek().is_some() && protocols.all(|protocol| items(asked).any(|item| item.eq_ignore_ascii_case(protocol)))
}

fn items(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let items = value.as_bytes().split(|byte| *byte == b',');
    items.map(<[u8]>::trim_ascii)
}

//! The slow oracle of rewritten answers: however an answer is cut, only its number of cached tokens changes.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::{CachedTokens, Rewriter, Undecodable};
use crate::json::Object;
use crate::json::oracle::members;

/// Panics unless an answer in these pieces is rewritten like the whole and the compressed one, and only in the number.
pub(crate) fn check(content_type: &'static str, pieces: &[&[u8]]) {
    let body = pieces.concat();
    // The same answer also serves as the prefill server's.
    let cached = match Object::parse(body.clone().into()) {
        Ok(answer) => CachedTokens::of(&answer),
        Err(_) => CachedTokens("7".into()),
    };
    let rewritten =
        |encoding, pieces: &[&[u8]]| rewrite(&cached, content_type, encoding, pieces).expect("it is well compressed");
    let whole = rewritten("identity", &[&body]);
    assert_eq!(rewritten("identity", pieces), whole);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&body).expect("memory");
    let packed = packed.finish().expect("memory");
    let packed: Vec<_> = packed.chunks(pieces.len().max(1)).collect();
    assert_eq!(rewritten("gzip", &packed), whole);

    let begin = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if content_type == "application/json" && begin == Some(&b'{') {
        same_but_for_the_number(&body, &whole, &cached);
        return;
    }
    let lines =
        |text: &[u8]| -> Vec<Vec<u8>> { text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() };
    let (before, after) = (lines(&body), lines(&whole));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        let end = before.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
        match before[..end].strip_prefix(b"data:") {
            None => assert_eq!(before, after),
            Some(text) => {
                let rewritten = after.strip_prefix(b"data:").and_then(|after| after.strip_suffix(&before[end..]));
                let rewritten = rewritten.expect("what is around the data stays");
                same_but_for_the_number(text, rewritten, &cached);
            }
        }
    }
}

/// Panics unless an answer that may be validly compressed is rewritten in pieces as it is as a whole.
pub(crate) fn check_compressed(encoding: &'static str, pieces: &[&[u8]]) {
    let cached = CachedTokens("7".into());
    let rewritten = |pieces: &[&[u8]]| rewrite(&cached, "application/json", encoding, pieces);
    assert_eq!(rewritten(pieces), rewritten(&[&pieces.concat()]));
}

fn rewrite(
    cached: &CachedTokens,
    content_type: &'static str,
    encoding: &'static str,
    pieces: &[&[u8]],
) -> Result<Vec<u8>, Undecodable> {
    let mut headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (CONTENT_ENCODING, HeaderValue::from_static(encoding)),
    ]);
    let mut rewriter = Rewriter::new(cached.clone(), &mut headers, usize::MAX);
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(&rewriter.feed(Bytes::copy_from_slice(piece))?);
    }
    out.extend_from_slice(&rewriter.finish()?);
    Ok(out)
}

fn same_but_for_the_number(before: &[u8], after: &[u8], cached: &CachedTokens) {
    let object = |text: &[u8], key: &str| {
        let value = members(text)?.remove(key)?;
        value.starts_with('{').then_some(value)
    };
    if let Some(counts) = object(before, "usage") {
        let now = one_differs(before, after, "usage");
        has_the_number(&counts, &now, cached);
    } else if let Some(response) = object(before, "response")
        && let Some(counts) = object(response.as_bytes(), "usage")
    {
        let now = one_differs(before, after, "response");
        let now = one_differs(response.as_bytes(), now.as_bytes(), "usage");
        has_the_number(&counts, &now, cached);
    } else {
        assert_eq!(before, after);
    }
}

fn has_the_number(before: &str, after: &str, CachedTokens(cached): &CachedTokens) {
    let counts = members(before.as_bytes()).expect("counts are an object");
    let has = |key| counts.contains_key(key);
    let key = match has("input_tokens") && !has("prompt_tokens") && !has("prompt_tokens_details") {
        true => "input_tokens_details",
        false => "prompt_tokens_details",
    };
    let after = one_differs(before.as_bytes(), after.as_bytes(), key);
    let before = counts.get(key).filter(|text| text.starts_with('{'));
    let before = before.map_or("{}", String::as_str);
    let number = one_differs(before.as_bytes(), after.as_bytes(), "cached_tokens");
    assert_eq!(number, **cached);
}

/// Checks that all members except one are unchanged, and returns the new value of that one.
fn one_differs(before: &[u8], after: &[u8], key: &str) -> String {
    let mut before = members(before).expect("an object");
    let mut after = members(after).expect("an object stays one");
    before.remove(key);
    let value = after.remove(key).expect("it has the member");
    assert_eq!(before, after);
    value
}

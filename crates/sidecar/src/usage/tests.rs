use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMIT: usize = 1 << 20;

fn cached(number: &str) -> CachedTokens {
    CachedTokens(number.into())
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)))
        .collect()
}

/// Feeds an answer in pieces that end at `cuts`, and returns the whole result.
fn through(rewriter: &mut Rewriter, body: &[u8], cuts: &[usize]) -> Result<Vec<u8>, Undecodable> {
    let mut out = Vec::new();
    let mut from = 0;
    for end in cuts.iter().copied().chain([body.len()]) {
        out.extend_from_slice(&rewriter.feed(Bytes::copy_from_slice(&body[from..end]))?);
        from = end;
    }
    out.extend_from_slice(&rewriter.finish()?);
    Ok(out)
}

fn rewritten(kind: &'static str, body: &str, cuts: &[usize]) -> String {
    let mut rewriter = Rewriter::new(cached("7"), &mut headers(&[("content-type", kind)]), LIMIT);
    let out = through(&mut rewriter, body.as_bytes(), cuts).expect("not compressed");
    String::from_utf8(out).expect("text")
}

#[test]
fn the_number_changes_and_nothing_else() {
    for (before, after) in [
        (
            r#"{"usage": {"prompt_tokens_details" : {"cached_tokens":3 } }}"#,
            r#"{"usage": {"prompt_tokens_details" : {"cached_tokens":7 } }}"#,
        ),
        (
            r#"{"a":1e400,"usage":{"prompt_tokens":9}}"#,
            r#"{"a":1e400,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}}}"#,
        ),
        (r#"{"usage":{"prompt_tokens_details":null}}"#, r#"{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}"#),
        (
            r#"{"usage":{"prompt_tokens_details":{"audio":0,"cached_tokens":null}}}"#,
            r#"{"usage":{"prompt_tokens_details":{"audio":0,"cached_tokens":7}}}"#,
        ),
        (r#"{"usage":{}}"#, r#"{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}"#),
        (r#"{"us\u0061ge":{}}"#, r#"{"us\u0061ge":{"prompt_tokens_details":{"cached_tokens":7}}}"#),
        (
            r#"{"usage":{"input_tokens":5}}"#,
            r#"{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":7}}}"#,
        ),
        (
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":5}}}"#,
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":7}}}}"#,
        ),
    ] {
        assert_eq!(rewritten("application/json", before, &[]), after);
        assert_eq!(
            rewritten("text/event-stream", &format!("data: {before}\r\n\r\n"), &[]),
            format!("data: {after}\r\n\r\n")
        );
        // Also where the last line has no end, and where a server labels events as JSON.
        assert_eq!(rewritten("application/json", &format!("data: {before}"), &[]), format!("data: {after}"));
    }
    for kept in [
        r#"{"usage":null}"#,
        r#"{"usage":[1]}"#,
        r#"{"choices":[{"text":"usage"}]}"#,
        r#"{"usage":{"a":NaN}}"#,
        "data: [DONE]\n",
        ": usage\n\nevent: usage\nid: 1\n",
        "",
        " \n",
    ] {
        assert_eq!(rewritten("application/json", kept, &[]), kept);
        assert_eq!(rewritten("text/event-stream", kept, &[]), kept);
    }
}

#[test]
fn every_split_gives_the_same() {
    let events = "event: a\r\ndata: {\"choices\":[],\"usage\":null}\r\n\r\n: note\ndata:{\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":{}}";
    let whole = rewritten("text/event-stream", events, &[]);
    assert_eq!(whole.matches("\"cached_tokens\":7").count(), 2);
    for first in 0..=events.len() {
        for second in first..=events.len() {
            assert_eq!(rewritten("text/event-stream", events, &[first, second]), whole);
        }
    }
}

#[test]
fn whole_lines_are_not_held() {
    let mut rewriter =
        Rewriter::new(cached("7"), &mut headers(&[("content-type", "Text/Event-Stream; charset=utf-8")]), LIMIT);
    let event = Bytes::from_static(b"data: {\"a\":1}\n\n");
    let out = rewriter.feed(event.clone()).expect("not compressed");
    assert_eq!(out, event);
    assert_eq!(out.as_ptr(), event.as_ptr(), "passed without a copy");
}

#[test]
fn compressed_answers_are_decoded() {
    let body = br#"{"usage":{"prompt_tokens":1}}"#;
    let expected = r#"{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":7}}}"#;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(body).expect("memory");
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(body).expect("memory");
    for (name, packed) in [("gzip", gzip.finish()), ("deflate", zlib.finish())] {
        let packed = packed.expect("memory");
        for cut in 0..=packed.len() {
            let mut head = headers(&[("content-encoding", name), ("content-length", "9")]);
            let mut rewriter = Rewriter::new(cached("7"), &mut head, LIMIT);
            assert!(head.is_empty(), "{head:?}");
            assert_eq!(through(&mut rewriter, &packed, &[cut]).as_deref(), Ok(expected.as_bytes()));
            if cut < packed.len() {
                let mut rewriter = Rewriter::new(cached("7"), &mut headers(&[("content-encoding", name)]), LIMIT);
                assert_eq!(through(&mut rewriter, &packed[..cut], &[]), Err(Undecodable), "{name} cut at {cut}");
            }
        }
    }
}

#[test]
fn what_cannot_be_decoded_passes_with_its_headers() {
    let mut head = headers(&[("content-encoding", "br"), ("content-length", "12")]);
    let mut rewriter = Rewriter::new(cached("7"), &mut head, LIMIT);
    assert_eq!(head.len(), 2);
    assert_eq!(through(&mut rewriter, b"{\"usage\":{}}", &[4]).as_deref(), Ok(&b"{\"usage\":{}}"[..]));
}

#[test]
fn what_is_too_long_passes_as_it_is() {
    let body = format!("{{\"usage\":{{}},\"a\":\"{}\"}}", "x".repeat(100));
    for kind in ["application/json", "text/event-stream"] {
        let mut rewriter = Rewriter::new(cached("7"), &mut headers(&[("content-type", kind)]), 64);
        let cuts: Vec<usize> = (0..body.len()).step_by(10).collect();
        assert_eq!(through(&mut rewriter, body.as_bytes(), &cuts).as_deref(), Ok(body.as_bytes()));
    }
}

#[test]
fn the_prefill_servers_number_is_taken_as_it_is_written() {
    let of = |answer: Value| CachedTokens::of(&Object::parse(answer.to_string().into()).expect("an object"));
    assert_eq!(of(json!({"usage": {"prompt_tokens_details": {"cached_tokens": 5}}})), cached("5"));
    assert_eq!(of(json!({"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 6}}})), cached("6"));
    for none in [
        json!({}),
        json!({"usage": null}),
        json!({"usage": {"prompt_tokens_details": null}}),
        json!({"usage": {"prompt_tokens_details": {"cached_tokens": null}}}),
        json!({"usage": {"prompt_tokens_details": {"cached_tokens": "9"}}}),
    ] {
        assert_eq!(of(none), cached("0"));
    }
}

fn answers() -> impl Strategy<Value = Value> {
    let details = prop_oneof![
        Just(json!(null)),
        Just(json!({})),
        Just(json!({"cached_tokens": 3, "audio_tokens": 0})),
        Just(json!({"cached_tokens": null})),
        Just(json!(4)),
    ];
    let usage = prop_oneof![
        Just(json!(null)),
        Just(json!({"prompt_tokens": 4})),
        Just(json!({"input_tokens": 4})),
        details.prop_map(|details| json!({"prompt_tokens": 4, "prompt_tokens_details": details, "total": 5})),
    ];
    let parts = (prop::option::of(usage), "[a-z\\\\\"{}\n\u{e9}]{0,8}", any::<bool>());
    parts.prop_map(|(usage, text, inner)| {
        let mut answer = json!({"id": "x", "choices": [{"text": text, "usage": 1}]});
        if let Some(usage) = usage {
            answer["usage"] = usage;
        }
        match inner {
            true => json!({"type": "response.completed", "response": answer}),
            false => answer,
        }
    })
}

proptest! {
    #[test]
    fn it_does_what_the_slow_one_does(
        answers in prop::collection::vec((answers(), prop::sample::select(vec!["\n\n", "\r\n\r\n"])), 1..5),
        cuts in prop::collection::vec(0..400usize, 0..6),
        events: bool,
    ) {
        let body = match events {
            true => answers.iter().map(|(answer, end)| format!("data: {answer}{end}")).collect(),
            false => answers[0].0.to_string(),
        };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
        cuts.sort_unstable();
        let mut from = 0;
        let pieces: Vec<_> = cuts
            .iter()
            .chain([&body.len()])
            .map(|end| &body.as_bytes()[std::mem::replace(&mut from, *end)..*end])
            .collect();
        oracle::check(if events { "text/event-stream" } else { "application/json" }, &pieces);
    }
}

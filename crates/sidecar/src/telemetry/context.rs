//! W3C Trace Context: the headers that name the span a request belongs to.
//!
//! This replaces the propagator of OpenTelemetry's SDK, which accepts more than the recommendation does (signs in
//! numbers, several `traceparent`, a trailing dash) and reads only the first line of `tracestate`.

use std::str::FromStr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Returns the client's span, or `None` if the headers name none or are invalid.
pub(super) fn extract(headers: &HeaderMap) -> Option<SpanContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let (line, None) = (lines.next()?, lines.next()) else {
        return None;
    };
    let (trace, span, flags) = parent(line.to_str().ok()?)?;
    let context = SpanContext::new(trace, span, flags, true, state(headers));
    context.is_valid().then_some(context)
}

/// Parses `VERSION-TRACE-SPAN-FLAGS`. Later versions may have further fields.
fn parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let known = text.as_bytes().get(..55)?;
    let formed = known.iter().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => lower_hex(*byte),
    });
    let more = &text.as_bytes()[55..];
    let ends = match &known[..2] {
        b"00" => more.is_empty(),
        b"ff" => false,
        _ => more.first().is_none_or(|byte| *byte == b'-'),
    };
    if !formed || !ends {
        return None;
    }
    let flags = u8::from_str_radix(&text[53..55], 16).ok()?;
    Some((
        TraceId::from_hex(&text[3..35]).ok()?,
        SpanId::from_hex(&text[36..52]).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
    ))
}

/// Reads `tracestate`. Its lines form one list; a list with an error counts as empty.
fn state(headers: &HeaderMap) -> TraceState {
    let lines: Result<Vec<&str>, _> = headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str).collect();
    lines.ok().and_then(|lines| TraceState::from_str(&lines.join(",")).ok()).unwrap_or_default()
}

/// Sets the trace headers of a request to this span, replacing those that it has.
pub(super) fn inject(context: &SpanContext, headers: &mut HeaderMap) {
    let parent =
        format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags() & TraceFlags::SAMPLED);
    let state = context.trace_state().header();
    if let Ok(parent) = HeaderValue::try_from(parent) {
        headers.insert(TRACEPARENT, parent);
    }
    match HeaderValue::try_from(state) {
        Ok(state) if !state.is_empty() => drop(headers.insert(TRACESTATE, state)),
        _ => drop(headers.remove(TRACESTATE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).expect(value));
        }
        headers
    }

    #[test]
    fn a_context_is_read_and_said_again() {
        let given = headers(&[
            ("traceparent", GOOD),
            ("tracestate", "a=1, b=2"),
            ("tracestate", "tenant@c=3"),
            ("baggage", "user=7"),
        ]);
        let context = extract(&given).expect("a context");
        assert!(context.is_remote() && context.is_sampled());
        let mut said =
            headers(&[("traceparent", "junk"), ("traceparent", "more"), ("tracestate", "junk"), ("baggage", "user=7")]);
        inject(&context, &mut said);
        let expected = headers(&[("baggage", "user=7"), ("traceparent", GOOD), ("tracestate", "a=1,b=2,tenant@c=3")]);
        assert_eq!(said, expected);
    }

    #[test]
    fn versions_to_come_may_say_more_and_flags_unknown_are_dropped() {
        for text in [
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-what-comes",
        ] {
            let context = extract(&headers(&[("traceparent", text)])).expect(text);
            let mut said = HeaderMap::new();
            inject(&context, &mut said);
            assert_eq!(said, headers(&[("traceparent", GOOD)]), "{text}");
        }
    }

    #[test]
    fn a_faulty_parent_is_none() {
        let good = headers(&[("traceparent", GOOD)]);
        assert!(extract(&good).is_some());
        // Every other byte at every place, and every other length.
        for at in 0..GOOD.len() {
            for byte in [b'-', b'+', b' ', b'g', b'A', b'F', b'.'] {
                if GOOD.as_bytes()[at] != byte {
                    let mut text = GOOD.as_bytes().to_vec();
                    text[at] = byte;
                    let value = HeaderValue::from_bytes(&text).expect("a value");
                    let mut wrong = HeaderMap::new();
                    wrong.insert(TRACEPARENT, value);
                    assert_eq!(extract(&wrong), None, "{}", String::from_utf8_lossy(&text));
                }
            }
            assert_eq!(extract(&headers(&[("traceparent", &GOOD[..at])])), None);
        }
        for wrong in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "",
        ] {
            assert_eq!(extract(&headers(&[("traceparent", wrong)])), None, "{wrong}");
        }
        let twice = headers(&[("traceparent", GOOD), ("traceparent", GOOD)]);
        assert_eq!(extract(&twice), None);
    }

    #[test]
    fn a_faulty_state_is_no_fault_of_the_parent() {
        for state in ["A=1", "a", "a=1,B=2", "a=1\u{e4}"] {
            let mut given = headers(&[("traceparent", GOOD)]);
            let value = HeaderValue::from_bytes(state.as_bytes()).expect("a value");
            given.insert(TRACESTATE, value);
            let context = extract(&given).expect(state);
            inject(&context, &mut given);
            assert_eq!(given, headers(&[("traceparent", GOOD)]), "{state}");
        }
    }
}

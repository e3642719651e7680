//! One case for each rule, split at every position.

use super::*;
use crate::strict::Next;

/// Complete requests that pass, with their number.
const GOOD: &[(&str, u64)] = &[
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("GET / HTTP/1.0\r\n\r\n", 1),
    ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
    ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    (
        "POST / HTTP/1.1\r\nhost:a:80\r\ncontent-length:3\r\n\r\nabcGET /b?x=%zz&y[]={1|2} HTTP/1.1\r\nHOST: [::1]:8000 \r\n\r\n",
        2,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00A;x;y=z;q=\"a\\\"; b\"\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 12\r\nx-other:\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n000000000000000\r\n\r\n", 1),
    ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    ("M-SEARCH /%41 HTTP/1.1\r\nHost: a_b.c-d.\r\nEmpty:\r\nX: \tv\x20\r\n\r\n", 1),
    ("GET http://A.example:80/x HTTP/1.1\r\nHost: a.example:80\r\n\r\n", 1),
    ("GET HTTPS://10.0.0.1?x HTTP/1.1\r\nX: 10.0.0.1\r\nHost:  10.0.0.1\t\r\n\r\n", 1),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: HTTP/2.0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        2,
    ),
    ("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade:\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
    ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 2),
    ("GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.0\r\n\r\n", 2),
];

/// Bytes that are refused with a status and a message that contains some words: one row for each message, and those that the tests over
/// real connections (`tests/conformance/malformed.toml`) do not have.
const BAD: &[(u16, &str, &str)] = &[
    // Framing.
    (400, "both", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (400, "more than one header Content-Length", "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n"),
    (
        400,
        "more than one header Content-Length",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nX: y\r\ncontent-length: 2\r\n",
    ),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: +1\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 1 1\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 1,1\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 0x10\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 010\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 1.0\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: 18446744073709551617\r\n"),
    (400, "decimal", "POST / HTTP/1.1\r\nContent-Length: \u{664}\r\n"),
    (501, "chunked", "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n"),
    (501, "chunked", "POST / HTTP/1.1\r\nTransfer-Encoding: \r\n"),
    (400, "control character", "POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n"),
    (
        400,
        "more than one header Transfer-Encoding",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ),
    (400, "HTTP/1.0 has no", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"),
    // Lines.
    (400, "bare line feed", "GET / HTTP/1.1\n"),
    (400, "with a method", "\nGET / HTTP/1.1\r\n"),
    (400, "bare carriage return", "\rGET / HTTP/1.1\r\n"),
    (400, "end with one space and HTTP", "GET / HTTP/1.1\r\r\n"),
    (400, "control character", "GET / HTTP/1.1\r\nX: a\r\r\n"),
    (400, "not allowed in one", "GET / HTTP/1.1\r\nX\r: a\r\n"),
    (400, "no colon", "GET / HTTP/1.1\r\n\rX\r\n"),
    (400, "begins with a blank", "GET / HTTP/1.1\r\nX: a\r\n b\r\n"),
    (400, "begins with a blank", "GET / HTTP/1.1\r\nX: a\r\n\tContent-Length: 1\r\n"),
    (400, "control character", "GET / HTTP/1.1\r\nX: a\0\r\n"),
    (400, "control character", "GET / HTTP/1.1\r\nX: \x01\r\n"),
    (400, "control character", "GET / HTTP/1.1\r\nX: \x7f\r\n"),
    (400, "not allowed in one", "GET / HTTP/1.1\r\nX Y: a\r\n"),
    (400, "not allowed in one", "GET / HTTP/1.1\r\nX(a): a\r\n"),
    (400, "not allowed in one", "GET / HTTP/1.1\r\nTransfer\u{2010}Encoding: chunked\r\n"),
    (400, "its colon", "GET / HTTP/1.1\r\nHost : a\r\n"),
    (400, "its colon", "GET / HTTP/1.1\r\nContent-Length\t: 1\r\n"),
    (400, "no name", "GET / HTTP/1.1\r\n: a\r\n"),
    // The request line.
    (400, "method has", "G(T / HTTP/1.1\r\n"),
    (400, "method has", "GET\t/ HTTP/1.1 x\r\n"),
    (400, "not METHOD", "GET\r\n"),
    (400, "HTTP/1.1", "GET  / HTTP/1.1\r\n"),
    (400, "HTTP/1.1", "GET /  HTTP/1.1\r\n"),
    (400, "HTTP/1.1", "GET / HTTP/1.10\r\n"),
    (505, "version", "GET / HTTP/1.2\r\n"),
    (505, "version", "GET / HTTP/0.9\r\n"),
    (501, "CONNECT", "CONNECT a:443 HTTP/1.1\r\n"),
    (400, "target", "GET /a#b HTTP/1.1\r\n"),
    (400, "target", "GET /?a#b HTTP/1.1\r\n"),
    (400, "target", "GET /\"a\" HTTP/1.1\r\n"),
    (400, "target", "GET /<a> HTTP/1.1\r\n"),
    (400, "target", "GET /?<a> HTTP/1.1\r\n"),
    (400, "target", "GET /a\\b HTTP/1.1\r\n"),
    (400, "target", "GET /\u{e4} HTTP/1.1\r\n"),
    (400, "target", "GET /?\u{e4} HTTP/1.1\r\n"),
    (400, "target", "GET /a\tb HTTP/1.1\r\n"),
    (400, "target", "GET /\x7f HTTP/1.1\r\n"),
    (400, "target", "GET /% HTTP/1.1\r\n"),
    (400, "target", "GET /%4 HTTP/1.1\r\n"),
    (400, "target", "GET /%4?1 HTTP/1.1\r\n"),
    (400, "target", "GET /%zz HTTP/1.1\r\n"),
    (400, "target", "GET a HTTP/1.1\r\n"),
    (400, "target", "GET ftp://a/ HTTP/1.1\r\n"),
    (400, "target", "GET http:/a HTTP/1.1\r\n"),
    (400, "target", "GET http:///a HTTP/1.1\r\n"),
    (400, "target", "GET http://u@a/ HTTP/1.1\r\n"),
    (400, "target", "GET http://a:b@c/ HTTP/1.1\r\n"),
    (400, "target", "GET http://a#b HTTP/1.1\r\n"),
    (400, "target", "GET http://a\\b/ HTTP/1.1\r\n"),
    (400, "not the authority", "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"),
    (400, "not the authority", "GET http://a/ HTTP/1.0\r\nHost: ab\r\n\r\n"),
    // Host.
    (400, "needs the header Host", "GET / HTTP/1.1\r\n\r\n"),
    (400, "needs the header Host", "GET http://a/ HTTP/1.1\r\nX: a\r\n\r\n"),
    (400, "more than one header Host", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n"),
    (400, "more than one header Host", "GET / HTTP/1.0\r\nHost: a\r\nhost: a\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost:\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: http://a\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: a:\r\nX: y\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: a:65536\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: a:+1\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: ::1\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: .\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: a..b\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: a%2eb\r\n"),
    (400, "Host is neither", "GET / HTTP/1.1\r\nHost: \u{e4}\r\n"),
    // Behind a good request.
    (400, "with a method", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\0"),
];

const BAD_CHUNKS: &[(&str, &str)] = &[
    ("hexadecimal", "\r\n"),
    ("hexadecimal", "+1\r\n"),
    ("hexadecimal", "-1\r\n"),
    ("hexadecimal", " 1\r\n"),
    ("hexadecimal", "\t1\r\n"),
    ("not of the form", "0x1\r\n"),
    ("hexadecimal", "x\r\n"),
    ("hexadecimal", ";a\r\n"),
    ("hexadecimal", "1234567890abcdef\r\n"),
    ("hexadecimal", "FFFFFFFFFFFFFFFFFF\r\n"),
    ("hexadecimal", "0000000000000000\r\n"),
    ("not of the form", "1 \r\n"),
    ("not of the form", "1 ;a\r\n"),
    ("not of the form", "1,1\r\n"),
    ("not of the form", "1_0\r\n"),
    ("not of the form", "1;\r\n"),
    ("not of the form", "1;a;\r\n"),
    ("not of the form", "1; a\r\n"),
    ("not of the form", "1;a =b\r\n"),
    ("not of the form", "1;a=\r\n"),
    ("not of the form", "1;a=\"b\r\n"),
    ("not of the form", "1;a=\"b\\\r\n"),
    ("not of the form", "1;a=\"b\"c\r\n"),
    ("not of the form", "1;a=\"\0\"\r\n"),
    ("not of the form", "1;\u{e4}\r\n"),
    ("not of the form", "1\0\r\n"),
    ("bare line feed", "1\n"),
    ("bare line feed", "1;a\n"),
    ("bare carriage return", "1\rx\r\n"),
    ("bare carriage return", "1\r\r\n"),
    ("bare carriage return", "1;a\r\r\n"),
    ("not followed by CR LF", "1\r\nab\r\n"),
    ("not followed by CR LF", "1\r\na\n0\r\n"),
    ("not followed by CR LF", "1\r\na\rb"),
    ("not followed by CR LF", "2\r\na\r\n0\r\n"),
    ("bare line feed", "0\r\n\n"),
    ("bare line feed", "0\r\nX: a\n\r\n"),
    ("no colon", "0\r\nX\r\n"),
    ("no colon", "0\r\n\rX\r\n"),
    ("no name", "0\r\n: a\r\n"),
    ("begins with a blank", "0\r\nX: a\r\n b\r\n"),
    ("its colon", "0\r\nX : a\r\n"),
    ("control character", "0\r\nX: \0\r\n"),
    ("control character", "0\r\nX: a\rb\r\n"),
    ("how a request is read", "0\r\nContent-Length: 1\r\n"),
    ("how a request is read", "0\r\ntransfer-encoding: chunked\r\n"),
    ("how a request is read", "0\r\nHOST: a\r\n"),
    ("how a request is read", "0\r\nX: a\r\nTrailer: x\r\n"),
    ("how a request is read", "0\r\nconnection: close\r\n"),
];

/// Follows the bytes in one piece, in two at each position, and byte by byte, and returns the common outcome.
fn follow_split(bytes: &[u8]) -> Outcome {
    let whole = follow([bytes]);
    for at in 0..=bytes.len() {
        let (one, two) = bytes.split_at(at);
        assert_eq!(follow([one, two]), whole, "split at {at}");
    }
    assert_eq!(follow(bytes.chunks(1)), whole, "byte by byte");
    whole
}

#[test]
fn good_requests_pass_whole_whatever_the_splits() {
    for (text, heads) in GOOD {
        let outcome = follow_split(text.as_bytes());
        let expected = Outcome { heads: *heads, passed: text.len(), refusal: None, in_body: false, upgrade: false };
        assert_eq!(outcome, expected, "{text:?}");
    }
}

#[test]
fn bad_heads_are_refused_whatever_the_splits() {
    let good = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
    for (status, words, text) in BAD {
        let outcome = follow_split(text.as_bytes());
        let refusal = outcome.refusal.unwrap_or_else(|| panic!("{text:?} passed"));
        assert_eq!(refusal.status, *status, "{text:?}: {refusal}");
        assert!(refusal.message.contains(words), "{text:?}: {refusal}");
        assert!(!outcome.in_body, "{text:?}");
        // Behind another request it is refused as well, and that one passes.
        if !text.starts_with("\r\n") {
            let behind = follow_split(format!("{good}{text}").as_bytes());
            assert_eq!(behind.refusal, Some(refusal), "{text:?}");
            assert!(behind.passed >= good.len(), "{text:?}");
        }
    }
}

#[test]
fn bad_chunks_are_refused_whatever_the_splits() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (words, text) in BAD_CHUNKS {
        for before in ["", "3;x\r\nabc\r\n"] {
            let outcome = follow_split(format!("{head}{before}{text}").as_bytes());
            let refusal = outcome.refusal.unwrap_or_else(|| panic!("{text:?} passed"));
            assert_eq!(refusal.status, 400, "{text:?}: {refusal}");
            assert!(refusal.message.contains(words), "{text:?}: {refusal}");
            assert!(outcome.in_body && outcome.heads == 1, "{text:?}");
            assert!(outcome.passed >= head.len() + before.len(), "{text:?}");
        }
    }
}

fn follow_pieces(bytes: &[u8]) -> Outcome {
    let whole = follow([bytes]);
    for size in [bytes.len() / 2 + 1, 4096, 1460] {
        assert_eq!(follow(bytes.chunks(size)), whole, "pieces of {size}");
    }
    whole
}

#[test]
fn limits_are_kept_to_the_byte() {
    let status = |text: &str| follow_pieces(text.as_bytes()).refusal.map(|refusal| refusal.status.as_u16());
    let target = |size: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(size));
    let fits = super::super::MAX_REQUEST_LINE - "GET / HTTP/1.1".len();
    assert_eq!(status(&target(fits)), None);
    assert_eq!(status(&target(fits + 1)), Some(414));
    assert_eq!(status(&"G".repeat(40 << 10)), Some(414));

    let headers = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(count - 1));
    assert_eq!(status(&headers(256)), None);
    assert_eq!(status(&headers(257)), Some(431));

    let head = |size: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(size - start.len() - 4))
    };
    assert_eq!(status(&head(128 << 10)), None);
    assert_eq!(status(&head((128 << 10) + 1)), Some(431));
    assert_eq!(status(&head(1 << 20)), Some(431));
    let name = |size: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}: x\r\n\r\n", "x".repeat(size));
    assert_eq!(status(&name(256)), None);
    assert_eq!(status(&name(257)), Some(431));

    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", format!("name: {}\r\n", "v".repeat(220)).repeat(149));
    assert!(many.len() > 32 << 10);
    assert_eq!(status(&many), None);

    let chunked =
        |text: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{text}0\r\n\r\n");
    let extension = |size: usize| format!("1;{}\r\na\r\n", "x".repeat(size - 2));
    assert_eq!(status(&chunked(&extension(256))), None);
    assert_eq!(status(&chunked(&extension(257))), Some(400));
    assert_eq!(status(&chunked(&extension(256).repeat(32))), None);
    assert_eq!(status(&chunked(&extension(256).repeat(33))), Some(400));
    assert_eq!(status(&chunked(&"1".repeat(500))), Some(400));
    let trailers =
        |text: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{text}\r\n");
    assert_eq!(status(&trailers(&"x: y\r\n".repeat(64))), None);
    assert_eq!(status(&trailers(&"x: y\r\n".repeat(65))), Some(400));
    let long = |size: usize| trailers(&format!("x: {}\r\n", "y".repeat(size - 3)));
    assert_eq!(status(&long(8 << 10)), None);
    assert_eq!(status(&long((8 << 10) + 1)), Some(400));
}

#[test]
fn bytes_behind_an_upgrade_wait_for_its_answer() {
    let head = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: mqtt, websocket\r\n\r\n";
    for behind in ["", "\x01\x05hello", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let outcome = follow_split(format!("{head}{behind}").as_bytes());
        assert!(outcome.upgrade && outcome.heads == 1);
        assert_eq!(outcome.passed, head.len());
    }
    // One with a body ends with that.
    let body = "POST /ws HTTP/1.1\r\nHost: a\r\nUpgrade: a/1\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nab";
    let outcome = follow_split(format!("{body}\0").as_bytes());
    assert!(outcome.upgrade);
    assert_eq!(outcome.passed, body.len());

    let mut requests = Requests::default();
    assert_eq!(requests.check(head.as_bytes(), u64::MAX).next, Next::Upgrade);
    requests.decline_upgrade();
    let Next::Refused(refusal) = requests.check(b"\x01\x05hello", u64::MAX).next else {
        panic!("passed");
    };
    assert_eq!(refusal.status, 400);
}

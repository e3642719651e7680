//! Random connections: mostly good requests, with odd spellings and changed bytes, cut into random pieces.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::oracle;

#[derive(Clone)]
struct Connection {
    bytes: Vec<u8>,
    cuts: Vec<Index>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pieces = self.pieces();
        f.debug_list().entries(pieces.iter().map(|piece| piece.escape_ascii().to_string())).finish()
    }
}

impl Connection {
    fn pieces(&self) -> Vec<&[u8]> {
        let mut cuts = vec![0, self.bytes.len()];
        cuts.extend(self.cuts.iter().map(|cut| cut.index(self.bytes.len() + 1)));
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| &self.bytes[cut[0]..cut[1]]).collect()
    }
}

fn one_of(texts: &'static [&'static str]) -> BoxedStrategy<String> {
    select(texts).prop_map(String::from).boxed()
}

fn mostly(good: &'static [&'static str], odd: &'static [&'static str]) -> BoxedStrategy<String> {
    prop_oneof![19 => one_of(good), 1 => one_of(odd)].boxed()
}

fn request() -> BoxedStrategy<Vec<u8>> {
    let line = (
        mostly(&["GET", "POST", "OPTIONS", "X-Y"], &["CONNECT", "G T", "", "\r\nGET", " GET", "{"]),
        mostly(
            &["/", "/v1/x?y=%", "/a%20b|c?[d]", "http://a:80/x", "https://A:80?x"],
            &["*", "a:80", "/#", "/\"", "/%2", "http://b/", "http://a:80#", "//a\\", "/ä"],
        ),
        mostly(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.0"], &["HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 "]),
        mostly(&["\r\n"], &["\n", "\r", "\r\r\n", " \r\n"]),
    );
    let header = mostly(
        &[
            "X: y\r\n",
            "x-long:  a b\tc \r\n",
            "Connection: upgrade, close\r\n",
            "connection: keep-alive\r\n",
            "Upgrade: a/1\r\n",
            "Upgrade: h2c\r\n",
            "Upgrade: b, a/1\r\n",
            "Upgrade: a/1, H2c\r\n",
            "Empty:\r\n",
            "Expect: 100-continue\r\n",
            "TE: trailers\r\n",
        ],
        &[
            "X : y\r\n",
            " folded\r\n",
            "X: y\n",
            "X: \0\r\n",
            ": y\r\n",
            "X\r\n",
            "Host: a:80\r\n",
            "Host: b\r\n",
            "X: \u{e4}\r\n",
            "Content-Length: 3\r\n",
            "Content-Length: +3\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding:\x0bchunked\r\n",
            "Content-Length: 3, 3\r\n",
            "\r\n",
            "X: a\rb\r\n",
        ],
    );
    let host = mostly(
        &["Host: a:80\r\n", "host:A:80 \r\n"],
        &["", "Host: 1.2.3\r\n", "Host: [::1]\r\n", "Host:\r\n", "Host: a:80, b\r\n"],
    );
    let chunk = mostly(
        &[
            "1\r\na\r\n",
            "00a\r\n0123456789\r\n",
            "3;x=\"y;\\\"\"\r\nGET\r\n",
            "2;a;b=c\r\n\r\n\r\n",
            "1F\r\nGET / HTTP/1.1\r\nHost: a:80\r\n\r\nx\r\n",
        ],
        &[
            "1 \r\na\r\n",
            "2\r\na\r\n",
            "1\na\r\n",
            "1\r\nab\r\n",
            "0x1\r\na\r\n",
            "+1\r\na\r\n",
            "1;\r\na\r\n",
            "1;a=\"\r\na\r\n",
            "\r\n",
            "ffffffffffffffff\r\na\r\n",
            "1\r\na\n",
            "1\r\r\na\r\n",
            "0\r\n\r\n",
        ],
    );
    let trailer =
        mostly(&["X-Sum: 1\r\n", "y:\r\n"], &["Host: a\r\n", "Content-Length: 1\r\n", "X : y\r\n", " y\r\n", "X: y\n"]);
    let chunked = (
        vec(chunk, 0..4),
        mostly(&["0\r\n", "000;a\r\n"], &["0\n", "0 \r\n", "-0\r\n"]),
        vec(trailer, 0..2),
        mostly(&["\r\n"], &["\n", "\r", ""]),
    )
        .prop_map(|(chunks, last, trailers, end)| {
            (
                String::from("transfer-encoding: Chunked\r\n"),
                format!("{}{last}{}{end}", chunks.concat(), trailers.concat()),
            )
        });
    let sized = (0..40usize)
        .prop_map(|size| (format!("Content-Length: {size}\r\n"), "POST / \r\nx".repeat(4)[..size].to_string()));
    let body = prop_oneof![
        2 => Just(Default::default()),
        2 => sized,
        3 => chunked,
    ];
    (line, host, vec(header, 0..4), body)
        .prop_map(|((method, target, version, end), host, headers, (framing, body))| {
            format!("{method} {target} {version}{end}{host}{}{framing}\r\n{body}", headers.concat()).into_bytes()
        })
        .boxed()
}

fn change() -> impl Strategy<Value = (u8, Index, Index, u8)> {
    let byte = prop_oneof![any::<u8>(), select(&b"\r\n\t \0:;,0123456789abcdef\"\\%+-x"[..])];
    (0..4u8, any::<Index>(), any::<Index>(), byte)
}

fn connection() -> impl Strategy<Value = Connection> {
    let changes = prop_oneof![3 => Just(vec![]), 2 => vec(change(), 1..4)];
    (vec(request(), 1..4), changes, vec(any::<Index>(), 0..6)).prop_map(|(requests, changes, cuts)| {
        let mut bytes = requests.concat();
        for (kind, at, other, byte) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                // A piece is repeated elsewhere.
                _ => {
                    let piece = bytes[at..bytes.len().min(at + 30)].to_vec();
                    let to = other.index(bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        Connection { bytes, cuts }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn requests_are_followed_as_by_a_slow_reading(connection in connection()) {
        oracle::check(&connection.pieces());
    }

    #[test]
    fn any_bytes_are_followed_as_by_a_slow_reading(bytes in vec(select(&b"GET / HTTP/1.1\r\n\r\nHost:a\0 "[..]), 0..80)) {
        oracle::check(&bytes.chunks(1).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// No request can be smuggled: hyper reads the requests, bodies and trailers that the slow reading reads.
    #[test]
    fn hyper_reads_what_passes(connection in connection()) {
        oracle::check_server(&connection.pieces());
    }
}

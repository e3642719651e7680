//! The scripts with which servers answer requests.

use transload_test_servers::wire::chunked;
use transload_test_servers::{End, Script};
use transload_tests::process::Chance;

use super::plan::Fault;

/// A size above the `--body-limit` of a world.
const GIGANTIC: usize = 1 << 20;

/// A correct answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

/// The way in which an answer's end is marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length,
    Chunks,
    /// The end of the connection marks the end.
    End,
}

/// Returns the script of a server that sends this answer with this fault.
pub(crate) fn script(fault: Fault, mut answer: Answer, chance: &mut Chance) -> Script {
    let mut framing = match chance.below(6) {
        0 => Framing::End,
        1 | 2 => Framing::Chunks,
        _ => Framing::Length,
    };
    if fault != Fault::Fine && framing == Framing::End {
        framing = Framing::Chunks;
    }
    if fault == Fault::Gigantic {
        // White space is part of no answer, in JSON and in events.
        let space = if answer.content_type.contains("event") {
            ": comment\n".repeat(GIGANTIC / 10)
        } else {
            " ".repeat(GIGANTIC)
        };
        answer.body.insert_str(0, &space);
    }
    let head = head(&answer, framing);
    let body = framed(&answer.body, framing, chance);
    let half = |bytes: &[u8]| bytes[..1 + bytes.len() / 2].to_vec();
    let part = || [&head[..], &half(&body)].concat();
    let ends = |bytes: Vec<u8>, end| Script { bytes, end, ..Script::default() };
    let whole = |before: &[u8]| {
        let end = if framing == Framing::End { End::Close } else { End::Keep };
        ends([before, &head, &body].concat(), end)
    };
    match fault {
        Fault::Fine | Fault::Gigantic | Fault::NotJson | Fault::Redirect => whole(b""),
        Fault::Client4xx | Fault::Server5xx => whole(b""),
        Fault::Slow => {
            let mut at = 0;
            let parts = (0..10).map(|_| {
                at += 1 + chance.below(200) as usize;
                at
            });
            Script { parts: parts.collect(), ..whole(b"") }
        }
        Fault::Hints => whole(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        Fault::Extra => {
            let junk = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\njunk";
            ends([&head[..], &body, junk].concat(), End::Keep)
        }
        Fault::Reset => ends(Vec::new(), End::Reset),
        Fault::Close => ends(Vec::new(), End::Close),
        Fault::ResetInHead => ends(half(&head), End::Reset),
        Fault::CloseInHead => ends(half(&head), End::Close),
        Fault::ResetAfterHead => ends(head, End::Reset),
        Fault::ResetInBody => ends(part(), End::Reset),
        Fault::CloseInBody => ends(part(), End::Close),
        Fault::Silence => ends(Vec::new(), End::Silence),
        Fault::SilenceInBody => ends(part(), End::Silence),
        Fault::Garbage => ends((0..40).flat_map(|_| chance.draw().to_le_bytes()).collect(), End::Close),
        Fault::GiganticHead => {
            let filler = format!("x-filler: {}\r\n\r\n", "x".repeat(GIGANTIC));
            ends([&head[..head.len() - 2], filler.as_bytes(), &body].concat(), End::Close)
        }
        Fault::WrongLength => {
            let framing = [
                "content-length: 5\r\ncontent-length: 500\r\n\r\n{\"a\":1}",
                "content-length: -5\r\n\r\n{\"a\":1}",
                "content-length: 99999999999999999999\r\n\r\n{\"a\":1}",
                "transfer-encoding: chunked\r\n\r\nzz\r\n{\"a\":1}\r\n0\r\n\r\n",
                "transfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}x0\r\n\r\n",
                "transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{\"a\":1}",
            ];
            let framing = framing[chance.below(framing.len() as u64) as usize];
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            ends([head, framing].concat().into(), End::Close)
        }
    }
}

fn head(answer: &Answer, framing: Framing) -> Vec<u8> {
    let Answer { status, content_type, body } = answer;
    let framing = match framing {
        Framing::Length => format!("content-length: {}\r\n", body.len()),
        Framing::Chunks => "transfer-encoding: chunked\r\n".to_owned(),
        Framing::End => "connection: close\r\n".to_owned(),
    };
    let location = match status {
        307 => "location: /evil\r\n",
        _ => "",
    };
    format!("HTTP/1.1 {status} Fake\r\ncontent-type: {content_type}\r\n{location}{framing}\r\n").into()
}

fn framed(body: &str, framing: Framing, chance: &mut Chance) -> Vec<u8> {
    if framing != Framing::Chunks {
        return body.into();
    }
    let most = 1 + chance.below(2 * body.len() as u64) as usize;
    chunked(body.as_bytes().chunks(most), &[])
}

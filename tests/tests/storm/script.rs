//! What a server sends for a request, step by step.

use std::time::Duration;

use transload_tests::process::Chance;

use super::plan::Fault;

/// More than `--body-limit` of a world.
const GIGANTIC: usize = 1 << 20;

#[derive(Debug)]
pub(crate) enum Step {
    Write(Vec<u8>),
    Pause(Duration),
    /// The connection is over, with a reset.
    Reset,
    /// The connection is over.
    Close,
    /// Nothing more is said until the other side closes.
    Hang,
}

/// An answer as it should be.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

/// How an answer's end is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length,
    Chunks,
    /// By the end of the connection.
    End,
}

/// What a server sends: this answer, with this fault.
pub(crate) fn script(fault: Fault, mut answer: Answer, chance: &mut Chance) -> Vec<Step> {
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
    let whole = [&head[..], &body].concat();
    let part = || [&head[..], &half(&body)].concat();
    match fault {
        Fault::Fine | Fault::Gigantic | Fault::NotJson | Fault::Redirect => after(framing, whole),
        Fault::Client4xx | Fault::Server5xx => after(framing, whole),
        Fault::Slow => slowly(&whole, chance),
        Fault::Hints => {
            let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
            after(framing, [&hints[..], &whole].concat())
        }
        Fault::Extra => {
            let junk = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\njunk";
            vec![Step::Write([&whole[..], junk].concat())]
        }
        Fault::Reset => vec![Step::Reset],
        Fault::Close => vec![Step::Close],
        Fault::ResetInHead => vec![Step::Write(half(&head)), pause(), Step::Reset],
        Fault::CloseInHead => vec![Step::Write(half(&head)), Step::Close],
        Fault::ResetAfterHead => vec![Step::Write(head), pause(), Step::Reset],
        Fault::ResetInBody => vec![Step::Write(part()), pause(), Step::Reset],
        Fault::CloseInBody => vec![Step::Write(part()), Step::Close],
        Fault::Silence => vec![Step::Hang],
        Fault::SilenceInBody => vec![Step::Write(part()), Step::Hang],
        Fault::Garbage => {
            let bytes = (0..40).flat_map(|_| chance.draw().to_le_bytes()).collect();
            vec![Step::Write(bytes), Step::Close]
        }
        Fault::GiganticHead => {
            let filler = format!("x-filler: {}\r\n\r\n", "x".repeat(GIGANTIC));
            let head = &head[..head.len() - 2];
            vec![Step::Write([head, filler.as_bytes(), &body].concat()), Step::Close]
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
            vec![Step::Write([head, framing].concat().into()), Step::Close]
        }
    }
}

/// A moment in which what was written is read: a reset would overtake it.
fn pause() -> Step {
    Step::Pause(Duration::from_millis(5))
}

fn after(framing: Framing, bytes: Vec<u8>) -> Vec<Step> {
    let mut steps = vec![Step::Write(bytes)];
    if framing == Framing::End {
        steps.push(Step::Close);
    }
    steps
}

fn slowly(mut bytes: &[u8], chance: &mut Chance) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..10 {
        let length = (1 + chance.below(200) as usize).min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        steps.push(Step::Write(piece.to_vec()));
        steps.push(Step::Pause(Duration::from_millis(chance.below(8))));
        bytes = rest;
    }
    steps.push(Step::Write(bytes.to_vec()));
    steps
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
    let mut rest = body.as_bytes();
    if framing != Framing::Chunks {
        return rest.to_vec();
    }
    let mut framed = Vec::new();
    let most = 1 + chance.below(2 * rest.len() as u64) as usize;
    while !rest.is_empty() {
        let (chunk, more) = rest.split_at(most.min(rest.len()));
        framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        framed.extend_from_slice(chunk);
        framed.extend_from_slice(b"\r\n");
        rest = more;
    }
    framed.extend_from_slice(b"0\r\n\r\n");
    framed
}

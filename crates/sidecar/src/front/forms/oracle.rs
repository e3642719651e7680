//! The oracle of forms: the verdict does not depend on how a form is cut, and in an accepted form even a reading more
//! lenient than any parser's finds nothing that steers a transfer.

use super::{Multipart, holds_params, parameter, steers, unescaped, urlencoded};

/// Checks a multipart form. Panics if it is accepted but must not be, or if another cut changes the verdict.
pub(crate) fn check(content_type: &[u8], pieces: &[&[u8]]) {
    let body = pieces.concat();
    let passes = in_pieces(content_type, pieces);
    assert_eq!(passes, in_pieces(content_type, &[&body]), "its cut matters");
    if !passes {
        return;
    }
    let boundary = parameter(content_type, b"boundary");
    let boundary = boundary.ok().flatten().expect("it was read");
    for (head, content) in parts(&body, boundary) {
        for name in names(head) {
            refuse(&String::from_utf8_lossy(name), content);
        }
    }
}

/// Checks a form in one line. Panics if it is accepted but must not be.
pub(crate) fn check_line(text: &[u8]) {
    if urlencoded(text).is_err() {
        return;
    }
    // Parsers split fields at ampersands, at semicolons or at both.
    for ends in [&b"&"[..], b";", b"&;"] {
        for field in text.split(|byte| ends.contains(byte)) {
            let (name, content) = halves(field, b'=');
            let name = unescaped(name);
            refuse(&String::from_utf8_lossy(&name), &unescaped(content));
        }
    }
}

fn in_pieces(content_type: &[u8], pieces: &[&[u8]]) -> bool {
    let Ok(mut form) = Multipart::new(content_type) else {
        return false;
    };
    let fed = pieces.iter().try_for_each(|piece| form.feed(piece));
    fed.and_then(|()| form.finish()).is_ok()
}

fn refuse(name: &str, content: &[u8]) {
    let holds = holds_params(name);
    assert!(holds.is_ok(), "a field {name:?} passes");
    assert!(holds == Ok(false) || !steers(name, content), "parameters in {name:?} pass");
}

/// Returns the headers and content of all possible parts: the text between any two lines that begin with the delimiter,
/// with any line ends.
fn parts<'a>(body: &'a [u8], boundary: &[u8]) -> Vec<(&'a [u8], &'a [u8])> {
    let delimiter = [b"--", boundary].concat();
    let begins =
        |at: &usize| body[*at..].starts_with(&delimiter) && (*at == 0 || matches!(body[at - 1], b'\r' | b'\n'));
    let mut ends: Vec<usize> = (0..body.len()).filter(begins).collect();
    ends.push(body.len());
    let parts = ends.windows(2).map(|ends| {
        let part = &body[ends[0] + delimiter.len()..ends[1]];
        let blank = |at: &usize| {
            let rest = &part[*at..];
            let blank = [&b"\r\n\r\n"[..], b"\n\n", b"\r\r"];
            blank.iter().any(|blank| rest.starts_with(blank))
        };
        let head = (0..part.len()).find(blank).unwrap_or(part.len());
        let (head, content) = part.split_at(head);
        (head, content.trim_ascii())
    });
    parts.collect()
}

/// Returns all possible names of a part's field: the text after a semicolon and `name`, with or without quotes.
fn names(head: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for line in head.split(|byte| matches!(byte, b'\r' | b'\n')) {
        let (key, value) = halves(line, b':');
        if !key.trim_ascii().eq_ignore_ascii_case(b"content-disposition") {
            continue;
        }
        for parameter in value.split(|byte| *byte == b';').skip(1) {
            let (key, value) = halves(parameter, b'=');
            if key.trim_ascii().eq_ignore_ascii_case(b"name") {
                let value = value.trim_ascii();
                let value = value.strip_prefix(b"\"").unwrap_or(value);
                names.push(value.strip_suffix(b"\"").unwrap_or(value));
            }
        }
    }
    names
}

fn halves(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == at);
    let (one, two) = text.split_at(end.unwrap_or(text.len()));
    (one, two.get(1..).unwrap_or_default())
}

//! The functions that the fuzz targets run on every input, so that ordinary tests can replay their corpora.
//!
//! Each function accepts any bytes and panics if a slow oracle disagrees with the code.

use serde_json::value::RawValue;

use crate::front::forms;
use crate::{json, strict, target, usage};

/// Checks all bytes of a client's connection.
pub fn strict(data: &[u8]) {
    for pieces in cuts(data) {
        strict::oracle::check(&pieces);
    }
    strict::oracle::check_server(&cuts(data)[2]);
}

/// Checks a server's answer. The first byte chooses its type or encoding.
pub fn usage(data: &[u8]) {
    let Some((kind, answer)) = data.split_first() else {
        return;
    };
    for pieces in cuts(answer) {
        match kind % 4 {
            0 => usage::oracle::check("application/json", &pieces),
            1 => usage::oracle::check("text/event-stream", &pieces),
            2 => usage::oracle::check_compressed("gzip", &pieces),
            _ => usage::oracle::check_compressed("deflate", &pieces),
        }
    }
}

/// Checks edits of a text. The parts after zero bytes are alternately keys and their new values; a value that is not
/// JSON removes the member.
pub fn json(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let text = parts.next().unwrap_or_default();
    let mut changes = Vec::new();
    while let Some(key) = parts.next() {
        let value = parts.next().unwrap_or_default();
        let value = serde_json::from_slice::<&RawValue>(value).ok();
        if let Ok(key) = std::str::from_utf8(key)
            && json::string(key).len() == key.len() + 2
        {
            changes.push((key, value.map(RawValue::get)));
        }
    }
    json::oracle::check(text, &changes);
}

/// Checks targets. The first line is an allow-list, each further line may be a target.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut lines = text.split('\n');
    let list = lines.next().unwrap_or_default();
    target::oracle::check(list, &lines.collect::<Vec<_>>());
}

/// Checks a client's form. The first line is its `Content-Type`; if that is empty, the rest is a form in one line.
pub fn form(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (kind, body) = data.split_at(end.unwrap_or(data.len()));
    let body = body.get(1..).unwrap_or_default();
    if kind.is_empty() {
        return forms::oracle::check_line(body);
    }
    // Headers contain no control characters.
    if kind.iter().any(u8::is_ascii_control) {
        return;
    }
    for pieces in cuts(body) {
        forms::oracle::check(kind, &pieces);
    }
}

/// Cuts bytes in three ways: into single bytes, in two, and into random pieces. The positions are derived from the
/// bytes themselves.
fn cuts(data: &[u8]) -> [Vec<&[u8]>; 3] {
    let mut state = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let mut draw = |below: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let (one, two) = data.split_at(draw(data.len() + 1));
    let mut pieces = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(1 + draw(rest.len().min(40)));
        pieces.push(piece);
        rest = behind;
    }
    [data.chunks(1).collect(), vec![one, two], pieces]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(target: &str, check: fn(&[u8])) {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut inputs = 0;
        for entry in std::fs::read_dir(&corpus).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            let data = std::fs::read(&path).unwrap();
            check(&data);
            // Every prefix, too: what is cut off in transit.
            for end in (0..data.len()).step_by(data.len() / 64 + 1) {
                check(&data[..end]);
            }
            inputs += 1;
        }
        assert!(inputs >= 10, "the corpus of {target} has only {inputs}");
    }

    #[test]
    fn connections_are_replayed() {
        replay("strict", strict);
    }

    #[test]
    fn answers_are_replayed() {
        replay("usage", usage);
    }

    #[test]
    fn texts_are_replayed() {
        replay("json", json);
    }

    #[test]
    fn forms_are_replayed() {
        replay("form", form);
    }

    #[test]
    fn targets_are_replayed() {
        replay("target", target);
    }
}

//! JSON objects as lists of members, each as its text. This is slow but simple, and shares no code with the sidecar's
//! reader.

/// The members that a proxy sets in a body. If one differs from the client's, it may be anywhere in the object, but
/// only once.
const SET: [&str; 11] = [
    "kv_transfer_params",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "cache_hit_threshold",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "continue_final_message",
    "add_generation_prompt",
];

/// Compares an object with the expected one. Members that a proxy sets may be anywhere. All others must have the
/// expected order and texts. `<room>` stands for a number, which is returned.
pub(crate) fn compare(expected: &str, got: &[u8], sent: &[u8]) -> Result<Option<u64>, String> {
    let got = std::str::from_utf8(got).map_err(|_| "it is not UTF-8".to_owned())?;
    let complaint = |why: &str| format!("{why}\n  expected {expected}\n  got      {got}");
    let expected_members = members(expected).ok_or_else(|| complaint("the case is not JSON"))?;
    let members = members(got).ok_or_else(|| complaint("it is not an object"))?;
    let sent = std::str::from_utf8(sent).ok().and_then(self::members);
    let sent = sent.unwrap_or_default();
    let (mut set, kept) = part(members, &sent);
    let (expected_set, expected_kept) = part(expected_members, &sent);
    if kept != expected_kept {
        return Err(complaint("the client's members differ"));
    }
    let mut room = None;
    for (key, value) in expected_set {
        let at = set.iter().position(|(have, _)| *have == key);
        let (_, have) = set.swap_remove(at.ok_or_else(|| complaint(&format!("no {key}")))?);
        if value == "<room>" {
            let number = have.parse().ok().filter(|_| !have.starts_with(['+', '0']));
            room = Some(number.ok_or_else(|| complaint("the room is no number"))?);
        } else if compact(&value) != compact(&have) {
            return Err(complaint(&format!("{key} differs")));
        }
    }
    match set.first() {
        Some((key, _)) => Err(complaint(&format!("{key} is there too"))),
        None => Ok(room),
    }
}

/// Compares two texts of JSON. White space between tokens does not count.
pub(crate) fn same(expected: &str, got: &[u8]) -> Result<(), String> {
    match std::str::from_utf8(got) {
        Ok(got) if compact(expected) == compact(got) => Ok(()),
        _ => Err(format!("the JSON differs\n  expected {expected}\n  got      {}", String::from_utf8_lossy(got))),
    }
}

type Members = Vec<(String, String)>;

/// Separates the members that were set from those that the client sent.
fn part(members: Members, sent: &Members) -> (Members, Members) {
    let set = |member: &(String, String)| SET.contains(&&*member.0) && !sent.contains(member);
    members.into_iter().partition(set)
}

/// Returns the members of an object. Keys are as written, without quotes.
pub(crate) fn members(text: &str) -> Option<Members> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut members = Vec::new();
    if inside.trim().is_empty() {
        return Some(members);
    }
    for member in pieces(inside, ',') {
        let [key, value] = &pieces(&member, ':')[..] else {
            return None;
        };
        let key = key.trim().strip_prefix('"')?.strip_suffix('"')?;
        members.push((key.to_owned(), value.trim().to_owned()));
    }
    Some(members)
}

/// Splits a text at a character outside of strings, lists and objects.
fn pieces(text: &str, at: char) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for char in text.chars() {
        let outside = !quoted && depth == 0;
        match char {
            _ if escaped => {}
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        escaped = quoted && char == '\\' && !escaped;
        if outside && char == at {
            pieces.push(String::new());
        } else if let Some(piece) = pieces.last_mut() {
            piece.push(char);
        }
    }
    pieces
}

/// Returns a text of JSON without white space outside of strings.
fn compact(text: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let keep = |char: &char| {
        let kept = quoted || !char.is_ascii_whitespace();
        if *char == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && *char == '\\' && !escaped;
        kept
    };
    text.chars().filter(keep).collect()
}

#[test]
fn tells_members_apart() {
    let against = |good: &str, got: &str| compare(good, got.as_bytes(), b"{}");
    let good = r#"{"a":1.0,"kv_transfer_params":{"x": [1,2]},"b":"}\",{"}"#;
    let moved = r#"{ "kv_transfer_params":{"x":[1, 2]}, "a":1.0,"b":"}\",{"}"#;
    assert_eq!(against(good, moved), Ok(None));
    assert!(compare(good, moved.as_bytes(), moved.as_bytes()).is_err());
    assert!(against(good, &good.replace("1.0", "1")).is_err());
    let turned = r#"{"b":"}\",{","a":1.0,"kv_transfer_params":{"x":[1,2]}}"#;
    assert!(against(good, turned).is_err());
    let twice = format!(r#"{{"kv_transfer_params":1,{}"#, &good[1..]);
    assert!(against(good, &twice).is_err());
    let room = against(r#"{"bootstrap_room":<room>}"#, r#"{"bootstrap_room": 17}"#);
    assert_eq!(room, Ok(Some(17)));
    assert!(same(r#"{"a":"x y"}"#, br#"{"a":"xy"}"#).is_err());
}

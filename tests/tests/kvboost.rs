//! Replays recordings of KVBoost.

use std::path::Path;

use transload_tests::kvboost::{Agreement, replay};

fn vectors() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/kvboost");
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|file| {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        (name, std::fs::read_to_string(file.path()).unwrap())
    });
    files.collect()
}

#[test]
fn recordings_agree() {
    let files = vectors();
    assert!(files.iter().any(|(name, _)| name == "eviction.json"));
    for (name, text) in files {
        let Agreement { agree, of } = replay(&name, &text).unwrap().expect("a known name");
        println!("{name}: {agree} of {of} agree");
        assert!(of > 0 && agree == of, "{name}: {agree} of {of} agree");
    }
}

#[test]
fn another_outcome_does_not_agree() {
    let (name, text) = vectors().into_iter().find(|(name, _)| name == "eviction.json").unwrap();
    for (from, to) in [
        ("\"evicted\":[\"b\"]", "\"evicted\":[\"a\"]"),
        ("\"bytes_used\":100", "\"bytes_used\":101"),
        ("\"result\":\"b\"", "\"result\":null"),
    ] {
        assert!(text.contains(from), "{from}");
        let Agreement { agree, of } = replay(&name, &text.replacen(from, to, 1)).unwrap().unwrap();
        assert_eq!(agree + 1, of, "{from}");
    }
    assert!(replay(&name, "[{\"steps\": []}]").is_err());
    assert_eq!(replay("something.json", "").unwrap(), None);
}

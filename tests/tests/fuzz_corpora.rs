//! Replays every interesting input that fuzzing has found.

use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        run(&data);
        // Every prefix, too: what is cut off in transit.
        for end in (0..data.len()).step_by(data.len() / 64 + 1) {
            run(&data[..end]);
        }
        inputs += 1;
    }
    assert!(inputs >= 10, "the corpus of {target} has only {inputs} inputs");
}

#[test]
fn documents() {
    replay("document", transload_tests::fuzz::document);
}

#[test]
fn orders() {
    replay("order", transload_tests::fuzz::order);
}

#[test]
fn typed_documents() {
    replay("typed_document", transload_tests::fuzz::typed_document);
}

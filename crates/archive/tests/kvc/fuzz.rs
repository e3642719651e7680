//! The checks of the fuzz target `kvc`, on its corpus and on all vectors.

use std::path::Path;

#[path = "../../../../fuzz/checks/kvc.rs"]
mod check;

/// Checks every file of a folder: whole, cut off, and with each byte of its head changed.
fn replay(folder: &Path) -> usize {
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        let mut data = std::fs::read(&path).unwrap();
        check::check(&data);
        for end in 0..data.len().min(300) {
            check::check(&data[..end]);
        }
        for at in 0..data.len().min(300) {
            for by in [1, 0x80, 0xff] {
                data[at] ^= by;
                check::check(&data);
                data[at] ^= by;
            }
        }
        inputs += 1;
    }
    inputs
}

#[test]
fn the_corpus_is_replayed() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/kvc");
    assert!(replay(&corpus) >= 10);
}

#[test]
fn vectors_are_inputs_too() {
    let vectors = crate::vectors::folder();
    assert!(replay(&vectors.join("golden")) >= 20);
    assert!(replay(&vectors.join("corrupt")) >= 28);
}

//! Replays a corpus in an ordinary test: every input, also cut short and with a byte changed.

use std::path::Path;

/// Checks that the corpus in this folder of `fuzz/corpus` has these seeds as they are generated now
/// (`TRANSLOAD_BLESS=1` writes them). Runs `check` on every input, on about `steps` of its prefixes, and with about as
/// many of its bytes changed, one at a time.
pub(super) fn replay(folder: &str, seeds: Vec<(&'static str, Vec<u8>)>, steps: usize, check: impl Fn(&[u8])) {
    // Tests of several packages include this file, at different depths below the root.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = package
        .ancestors()
        .map(|above| above.join("fuzz/corpus").join(folder))
        .find(|corpus| corpus.is_dir())
        .expect("the folder of the corpus");
    for (name, seed) in seeds {
        let path = corpus.join(name);
        if std::env::var_os("TRANSLOAD_BLESS").is_some() {
            std::fs::write(&path, &seed).unwrap();
        }
        let there = std::fs::read(&path).unwrap_or_default();
        assert!(there == seed, "{name} is not current: TRANSLOAD_BLESS=1 writes it");
    }
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        check(&data);
        for at in (0..data.len()).step_by(data.len() / steps + 1) {
            check(&data[..at]);
            for bits in [1, 0x80, 0xff, 1 << (at % 8)] {
                let mut data = data.clone();
                data[at] ^= bits;
                check(&data);
            }
        }
    }
}

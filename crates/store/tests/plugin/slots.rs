//! `examples/llama/slots.c`: states of llama.cpp through a plugin.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::build::{compile, plugin};

/// Returns a state of this many cells: two layers of f16, eight bytes a row.
fn state(cells: u32, transposed: bool) -> Vec<u8> {
    let mut words = vec![0xaf14_3cd8, 0, 1, cells];
    words.extend((0..cells).flat_map(|position| [position, 1, 0]));
    words.extend([u32::from(transposed), 2]);
    for layer in 0..4 {
        words.extend(if transposed && layer > 1 { [1, 2, 4] } else { [1, 8, 0] });
        words.extend((0..cells).flat_map(|position| [position, layer]));
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn turns_of_a_slot_share_their_chunks() {
    let library = plugin(&["-p", "transload-kv-store-file"], "libkv_store_file.so");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("slots");
    let flags = ["-std=gnu11", "-pedantic", "-ldl"];
    compile("cc", "../../../../examples/llama/slots.c", &program, &flags);
    let uri = format!("file://{}", folder.path().join("kv").display());
    let run = |action: &str, name: &str, file: &Path| -> Output {
        let mut command = Command::new(&program);
        let command = command.arg(action).arg(&library).args([&uri, name]);
        command.arg(file).output().unwrap()
    };
    let (given, made) = (folder.path().join("given"), folder.path().join("made"));
    let round = |name: &str, state: &[u8]| {
        fs::write(&given, state).unwrap();
        let saved = run("save", name, &given);
        assert!(saved.status.success(), "{saved:?}");
        let restored = run("restore", name, &made);
        assert!(restored.status.success(), "{restored:?}");
        assert!(fs::read(&made).unwrap() == state);
        String::from_utf8(saved.stdout).unwrap()
    };
    assert!(round("slot0", &state(600, false)).starts_with("saved 26472 bytes, 26448 of"));
    // What is in front of the layers, and in each the rows behind 512 cells.
    let new = 16 + 12 * 900 + 8 + 12 + 4 * (900 - 512) * 8;
    let said = format!("saved 39672 bytes, {new} of them new\n");
    assert_eq!(round("slot0", &state(900, false)), said);
    assert_eq!(round("slot1", &state(900, false)), "saved 39672 bytes, 0 of them new\n");
    round("slot2", &state(300, true));
    round("slot3", &[&state(300, false)[..], b"recurrent layers"].concat());

    let whole = state(300, false);
    for end in (0..whole.len()).step_by(97) {
        fs::write(&given, &whole[..end]).unwrap();
        let cut = run("save", "slot4", &given);
        // Between keys and values, it is the state of a model with latents.
        assert!(!cut.status.success() || end == 16 + 300 * 12 + 8 + 2 * (12 + 300 * 8));
    }
    assert!(!run("restore", "slot4", &made).status.success());
}

//! A full disk, on which a process died while it published.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use transload_store::backend::{Backend, CollectOptions};

use crate::saving::{again, called, chunk, intent, manifest, name, open, verify, wrong_chunk};

/// Mounts a small file system over the folder, in the mount namespace of this process, and then runs the given program.
const SMALL: &str = r#"mount -t tmpfs -o size=4m none "$TRANSLOAD_TEST_ROOT" && exec "$@""#;

fn in_namespace(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SMALL, "sh"]);
    command.arg(program).env("TRANSLOAD_TEST_ROOT", folder);
    command
}

#[test]
fn it_is_collected_and_gives_back_what_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let works = in_namespace(folder.path(), Path::new("true")).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("NOT RUN: nothing can be mounted here (unshare -m, mount -t tmpfs)");
        eprintln!("NOT RUN: nothing can be mounted here (unshare -m, mount -t tmpfs)");
        return;
    }
    let mut command = in_namespace(folder.path(), &std::env::current_exe().unwrap());
    again(&mut command, "full::other_process", folder.path(), "");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(DONE), "{output:?}");
}

const DONE: &str = "it was collected";

#[test]
#[ignore = "a process of the test above"]
fn other_process() {
    let Some((folder, _)) = called() else { return };
    let folder = Path::new(&folder);
    let root = folder.join("store");
    let store = open(&root);
    for (which, chunks) in [("a", 0..3), ("gone", 10..20)] {
        let chunks: Vec<u64> = chunks.collect();
        for &n in &chunks {
            let (hash, data) = chunk(n);
            store.put_chunk(&hash, &data).unwrap();
        }
        let data = manifest(1, &chunks);
        store.put_manifest(&name(which), &data).unwrap();
    }
    store.delete_manifest(&name("gone")).unwrap();
    let collector = open(&root);
    // One that is there and one that is not.
    for which in ["a", "never"] {
        fs::write(intent(&root, which), "").unwrap();
    }
    let mut filler = fs::File::create(folder.join("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    while filler.write_all(&[0]).is_ok() {}

    let (hash, data) = chunk(99);
    let put = store.put_chunk(&hash, &data);
    put.and_then(|_| store.put_manifest(&name("no room"), b"")).unwrap_err();
    drop(store);
    let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
    let inventory = collector.inventory().unwrap();
    let collected = inventory.collect(&now, &mut |_| ()).unwrap();
    assert_eq!(collected.chunks, 10);
    let store = open(&root);
    let there = store.get_manifest(&name("a")).unwrap().unwrap();
    assert_eq!(wrong_chunk(&store, &there).unwrap(), None);
    verify(&store);
    assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name("room"), b"").unwrap();
    println!("{DONE}");
}

//! A store on a file system that is mounted read-only.

use std::path::Path;
use std::process::{Command, Stdio};

use transload_store::backend::Backend;
use transload_store::backend::file::{FileOptions, FileStore};

use crate::saving::{again, called, chunk, manifest, name, open, verify, wrong_chunk};

/// Mounts the folder over itself read-only, in the mount namespace of this process, and then runs the given program.
const READ_ONLY: &str = r#"mount -o bind,ro "$TRANSLOAD_TEST_ROOT" "$TRANSLOAD_TEST_ROOT" && exec "$@""#;

fn in_namespace(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", READ_ONLY, "sh"]);
    command.arg(program).env("TRANSLOAD_TEST_ROOT", folder);
    command
}

#[test]
fn it_is_listed_read_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let works = in_namespace(folder.path(), Path::new("true")).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("NOT RUN: nothing can be mounted here (unshare -m, mount -o bind,ro)");
        eprintln!("NOT RUN: nothing can be mounted here (unshare -m, mount -o bind,ro)");
        return;
    }
    let root = folder.path().join("store");
    let store = open(&root);
    let (hash, data) = chunk(1);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name("a"), &manifest(1, &[1])).unwrap();
    drop(store);
    let mut command = in_namespace(folder.path(), &std::env::current_exe().unwrap());
    again(&mut command, "read_only::other_process", &root, "");
    command.env("TRANSLOAD_TEST_ROOT", &root);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(DONE), "{output:?}");
}

const DONE: &str = "all of it was read";

#[test]
#[ignore = "a process of the test above"]
fn other_process() {
    let Some((root, _)) = called() else { return };
    let root = Path::new(&root);
    for options in [FileOptions::default(), FileOptions { cap: Some(1 << 30), ..FileOptions::default() }] {
        let store = FileStore::open_existing(root, options).unwrap();
        let there = store.get_manifest(&name("a")).unwrap().unwrap();
        assert_eq!(wrong_chunk(&store, &there).unwrap(), None);
        verify(&store);
        let inventory = store.inventory().unwrap();
        let mut listed = 0;
        let mut count = |_| {
            listed += 1;
            Ok(())
        };
        inventory.manifests(&mut count).unwrap();
        assert_eq!((listed, inventory.usage().unwrap().chunks), (1, 1));
        let (hash, data) = chunk(2);
        for error in [store.put_chunk(&hash, &data).unwrap_err(), store.delete_manifest(&name("a")).unwrap_err()] {
            let text = error.to_string();
            assert!(text.starts_with("cannot make tmp/") && text.contains("Read-only file system"), "{text}");
        }
    }
    println!("{DONE}");
}

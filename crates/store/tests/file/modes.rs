//! Permissions: only the owner, or also the group, can use a store, whatever the umask of its creators and users is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{Backend, CollectOptions};
use transload_store::{ChunkHash, ManifestName};

use crate::saving::{again, called};

/// Uses a store so that it contains every kind of file: packs, manifests, locks, notes and unfinished files.
fn use_it(root: &Path, group: bool, mark: u8) {
    let options = FileOptions { cap: Some(1 << 30), group, ..FileOptions::default() };
    let store = FileStore::open(root, options).unwrap();
    let name = |text: &str| ManifestName::new(format!("{mark}/{text}")).unwrap();
    store.put_chunk(&[mark; 32].into(), &[mark; 1000]).unwrap();
    store.put_manifest(&name("a"), b"first").unwrap();
    store.put_manifest(&name("a"), b"second").unwrap();
    store.put_manifest(&name("b"), b"gone").unwrap();
    store.delete_manifest(&name("b")).unwrap();
    let collect = CollectOptions::default();
    store.inventory().unwrap().collect(&collect, &mut |_| ()).unwrap();
    store.put_chunk(&[mark + 1; 32].into(), &[mark; 1000]).unwrap();
    // It stays, as what a process leaves that dies.
    std::mem::forget(store);
}

fn each(path: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    let metadata = fs::symlink_metadata(path).unwrap();
    visit(path, &metadata);
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            each(&entry.unwrap().path(), visit);
        }
    }
}

/// Returns a copy of this test's program in a place from which other users can run it.
fn program(folder: &Path) -> std::path::PathBuf {
    let copy = folder.join("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    copy
}

fn run(program: &Path, umask: &str, root: &Path, role: &str, user: Option<u32>) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask "$0"; exec "$@""#, umask]).arg(program);
    again(&mut command, "modes::other_process", root, role);
    if let Some(user) = user {
        command.uid(user).gid(GROUP);
    }
    let output = command.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

const GROUP: u32 = 54_321;

#[test]
#[ignore = "a process of the tests here"]
fn other_process() {
    let Some((root, role)) = called() else { return };
    let root = Path::new(&root);
    match role.as_str() {
        "owner" => use_it(root, false, 10),
        "group" => use_it(root, true, 10),
        "another" => {
            use_it(root, false, 20);
            let store = FileStore::open(root, FileOptions::default()).unwrap();
            let hash = ChunkHash::from([10; 32]);
            assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), vec![10; 1000]);
            // Only an owner can say that a file was used: what another saved becomes ours when it is saved again.
            let place = |name: &str| {
                let hex = blake3::hash(name.as_bytes()).to_hex();
                root.join("manifests").join(&hex[..2]).join(&*hex)
            };
            let owner = || fs::metadata(place("10/a")).unwrap().uid();
            let name = ManifestName::new("10/a").unwrap();
            let before = owner();
            store.put_manifest(&name, b"second").unwrap();
            assert_ne!(owner(), before);
            assert_eq!(store.get_manifest(&name).unwrap().unwrap(), "second");
        }
        role => panic!("{role}"),
    }
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    for umask in ["000", "022", "077", "027"] {
        for (role, file, dir) in [("owner", 0o600, 0o700), ("group", 0o660, 0o2770)] {
            let above = folder.path().join(format!("{role}{umask}"));
            let root = above.join("kv");
            assert!(run(&program, umask, &root, role, None));
            let mut files = 0;
            each(&above, &mut |path, metadata| {
                let mode = metadata.mode() & 0o7777;
                match metadata.is_dir() {
                    true => assert_eq!(mode, dir, "{umask} {}: {mode:o}", path.display()),
                    false => {
                        files += 1;
                        // Settled files have no write bits.
                        let right = mode == file || mode == file & !0o222;
                        assert!(right, "{umask} {}: {mode:o}", path.display());
                    }
                }
            });
            assert!(files >= 7, "{files}");
        }
    }
}

#[test]
fn a_group_shares_a_store_and_others_have_none_of_it() {
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        println!("NOT RUN: only root can be two users");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    for (role, shared) in [("group", true), ("owner", false)] {
        let root = folder.path().join(role);
        assert!(run(&program, "077", &root, role, Some(50_001)));
        assert_eq!(run(&program, "022", &root, "another", Some(50_002)), shared);
        if shared {
            // And back.
            assert!(run(&program, "022", &root, "owner", Some(50_001)));
            each(&root, &mut |path, metadata| {
                assert_eq!(metadata.gid(), GROUP, "{}", path.display());
            });
        }
    }
}

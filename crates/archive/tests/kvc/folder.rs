//! Publishing as erllama does.

use std::fs;
use std::sync::Barrier;

use transload_archive::kvc::{
    Draft, Entry, FingerprintMode, Folder, FolderError, Published, QuantType, parse, set_hit_count,
};

fn draft(token: u32) -> Draft {
    let tokens = vec![token, 2, 3];
    Draft::new([1; 32], FingerprintMode::Safe, QuantType::Q8_0, [2; 32], tokens)
}

fn files(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_file_is_published_once_and_found_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path().join("made/for/it")).unwrap();
    let key = draft(1).key();
    assert_eq!(folder.load(&key).unwrap(), None);
    assert_eq!(folder.publish(&draft(1), b"first").unwrap(), Published::New);
    // Other bytes under one key: the first stay.
    let again = folder.publish(&draft(1), b"second").unwrap();
    assert_eq!(again, Published::AlreadyThere);
    let file = folder.load(&key).unwrap().unwrap();
    assert_eq!(parse(&file).unwrap().payload, b"first");
    assert_eq!(files(&dir.path().join("made/for/it")), [key.file_name()]);
}

#[test]
fn writers_at_the_same_time_leave_one_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let start = Barrier::new(8);
    let new = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8_u8)
            .map(|n| {
                let (folder, start) = (&folder, &start);
                scope.spawn(move || {
                    start.wait();
                    folder.publish(&draft(1), &vec![n; 100_000]).unwrap()
                })
            })
            .collect();
        let published = writers.into_iter().map(|writer| writer.join().unwrap());
        published.filter(|p| *p == Published::New).count()
    });
    assert_eq!(new, 1);
    assert_eq!(files(dir.path()), [draft(1).key().file_name()]);
}

#[test]
fn nothing_is_deleted_and_everything_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    folder.publish(&draft(1), b"good").unwrap();
    folder.publish(&draft(2), b"moved").unwrap();
    let other = draft(3).key();
    fs::rename(folder.path(&draft(2).key()), folder.path(&other)).unwrap();
    fs::write(dir.path().join("half.tmp"), b"KVC").unwrap();
    fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
    let before = files(dir.path());

    let entries: Vec<Entry> = folder.entries().unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 3);
    let bytes = fs::metadata(folder.path(&draft(1).key())).unwrap().len();
    let key = draft(1).key();
    assert!(entries.contains(&Entry::Kvc { key, bytes }));
    let path = dir.path().join("half.tmp");
    assert!(entries.contains(&Entry::Temporary { path }));
    assert!(entries.iter().any(|entry| matches!(
        entry,
        Entry::Wrong { path, error } if *path == folder.path(&other) && error.code() == "key_mismatch"
    )));
    assert_eq!(files(dir.path()), before);
}

/// This also holds for a file that existed before. The caller learns that the file cannot be loaded.
#[test]
fn a_damaged_file_in_the_way_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    folder.publish(&draft(1), b"payload").unwrap();
    let path = folder.path(&draft(1).key());
    let mut file = fs::read(&path).unwrap();
    *file.last_mut().unwrap() ^= 1;
    fs::write(&path, &file).unwrap();
    for result in [folder.load(&draft(1).key()).map(drop), folder.publish(&draft(1), b"payload").map(drop)] {
        let error = result.unwrap_err();
        assert!(matches!(&error, FolderError::Wrong { source, .. } if source.code() == "crc_mismatch"), "{error}");
    }
    assert_eq!(files(dir.path()), [draft(1).key().file_name()]);
}

#[test]
fn what_a_dead_writer_left_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let key = draft(1).key();
    // Of an earlier process with our number, whatever it had counted to.
    let stale: Vec<_> = (0..50).map(|n| format!("{key}.{}.{n}.tmp", std::process::id())).collect();
    for name in &stale {
        fs::write(dir.path().join(name), b"half").unwrap();
    }
    assert_eq!(folder.publish(&draft(1), b"whole").unwrap(), Published::New);
    for name in &stale {
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"half");
    }
}

/// The caller learns that the file cannot be loaded: the name is taken by a dangling link.
#[test]
fn a_link_that_leads_nowhere_is_no_file_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let key = draft(1).key();
    std::os::unix::fs::symlink("nowhere", folder.path(&key)).unwrap();
    let error = folder.publish(&draft(1), b"payload").unwrap_err();
    assert!(matches!(&error, FolderError::Io { .. }), "{error}");
    assert_eq!(folder.load(&key).unwrap(), None);
    assert_eq!(files(dir.path()), [key.file_name()]);
}

/// Reading a pipe would wait for a writer.
#[test]
fn what_is_no_file_is_passed_over_and_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    folder.publish(&draft(1), b"good").unwrap();
    let pipe = folder.path(&draft(2).key());
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for name in ["folder.kvc", "folder.tmp"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let entries: Vec<Entry> = folder.entries().unwrap().map(Result::unwrap).collect();
    assert!(matches!(&entries[..], [Entry::Kvc { .. }]), "{entries:?}");
    for error in [folder.load(&draft(2).key()).unwrap_err(), folder.publish(&draft(2), b"in the way").unwrap_err()] {
        assert!(error.to_string().contains("it is not a regular file"), "{error}");
    }
    assert!(set_hit_count(&pipe, 1).is_err());
}
